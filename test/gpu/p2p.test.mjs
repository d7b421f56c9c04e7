// Slices between two processes over p2p, on one GPU and on two.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CudaDevice } from '../../dist/agent/cuda-device.js';
import { createAgent } from '../../dist/agent/native-agent.js';
import {
  applyPlan,
  Child,
  closePair,
  devicePairs,
  found,
  fragment,
  noise,
  openPair,
  pairsOf,
  poolTable,
  Random,
  randomFragments,
  sha256,
  skip,
  withLimit,
} from './support.mjs';

const MIB = 2 ** 20;
const POOL = 16 * MIB;

function prepare(pair, srcSlot, dstSlot, fragments) {
  return pair.agent.prepareFragments(
    pair.peer,
    poolTable(pair.pool.base, pair.sizeBytes, srcSlot, pair.from),
    poolTable(pair.remoteBase, pair.sizeBytes, dstSlot, pair.to),
    fragments,
  );
}

for (const devices of devicePairs) {
  const where = `GPU ${devices[0]} to ${devices[1]}`;

  test(`slices of any shape arrive whole and touch nothing else, ${where}`, { skip }, async () => {
    const pair = await openPair(createAgent, devices, POOL);
    try {
      const source = noise(POOL, 1);
      const expected = noise(POOL, 2).slice();
      await pair.agent.writeMemory(pair.pool.base, source);
      await pair.child.ask('write', { bytes: expected });
      for (let seed = 1; seed <= 40; seed++) {
        const random = new Random(seed);
        const srcSlot = 1024 + 16 * random.below(4000) + (seed % 3 === 0 ? random.below(16) : 0);
        const dstSlot = 1024 + 16 * random.below(4000) + (seed % 3 === 0 ? random.below(16) : 0);
        const fragments = randomFragments(random, srcSlot, dstSlot);
        const slots = Math.min(Math.floor(POOL / srcSlot), Math.floor(POOL / dstSlot));
        const count = 1 + random.below(Math.min(slots, 300));
        const slotPairs = pairsOf(random.different(count, slots), random.different(count, slots));
        const table = prepare(pair, srcSlot, dstSlot, fragments);
        pair.agent.submit({
          id: seed,
          peer: pair.peer,
          flow: seed % 3,
          groups: [{ fragments: table, slotPairs }],
          after: null,
        });
        const done = await pair.log.of(seed);
        assert.equal(done.status, 'transferred', done.error?.message);
        assert.equal(done.drained, true);
        assert.equal(done.bytes, count * fragments.reduce((sum, f) => sum + f.bytes * f.count, 0));
        applyPlan(source, expected, srcSlot, dstSlot, fragments, slotPairs);
        assert.equal((await pair.child.ask('digest')).sha256, sha256(expected), `seed ${seed}`);
      }
    } finally {
      assert.equal((await closePair(pair)).drained, true);
    }
  });

  test(`explain names p2p, its reason and what the others would cost, ${where}`, { skip }, async () => {
    const pair = await openPair(createAgent, devices, POOL);
    try {
      const fragments = [fragment({ bytes: 32768 })];
      prepare(pair, 32768, 32768, fragments);
      const slotPairs = pairsOf(new Random(1).different(200, 512), new Random(2).different(200, 512));
      const found = pair.agent.explain(pair.peer, { groups: [{ group: 0, fragments, slotPairs }] });
      assert.equal(found.path, 'p2p');
      assert.match(found.reason, /mapped/);
      assert.deepEqual(found.alternatives.map(({ path }) => path).sort(), ['bounce', 'host', 'rdma']);
      const rdma = found.alternatives.find(({ path }) => path === 'rdma');
      assert.equal(rdma.isAvailable, false);
      assert.match(rdma.reason, /nixl agent/);
      assert.ok(rdma.estimatedUs > 100);
    } finally {
      await closePair(pair);
    }
  });

  test(`explain says which kernel copies, and what stands in the way of the faster one is told once, ${where}`, {
    skip,
  }, async () => {
    const pair = await openPair(createAgent, devices, POOL);
    try {
      const told = [];
      pair.agent.onAdvice((text) => {
        if (text.includes('through registers')) told.push(text);
      });
      const major = Math.floor(found.cuda.devices[devices[0]].computeCapability);
      const hasBulk = major === 9 || major === 10;
      let id = 0;
      const explained = async (slot, fields) => {
        const fragments = [fragment(fields)];
        const table = prepare(pair, slot, slot, fragments);
        const slotPairs = pairsOf(new Random(1).different(40, 200), new Random(2).different(40, 200));
        pair.agent.submit({
          id: ++id,
          peer: pair.peer,
          flow: 1,
          groups: [{ fragments: table, slotPairs }],
          after: null,
        });
        assert.equal((await pair.log.of(id)).status, 'transferred');
        return pair.agent.explain(pair.peer, { groups: [{ group: 0, fragments, slotPairs }] });
      };
      const aligned = await explained(32768, { bytes: 32768 });
      assert.equal(aligned.copy.means, hasBulk ? 'bulk' : 'registers');
      assert.equal(aligned.copy.remedy, null);
      assert.deepEqual(told, []);
      const unaligned = await explained(32768, { srcOffset: 3, dstOffset: 7, bytes: 30000 });
      assert.equal(unaligned.copy.means, 'registers');
      assert.match(unaligned.copy.reason, /, 4 bytes at a time, .* the source's base \+ offset .* no multiple of 16;/);
      assert.match(unaligned.copy.remedy, /multiples of 16 bytes/);
      await explained(32768, { srcOffset: 1, bytes: 30000 });
      const small = await explained(32768, { bytes: 64, count: 9, srcStride: 128, dstStride: 256 });
      assert.equal(small.copy.means, 'registers');
      assert.match(small.copy.remedy, /blockLayout/);
      await explained(32768, { bytes: 64, count: 8, srcStride: 128, dstStride: 256 });
      assert.equal(told.length, 2, told.join('\n'));
      assert.ok(told[0].endsWith(`: ${unaligned.copy.reason}; ${unaligned.copy.remedy}`), told[0]);
      assert.ok(told[1].endsWith(`: ${small.copy.reason}; ${small.copy.remedy}`), told[1]);
      assert.deepEqual(
        pair.agent.explain(pair.peer, { groups: [], stats: { coalescedDescriptors: 0, bytes: 0 } }).advice.slice(-2),
        told,
      );
    } finally {
      assert.equal((await closePair(pair)).drained, true);
    }
  });

  test(`a CUDA event holds a slice back until its stream gets there, ${where}`, { skip }, async () => {
    const pair = await openPair(createAgent, devices, POOL);
    try {
      const gpu = await CudaDevice.open(devices[0]);
      const stream = await gpu.createStream('high');
      const table = prepare(pair, 32768, 32768, [fragment({ bytes: 32768 })]);
      const submission = (id, after) => ({
        id,
        peer: pair.peer,
        flow: 1,
        groups: [{ fragments: table, slotPairs: Int32Array.of(0, 1, 3, 4) }],
        after,
      });
      const event = gpu.createEvent();
      assert.equal(event.query(), 'unrecorded');
      assert.throws(() => pair.agent.submit(submission(1, event)), { code: 'ERR_KVT_STATE', message: /record/ });
      event.record(stream);
      pair.agent.submit(submission(1, event));
      assert.equal((await pair.log.of(1)).status, 'transferred');
      assert.equal(event.query(), 'reached');
      // Behind work: the slice is queued at once and moves what the stream has written by the time it gets there.
      await pair.agent.writeMemory(pair.pool.base, noise(POOL, 8));
      stream.clear(pair.pool.base, POOL, 2000);
      event.record(stream);
      pair.agent.submit(submission(3, event));
      assert.equal(event.query(), 'pending');
      assert.equal((await pair.log.of(3)).status, 'transferred');
      assert.equal(event.query(), 'reached');
      const { bytes } = await pair.child.ask('read', { offset: 32768, length: 32768 });
      assert.ok(bytes.every((byte) => byte === 0));
      assert.throws(() => stream.clear(4096, 4096), { code: 'ERR_KVT_ARGUMENT' });
      // Recorded again, on a raw handle, while nothing waits for it; a bigint is as good as a number.
      event.record(BigInt(stream.handle));
      pair.agent.submit(submission(2, event));
      assert.equal((await pair.log.of(2)).status, 'transferred');
      assert.throws(() => event.signal(), { code: 'ERR_KVT_STATE' });
      assert.throws(() => gpu.createEvent().fail('x'), { code: 'ERR_KVT_STATE' });
      stream.close();
      stream.close();
    } finally {
      await closePair(pair);
    }
  });

  test(`cancelled slices settle, and later ones arrive, ${where}`, { skip }, async () => {
    const pair = await openPair(createAgent, devices, 64 * MIB);
    try {
      await pair.agent.writeMemory(pair.pool.base, noise(64 * MIB, 9));
      const table = prepare(pair, 32768, 32768, [fragment({ bytes: 32768 })]);
      const random = new Random(4);
      const slotPairs = pairsOf(random.different(1024, 2048), random.different(1024, 2048));
      const statuses = new Map();
      for (let id = 1; id <= 200; id++) {
        pair.agent.submit({
          id,
          peer: pair.peer,
          flow: id % 5,
          groups: [{ fragments: table, slotPairs }],
          after: null,
        });
        if (id % 2 === 0) pair.agent.cancel(id);
      }
      for (let id = 1; id <= 200; id++) {
        const { status, drained } = await pair.log.of(id);
        statuses.set(status, (statuses.get(status) ?? 0) + 1);
        assert.equal(drained, true);
        assert.ok(status === 'transferred' || (status === 'cancelled' && id % 2 === 0), `${id}: ${status}`);
      }
      assert.ok(statuses.get('transferred') >= 100);
    } finally {
      await closePair(pair);
    }
  });
}

test('device to host memory has no path without NIXL, and says so', { skip }, async () => {
  const pair = await openPair(createAgent, [0, 0], POOL);
  try {
    const host = await pair.agent.allocatePool({ sizeBytes: POOL });
    assert.throws(
      () =>
        pair.agent.prepareFragments(
          pair.peer,
          poolTable(host.base, POOL, 4096),
          poolTable(pair.remoteBase, POOL, 4096, 0),
          [fragment({ bytes: 4096 })],
        ),
      { code: 'ERR_KVT_CAPABILITY', message: /no path from host memory to the peer's device memory.*rdma/ },
    );
  } finally {
    await closePair(pair);
  }
});

test('the end of a writer that was killed is told, and no byte lands afterwards', { skip }, async () => {
  for (const [from, to] of devicePairs) {
    const size = 256 * MIB;
    const agent = await createAgent({ kind: 'host', name: 'target', device: to });
    const pool = await agent.allocatePool({ sizeBytes: size, device: to });
    const metadata = await agent.metadata();
    for (let round = 0; round < 4; round++) {
      const writer = new Child();
      const opened = await writer.ask('open', {
        options: { kind: 'host', name: 'flood', device: from },
        sizeBytes: size,
        device: from,
      });
      await writer.ask('write', { bytes: noise(MIB, round + 1) });
      let fenced;
      const isFenced = new Promise((resolve) => (fenced = resolve));
      agent.onPeerFenced((peerId) => fenced({ peerId, atMs: performance.now() }));
      assert.equal(await agent.watchPeer(opened.metadata, `flood-${round}`), true);
      await writer.ask('flood', { metadata, base: pool.base, sizeBytes: size, pageBytes: 32768 });
      await new Promise((resolve) => setTimeout(resolve, 50));
      const killedAtMs = performance.now();
      await writer.kill();
      // Agents do not keep the process alive; the limit's timer does.
      const told = await withLimit(isFenced, 'the end of the writer was not told', 10_000);
      assert.equal(told.peerId, `flood-${round}`);
      // From here on the pages are ours.
      const canary = new Uint8Array(MIB).fill(0xc5);
      for (let at = 0; at < size; at += MIB) await agent.writeMemory(pool.base + at, canary);
      await new Promise((resolve) => setTimeout(resolve, 200));
      for (let at = 0; at < size; at += MIB) {
        const bytes = await agent.readMemory(pool.base + at, MIB);
        assert.ok(Buffer.from(bytes.buffer, bytes.byteOffset, MIB).equals(Buffer.from(canary.buffer)), `at ${at}`);
      }
      console.log(`# GPU ${from} to ${to}: fenced ${(told.atMs - killedAtMs).toFixed(1)} ms after SIGKILL`);
    }
    assert.equal((await agent.close(5000)).drained, true);
  }
});
