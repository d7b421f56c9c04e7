// Pages on GPUs through arenas on GPUs: gather, one NIXL write a chunk, scatter. Run by `node --test` on a GPU host (scripts/gpu-test.sh).
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CudaDevice } from '../../dist/agent/cuda-device.js';
import { createAgent } from '../../dist/agent/native-agent.js';
import {
  applyPlan,
  Child,
  devicePairs,
  found,
  fragment,
  Log,
  noise,
  pairsOf,
  poolTable,
  Random,
  randomFragments,
  sha256,
  skip,
  skipNixl,
  withLimit,
} from './support.mjs';

const MIB = 2 ** 20;
const POOL = 32 * MIB;
const SLOT = 16384;
const SLOTS = POOL / SLOT;
const BOUNCE = { sizeBytes: 64 * MIB, maxChunkSize: 4 * MIB, requestTimeoutMs: 5000 };

const inbound = (pair, fragments, slots, ticket, key = 0) =>
  pair.child.ask('expect', {
    ticket,
    groups: [{ key, fragments, slots, slotBytes: SLOT }],
  });

async function openBounced([from, to], bounce = BOUNCE) {
  const agent = await createAgent({ kind: 'nixl', name: 'writer', path: 'bounce', device: from, bounce });
  const child = new Child();
  try {
    const pool = await agent.allocatePool({ sizeBytes: POOL, device: from });
    const opened = await child.ask('open', {
      options: { kind: 'nixl', name: 'reader', path: 'bounce', device: to, bounce },
      sizeBytes: POOL,
      device: to,
    });
    const peer = await agent.addPeer(opened.metadata, 'reader');
    await child.ask('meet', { metadata: await agent.metadata(), base: pool.base, sizeBytes: POOL });
    const log = new Log(agent);
    return { agent, child, pool, peer, remoteBase: opened.base, log, from, to };
  } catch (error) {
    await Promise.all([agent.close(2000), child.end()]);
    throw error;
  }
}

async function closeBounced({ agent, child }) {
  assert.equal(agent.bounceStats().arenaUsedBytes, 0);
  assert.equal((await agent.close(5000)).drained, true);
  await child.end();
}

function outbound(pair, fragments) {
  return pair.agent.prepareFragments(
    pair.peer,
    poolTable(pair.pool.base, POOL, SLOT, pair.from),
    poolTable(pair.remoteBase, POOL, SLOT, pair.to),
    fragments,
  );
}

function slicesOf(slotPairs, pages) {
  return Array.from({ length: Math.ceil(slotPairs.length / (2 * pages)) }, (_, i) =>
    slotPairs.subarray(2 * pages * i, 2 * pages * (i + 1)),
  );
}

/** Long enough on any GPU for what is queued behind it to be seen waiting. */
async function busyEvent(pair, rounds = 400) {
  const gpu = await CudaDevice.open(pair.from);
  const stream = await gpu.createStream('high');
  const scratch = await pair.agent.allocatePool({ sizeBytes: 256 * MIB, device: pair.from });
  const event = gpu.createEvent();
  stream.clear(scratch.base, scratch.sizeBytes, rounds);
  event.record(stream);
  return { event, stream };
}

