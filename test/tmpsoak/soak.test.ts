import { readdirSync } from 'node:fs';
import { expect, it } from 'vitest';
import { ZeromqMessenger } from '/work/main/src/wire/zeromq-messenger.js';
const fds = () => readdirSync('/proc/self/fd').length;
it('soak', async () => {
  const counts: number[] = [];
  for (let i = 0; i < 300; i++) {
    const a = await ZeromqMessenger.open(); const b = await ZeromqMessenger.open();
    const got = new Promise<void>((r) => b.onFrame(() => r()));
    a.onFrame(() => {});
    a.send(b.endpoint, new Uint8Array(100)); a.send('tcp://127.0.0.1:1', new Uint8Array(5));
    await got; await a.close(i % 2 ? 100 : 0); await b.close(0);
    if (i % 50 === 0) { await new Promise((r) => setTimeout(r, 50)); counts.push(fds()); }
  }
  console.log('fds', counts.join(' '), 'rss', process.memoryUsage().rss >> 20);
  const a = await ZeromqMessenger.open(); const b = await ZeromqMessenger.open();
  let n = 0; let t0 = 0; const lat: number[] = [];
  await new Promise<void>((done) => {
    b.onFrame((f) => b.send(a.endpoint, f)); a.onFrame(() => { lat.push(performance.now() - t0); if (++n === 2000) done(); else { t0 = performance.now(); a.send(b.endpoint, new Uint8Array(64)); } });
    t0 = performance.now(); a.send(b.endpoint, new Uint8Array(64));
  });
  lat.sort((x, y) => x - y); console.log('rtt ms p50', lat[1000], 'p99', lat[1980]);
  const N = 200000; let m = 0; const s = performance.now();
  const c = await ZeromqMessenger.open(); 
  await new Promise<void>((done) => { c.onFrame(() => { if (++m === N) done(); });
    let i = 0; const step = () => { for (let k = 0; k < 1000 && i < N; k++, i++) a.send(c.endpoint, new Uint8Array(80)); if (i < N) setImmediate(step); }; step(); });
  console.log('frames/s', Math.round(N / (performance.now() - s) * 1000), JSON.stringify(a.counts().framesDropped));
  // many peers
  const many = await ZeromqMessenger.open({ maxPeers: 5000 });
  let peers: ZeromqMessenger[] = []; 
  for (let i = 0; i < 400; i++) peers.push(await ZeromqMessenger.open());
  let r = 0; const all = new Promise<void>((d) => peers.forEach((p) => p.onFrame(() => { if (++r === 400) d(); })));
  for (const p of peers) many.send(p.endpoint, new Uint8Array(10)); await all; console.log('400 peers', fds(), JSON.stringify(many.counts()));
  await Promise.all([many, a, b, c, ...peers].map((x) => x.close(0)));
  await new Promise((r) => setTimeout(r, 200)); console.log('fds end', fds());
}, 120000);
