import { test } from 'vitest';
import { createAgent } from '../../src/agent/native-agent.js';
import { capabilities } from '../../src/agent/native.js';
import { plainCopyNs } from '../../src/agent/plain-copy.js';
const MB = 1 << 20;
test('smoke', async () => {
  console.log(JSON.stringify(await capabilities(), null, 1));
  const a = await createAgent({ kind: 'host', name: 'a' });
  const b = await createAgent({ kind: 'host', name: 'b' });
  const size = 1024 * MB;
  const pa = await a.allocatePool({ sizeBytes: size });
  const pb = await b.allocatePool({ sizeBytes: size });
  const peer = await a.addPeer(await b.metadata(), 'b');
  let resolve: (v: any) => void = () => {};
  a.onCompletions((batch) => resolve(batch));
  let id = 1;
  for (const pageBytes of [32768, 4096]) {
    const slotCount = size / pageBytes;
    const n = slotCount / 2;
    const shuffled = (seed: number) => {
      const s = Int32Array.from({ length: slotCount }, (_, i) => i);
      let x = seed;
      for (let i = slotCount - 1; i > 0; i--) {
        x = (Math.imul(x, 1664525) + 1013904223) >>> 0;
        const j = x % (i + 1);
        [s[i], s[j]] = [s[j]!, s[i]!];
      }
      return s.subarray(0, n);
    };
    const src = shuffled(1).slice().sort();
    const dst = shuffled(2);
    const pairs = new Int32Array(2 * n);
    for (let i = 0; i < n; i++) { pairs[2 * i] = src[i]!; pairs[2 * i + 1] = dst[i]!; }
    const table = (base: number) => ({ pools: [{ base, memory: { kind: 'host' as const }, slotBytes: pageBytes, slotStride: pageBytes, slotCount }], layerGroups: [], aux: null });
    const f = a.prepareFragments(peer, table(pa.base), table(pb.base), [{ srcPool: 0, srcOffset: 0, dstPool: 0, dstOffset: 0, bytes: pageBytes, count: 1, srcStride: 0, dstStride: 0 }]);
    const hs: number[] = [], ms: number[] = [];
    for (let r = 0; r < 7; r++) {
      const ns = await plainCopyNs({ srcBase: pa.base, dstBase: pb.base, pageBytes, slotStride: pageBytes, slotPairs: pairs });
      ms.push((n * pageBytes) / ns);
      const done = new Promise<any>((r2) => { resolve = r2; });
      a.submit({ id: id++, peer, flow: 1, groups: [{ fragments: f, slotPairs: pairs }], after: null });
      const [c] = await done;
      if (c.status !== 'transferred') throw c.error;
      hs.push((c.bytes) / ((c.finishedAtMs - c.postedAtMs) * 1e6));
    }
    const med = (v: number[]) => v.slice().sort((x, y) => x - y)[v.length >> 1]!;
    console.log(pageBytes, 'plain', med(ms).toFixed(2), 'host', med(hs).toFixed(2), (med(hs) / med(ms)).toFixed(3), hs.map(x=>x.toFixed(1)).join(' '), ms.map(x=>x.toFixed(1)).join(' '));
    const small = pairs.subarray(0, 4096);
    const times: number[] = [];
    for (let r = 0; r < 300; r++) {
      const done = new Promise<any>((r2) => { resolve = r2; });
      const t = process.hrtime.bigint();
      a.submit({ id: id++, peer, flow: 1, groups: [{ fragments: f, slotPairs: small }], after: null });
      times.push(Number(process.hrtime.bigint() - t) / 1000);
      await done;
    }
    console.log('submit us p50', med(times), 'p99', times.slice().sort((x, y) => x - y)[297]);
  }
  console.log(await a.close(1000), await b.close(1000));
}, 120000);