for (const devices of devicePairs) {
  const where = `GPU ${devices[0]} to ${devices[1]}`;

  test(`every byte arrives where the receiver wants it, and no other, ${where}`, { skip: skipNixl }, async () => {
    const pair = await openBounced(devices);
    try {
      for (let round = 1; round <= 6; round++) {
        const random = new Random(round);
        const fragments = round === 1 ? [fragment({ bytes: SLOT })] : randomFragments(random, SLOT, SLOT);
        const slotPairs = pairsOf(random.different(SLOTS - 7, SLOTS), random.different(SLOTS - 7, SLOTS));
        const [source, expected] = [noise(POOL, round), noise(POOL, round + 50).slice()];
        await pair.agent.writeMemory(pair.pool.base, source);
        await pair.child.ask('write', { bytes: expected });
        const ticket = BigInt(round);
        await inbound(
          pair,
          fragments,
          slotPairs.filter((_, i) => i % 2 === 1),
          ticket,
        );
        const table = outbound(pair, fragments);
        const slices = slicesOf(slotPairs, 500);
        slices.forEach((slice, i) => {
          const groups = [{ fragments: table, slotPairs: slice, key: 0 }];
          pair.agent.submit({ id: 100 * round + i, peer: pair.peer, flow: i % 2, groups, after: null, ticket });
        });
        for (let i = 0; i < slices.length; i++) {
          const done = await pair.log.of(100 * round + i);
          assert.equal(done.status, 'transferred', done.error?.message);
          assert.equal(done.drained, true);
        }
        await pair.child.ask('endInbound', { ticket });
        applyPlan(source, expected, SLOT, SLOT, fragments, slotPairs);
        assert.equal((await pair.child.ask('digest')).sha256, sha256(expected), `round ${round}`);
      }
      const fragments = [fragment({ bytes: SLOT })];
      outbound(pair, fragments);
      const groups = [{ group: 0, fragments, slotPairs: Int32Array.of(1, 2) }];
      const plan = { groups, stats: { coalescedDescriptors: 1, bytes: SLOT } };
      assert.equal(pair.agent.explain(pair.peer, plan).path, 'bounce');
      const stats = pair.agent.bounceStats();
      assert.ok(stats.bytesGathered > 0 && stats.nacksReceived === 0, JSON.stringify(stats));
      assert.ok(pair.log.released.size > 0, 'no slice said that its pages are free before it ended');
    } finally {
      await closeBounced(pair);
    }
  });

  test(`what is released may be overwritten at once, ${where}`, { skip: skipNixl }, async () => {
    const pair = await openBounced(devices);
    try {
      const fragments = [fragment({ bytes: SLOT })];
      const table = outbound(pair, fragments);
      const all = Int32Array.from({ length: SLOTS }, (_, i) => i);
      for (let round = 1; round <= 10; round++) {
        const source = noise(POOL, round);
        await pair.agent.writeMemory(pair.pool.base, source);
        const to = new Random(round).different(SLOTS, SLOTS);
        const slotPairs = pairsOf(all, to);
        const ticket = BigInt(round);
        await inbound(pair, fragments, to, ticket);
        const released = pair.log.releasedOf(round);
        pair.agent.submit({
          id: round,
          peer: pair.peer,
          flow: 1,
          groups: [{ fragments: table, slotPairs, key: 0 }],
          after: null,
          ticket,
        });
        await withLimit(released, 'the pages were not released');
        await pair.agent.writeMemory(pair.pool.base, new Uint8Array(POOL).fill(0xee));
        assert.equal((await pair.log.of(round)).status, 'transferred');
        await pair.child.ask('endInbound', { ticket });
        const expected = applyPlan(source, new Uint8Array(POOL), SLOT, SLOT, fragments, slotPairs);
        assert.equal((await pair.child.ask('digest')).sha256, sha256(expected), `round ${round}`);
      }
    } finally {
      await closeBounced(pair);
    }
  });

  test(`a slice waits for its forward, and its cancel does not, ${where}`, { skip: skipNixl }, async () => {
    const pair = await openBounced(devices);
    try {
      const fragments = [fragment({ bytes: SLOT })];
      const table = outbound(pair, fragments);
      const all = Int32Array.from({ length: SLOTS }, (_, i) => i);
      const groups = [{ fragments: table, slotPairs: pairsOf(all, all), key: 0 }];
      const canary = noise(POOL, 77);
      await pair.agent.writeMemory(pair.pool.base, noise(POOL, 5));
      await pair.child.ask('write', { bytes: canary });
      await inbound(pair, fragments, all, 1n);
      const first = await busyEvent(pair);
      pair.agent.submit({ id: 1, peer: pair.peer, flow: 1, groups, after: first.event, ticket: 1n });
      assert.equal((await pair.log.of(1)).status, 'transferred');
      assert.equal(first.event.query(), 'reached');
      assert.equal((await pair.child.ask('digest')).sha256, sha256(noise(POOL, 5)));
      first.stream.close();
      await pair.child.ask('endInbound', { ticket: 1n });

      await pair.child.ask('write', { bytes: canary });
      await inbound(pair, fragments, all, 2n);
      const second = await busyEvent(pair, 800);
      pair.agent.submit({ id: 2, peer: pair.peer, flow: 1, groups, after: second.event, ticket: 2n });
      await new Promise((resolve) => setTimeout(resolve, 5));
      const atMs = performance.now();
      pair.agent.cancel(2);
      const done = await pair.log.of(2);
      const tookMs = performance.now() - atMs;
      assert.equal(done.status, 'cancelled');
      assert.equal(done.drained, true);
      assert.equal(second.event.query(), 'pending', 'the forward ended before the cancel; make it longer');
      assert.ok(tookMs < 20, `${tookMs} ms`);
      console.log(`# cancelled behind a forward in ${tookMs.toFixed(2)} ms, ${where}`);
      while (second.event.query() === 'pending') await new Promise((resolve) => setTimeout(resolve, 2));
      await new Promise((resolve) => setTimeout(resolve, 20));
      assert.equal((await pair.child.ask('digest')).sha256, sha256(canary));
      second.stream.close();
    } finally {
      await closeBounced(pair);
    }
  });

  test(`a writer that is killed leaves the receiver's pages alone, ${where}`, { skip: skipNixl }, async () => {
    const [from, to] = devices;
    const bounce = BOUNCE;
    const agent = await createAgent({ kind: 'nixl', name: 'reader', path: 'bounce', device: to, bounce });
    const pool = await agent.allocatePool({ sizeBytes: POOL, device: to });
    const canary = new Uint8Array(POOL).fill(0xc5);
    for (let round = 1; round <= 3; round++) {
      const writer = new Child();
      const opened = await writer.ask('open', {
        options: { kind: 'nixl', name: 'flood', path: 'bounce', device: from, bounce },
        sizeBytes: POOL,
        device: from,
      });
      const peer = await agent.addPeer(opened.metadata, `flood-${round}`);
      const fragments = [fragment({ bytes: SLOT })];
      const table = agent.prepareInbound(
        peer,
        poolTable(opened.base, POOL, SLOT, from),
        poolTable(pool.base, POOL, SLOT, to),
        fragments,
      );
      const slots = Int32Array.from({ length: SLOTS }, (_, i) => i);
      await agent.expectInbound(peer, BigInt(round), [{ key: 0, fragments: table, slots }]);
      let fenced;
      const isFenced = new Promise((resolve) => (fenced = resolve));
      agent.onPeerFenced((peerId) => fenced(peerId));
      assert.equal(await agent.watchPeer(opened.metadata, `flood-${round}`), true);
      await writer.ask('floodBounced', {
        metadata: await agent.metadata(),
        base: pool.base,
        sizeBytes: POOL,
        slotBytes: SLOT,
        ticket: BigInt(round),
      });
      await new Promise((resolve) => setTimeout(resolve, 100));
      await writer.kill();
      const atMs = performance.now();
      // What came whole may still be scattered; once this resolves the pages are ours, whatever the dead writer's GPU still does.
      await withLimit(agent.endInbound(peer, BigInt(round)), 'the receive did not end', 5000);
      const freeMs = performance.now() - atMs;
      await agent.writeMemory(pool.base, canary);
      assert.equal(await withLimit(isFenced, 'the end of the writer was not told', 10_000), `flood-${round}`);
      await agent.removePeer(peer);
      await new Promise((resolve) => setTimeout(resolve, 200));
      assert.equal(sha256(await agent.readMemory(pool.base, POOL)), sha256(canary));
      console.log(
        `# ${where}: pages free ${freeMs.toFixed(2)} ms after the kill; ${JSON.stringify(agent.bounceStats())}`,
      );
    }
    // Regions that the dead writers held are free again after their time.
    for (let i = 0; i < 100 && agent.bounceStats().arenaUsedBytes > 0; i++)
      await new Promise((resolve) => setTimeout(resolve, 50));
    const stats = agent.bounceStats();
    assert.equal(stats.arenaUsedBytes, 0, JSON.stringify(stats));
    assert.ok(stats.bytesScattered > 0, 'nothing was bounced before the kills');
    assert.equal((await agent.close(5000)).drained, true);
  });

  test(`a receiver that is killed fails the slices, and the writer's pages are free, ${where}`, {
    skip: skipNixl,
  }, async () => {
    const pair = await openBounced(devices);
    const fragments = [fragment({ bytes: SLOT })];
    const slots = Int32Array.from({ length: SLOTS }, (_, i) => i);
    await inbound(pair, fragments, slots, 9n);
    const table = outbound(pair, fragments);
    let id = 0;
    const submit = () => {
      id++;
      const groups = [{ fragments: table, slotPairs: pairsOf(slots, slots), key: 0 }];
      pair.agent.submit({ id, peer: pair.peer, flow: id, groups, after: null, ticket: 9n });
      return id;
    };
    for (let i = 0; i < 20; i++) assert.equal((await pair.log.of(submit())).status, 'transferred');
    const open = Array.from({ length: 8 }, submit);
    await pair.child.kill();
    const atMs = performance.now();
    // What the session does when the process is known to have ended.
    await new Promise((resolve) => setTimeout(resolve, 50));
    await pair.agent.removePeer(pair.peer);
    for (const one of open) {
      const done = await withLimit(pair.log.of(one), `slice ${one} did not end`, 15_000);
      assert.ok(done.status === 'transferred' || done.error !== null, `${one}: ${done.status}`);
    }
    console.log(`# ${where}: the last slice ended ${(performance.now() - atMs).toFixed(1)} ms after the kill`);
    const report = await pair.agent.close(10_000);
    console.log(`# ${where}: closed, ${JSON.stringify(report)}`);
  });
}

