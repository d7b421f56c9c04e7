// Device memory over NIXL: forced, and chosen where p2p cannot be.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CudaDevice } from '../../dist/agent/cuda-device.js';
import { createAgent } from '../../dist/agent/native-agent.js';
import {
  applyPlan,
  closePair,
  devicePairs,
  found,
  fragment,
  noise,
  openPair,
  pairsOf,
  poolTable,
  Random,
  sha256,
  skip,
  skipNixl,
} from './support.mjs';

const MIB = 2 ** 20;
const POOL = 16 * MIB;
const PAGE = 32768;

async function moveAndCheck(pair, slotPairs, id, after = null) {
  const fragments = [fragment({ bytes: PAGE })];
  const [source, expected] = [noise(POOL, id), noise(POOL, id + 100).slice()];
  await pair.agent.writeMemory(pair.pool.base, source);
  await pair.child.ask('write', { bytes: expected });
  const table = pair.agent.prepareFragments(
    pair.peer,
    poolTable(pair.pool.base, POOL, PAGE, pair.from),
    poolTable(pair.remoteBase, POOL, PAGE, pair.to),
    fragments,
  );
  pair.agent.submit({ id, peer: pair.peer, flow: 1, groups: [{ fragments: table, slotPairs }], after });
  const done = await pair.log.of(id);
  assert.equal(done.status, 'transferred', done.error?.message);
  applyPlan(source, expected, PAGE, PAGE, fragments, slotPairs);
  assert.equal((await pair.child.ask('digest')).sha256, sha256(expected));
  return { done, found: pair.agent.explain(pair.peer, { groups: [{ group: 0, fragments, slotPairs }] }) };
}

for (const devices of devicePairs) {
  const where = `GPU ${devices[0]} to ${devices[1]}`;
  const scattered = pairsOf(new Random(1).different(300, 512), new Random(2).different(300, 512));
  const contiguous = pairsOf(Int32Array.from({ length: 512 }, (_, i) => i), Int32Array.from({ length: 512 }, (_, i) => i)); // biome-ignore format: one line

  test(`path 'rdma' moves scattered and contiguous pages, ${where}`, { skip: skipNixl }, async () => {
    const pair = await openPair(createAgent, devices, POOL, { kind: 'nixl', path: 'rdma' });
    try {
      const { found } = await moveAndCheck(pair, scattered, 1);
      assert.equal(found.path, 'rdma');
      assert.match(found.alternatives.find(({ path }) => path === 'p2p').reason, /asked for/);
      await moveAndCheck(pair, contiguous, 2);
      const gpu = await CudaDevice.open(devices[0]);
      const stream = await gpu.createStream();
      const event = gpu.createEvent();
      event.record(stream);
      await moveAndCheck(pair, scattered, 3, event);
      stream.close();
    } finally {
      assert.equal((await closePair(pair)).drained, true);
    }
  });

  test(`a nixl agent takes p2p by itself, ${where}`, { skip: skipNixl }, async () => {
    const pair = await openPair(createAgent, devices, POOL, { kind: 'nixl' });
    try {
      const { found } = await moveAndCheck(pair, scattered, 1);
      assert.equal(found.path, 'p2p');
      const rdma = found.alternatives.find(({ path }) => path === 'rdma');
      assert.equal(rdma.isAvailable, true, rdma.reason);
      console.log(`# advice: ${JSON.stringify(found.advice)}`);
    } finally {
      assert.equal((await closePair(pair)).drained, true);
    }
  });
}

test('a GPU that is not visible here is a typed refusal without NIXL', { skip }, async (t) => {
  if (found.cuda.deviceCount < 2) return t.skip('needs two GPUs');
  // The receiver sees only the second GPU, this process calls it by the other number; here only the first is of use.
  const { Child } = await import('./support.mjs');
  const child = new Child({ CUDA_VISIBLE_DEVICES: '1' });
  const writer = new Child({ CUDA_VISIBLE_DEVICES: '0' });
  try {
    const opened = await child.ask('open', {
      options: { kind: 'host', name: 'r', device: 0 },
      sizeBytes: POOL,
      device: 0,
    });
    await writer.ask('open', { options: { kind: 'host', name: 'w', device: 0 }, sizeBytes: POOL, device: 0 });
    await assert.rejects(
      writer.ask('flood', { metadata: opened.metadata, base: opened.base, sizeBytes: POOL, pageBytes: PAGE }),
      { code: 'ERR_KVT_CAPABILITY', message: /no path leads.*not visible.*CUDA_VISIBLE_DEVICES.*rdma: the host agent/ },
    );
  } finally {
    await Promise.all([child.end(), writer.end()]);
  }
});