test('what an arena cannot be is a typed error that names the setting', { skip: skipNixl }, async () => {
  const base = { kind: 'nixl', name: 'x', device: 0, path: 'bounce' };
  const tooLarge = 2 ** Math.ceil(Math.log2(found.cuda.devices[0].memoryBytes));
  await assert.rejects(createAgent({ ...base, bounce: { sizeBytes: tooLarge } }), {
    code: 'ERR_KVT_RESOURCE',
    message: /bounce arena of \d+ MiB on GPU 0 \(kvCacheBounceSizeMb.*does not fit/,
  });
  await assert.rejects(createAgent({ ...base, bounce: { sizeBytes: 4 * MIB, maxChunkSize: 8 * MIB } }), {
    code: 'ERR_KVT_ARGUMENT',
    message: /maxChunkSize|kvCacheBounceSizeMb/,
  });
  await assert.rejects(createAgent({ ...base, device: 99, bounce: BOUNCE }), {
    code: 'ERR_KVT_ARGUMENT',
    message: /no GPU 99/,
  });
  await assert.rejects(createAgent(base), { code: 'ERR_KVT_CAPABILITY', message: /kvCacheBounceSizeMb/ });
  // Both go on to say which of the two ways out there is.
  const host = await createAgent({ kind: 'host', name: 'x', path: 'bounce', bounce: BOUNCE });
  await assert.rejects(host.allocatePool({ sizeBytes: MIB, device: 0 }), {
    code: 'ERR_KVT_CAPABILITY',
    message: /host agent's bounce arena is host memory; use the nixl agent/,
  });
  await host.close(1000);
  const late = await createAgent({ kind: 'nixl', name: 'x', path: 'bounce', bounce: BOUNCE });
  await assert.rejects(late.allocatePool({ sizeBytes: MIB, device: 0 }), {
    code: 'ERR_KVT_CAPABILITY',
    message: /opened without a GPU; give createAgent the option device/,
  });
  await late.close(1000);
});

test('without a visible GPU the arena is refused with the reason', { skip: skipNixl }, async () => {
  const child = new Child({ CUDA_VISIBLE_DEVICES: '' });
  try {
    await assert.rejects(
      child.ask('open', {
        options: { kind: 'nixl', name: 'x', device: 0, path: 'bounce', bounce: BOUNCE },
        sizeBytes: MIB,
        device: 0,
      }),
      { code: 'ERR_KVT_CAPABILITY', message: /CUDA_VISIBLE_DEVICES|nvidia-smi|driver/ },
    );
  } finally {
    await child.end();
  }
});

test('an arena on a GPU and one in host memory do not bounce to each other, and say so', {
  skip: skipNixl,
}, async () => {
  const device = await createAgent({ kind: 'nixl', name: 'device', device: 0, bounce: BOUNCE });
  const host = await createAgent({ kind: 'nixl', name: 'host', bounce: BOUNCE });
  const peer = await device.addPeer(await host.metadata(), 'host');
  const explained = device.explain(peer, { groups: [], stats: { coalescedDescriptors: 5000, bytes: 5000 } });
  assert.ok(
    explained.advice.some((text) => /another kind of memory/.test(text)),
    JSON.stringify(explained),
  );
  await Promise.all([device.close(2000), host.close(2000)]);
});

test('a bounce agent takes no more than its arena when far more is asked of it', { skip }, async (t) => {
  if (skipNixl) return t.skip(skipNixl);
  const pair = await openBounced([0, 0], { ...BOUNCE, sizeBytes: 8 * MIB, maxChunkSize: MIB });
  try {
    const fragments = [fragment({ bytes: SLOT })];
    const slots = Int32Array.from({ length: SLOTS }, (_, i) => i);
    await inbound(pair, fragments, slots, 1n);
    const table = outbound(pair, fragments);
    let most = 0;
    for (let id = 1; id <= 16; id++) {
      const groups = [{ fragments: table, slotPairs: pairsOf(slots, slots), key: 0 }];
      pair.agent.submit({ id, peer: pair.peer, flow: id, groups, after: null, ticket: 1n });
      most = Math.max(most, pair.agent.bounceStats().arenaUsedBytes);
    }
    for (let id = 1; id <= 16; id++) {
      assert.equal((await pair.log.of(id)).status, 'transferred');
      most = Math.max(most, pair.agent.bounceStats().arenaUsedBytes);
    }
    assert.ok(most <= 8 * MIB, `${most}`);
  } finally {
    await closeBounced(pair);
  }
});
