// What a machine or a container does not give: each refusal is forced where everything works, and must be a named fallback or a typed error.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CudaDevice } from '../../dist/agent/cuda-device.js';
import { createAgent } from '../../dist/agent/native-agent.js';
import {
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
  sha256,
  skip,
  skipNixl,
} from './support.mjs';

const MIB = 2 ** 20;
const POOL = 16 * MIB;
const PAGE = 32768;
const [from, to] = devicePairs.at(-1);
const needsTwo = found.cuda.deviceCount < 2 ? 'needs two GPUs' : false;

/** A writer and a receiver, each a process of its own with its own driver. */
async function open({ kind = 'host', writerWithout = '', receiverWithout = '', devices = [from, to] }) {
  const env = (without) => (without === '' ? {} : { KV_TRANSCEIVER_CUDA_WITHOUT: without });
  const writer = new Child(env(writerWithout));
  const receiver = new Child(env(receiverWithout));
  const [fromDevice, toDevice] = devices;
  const close = () => Promise.all([writer.end(), receiver.end()]);
  try {
    const agent = (name, device) => ({ options: { kind, name, device }, sizeBytes: POOL, device });
    await writer.ask('open', agent('writer', fromDevice));
    const opened = await receiver.ask('open', agent('receiver', toDevice));
    await writer.ask('write', { bytes: noise(POOL, 1) });
    const target = { metadata: opened.metadata, base: opened.base, sizeBytes: POOL, pageBytes: PAGE };
    return { writer, receiver, target, close };
  } catch (error) {
    await close();
    throw error;
  }
}

/** Every page of the pool moves, and arrives where it belongs. */
async function moves({ writer, receiver, target }) {
  const moved = await writer.ask('move', target);
  assert.equal(moved.status, 'transferred', moved.error);
  const source = noise(POOL, 1);
  const expected = new Uint8Array(POOL);
  for (let i = 0; i < moved.slotPairs.length; i += 2) {
    const at = moved.slotPairs[i] * PAGE;
    expected.set(source.subarray(at, at + PAGE), moved.slotPairs[i + 1] * PAGE);
  }
  assert.equal((await receiver.ask('digest')).sha256, sha256(expected));
  return moved;
}

test('without peer access NIXL moves the pages, which is told once', { skip: skipNixl || needsTwo }, async () => {
  const pair = await open({ kind: 'nixl', writerWithout: 'peer-access' });
  try {
    const { explained, advice } = await moves(pair);
    assert.equal(explained.path, 'rdma');
    const p2p = explained.alternatives.find(({ path }) => path === 'p2p');
    assert.equal(p2p.isAvailable, false);
    assert.match(p2p.reason, /GPU 0 has no peer access to GPU 1; see nvidia-smi topo/);
    const told = advice.filter((text) => /reached by NIXL, not by p2p: GPU 0 has no peer access/.test(text));
    assert.equal(told.length, 1, JSON.stringify(advice));
    console.log(`# ${told[0]}`);
  } finally {
    await pair.close();
  }
});

test('without peer access and without NIXL a peer is refused', { skip: skip || needsTwo }, async () => {
  const pair = await open({ writerWithout: 'peer-access' });
  try {
    await assert.rejects(pair.writer.ask('move', pair.target), (error) => {
      assert.equal(error.code, 'ERR_KVT_CAPABILITY');
      assert.match(
        error.message,
        /no path leads to the peer's device memory; p2p: GPU 0 has no peer access.*rdma: the host agent/,
      );
      console.log(`# ${error.message}`);
      return true;
    });
  } finally {
    await pair.close();
  }
});

test('a pool that no descriptor exports is shared by IPC handle', { skip }, async () => {
  const pair = await open({ receiverWithout: 'descriptors' });
  try {
    const { explained } = await moves(pair);
    assert.equal(explained.path, 'p2p');
    const { advice } = await pair.receiver.ask('advice');
    assert.equal(advice.length, 1, JSON.stringify(advice));
    assert.match(
      advice[0],
      /pools on GPU \d: shared by IPC handle: cuMemExportToShareableHandle: CUDA_ERROR_NOT_SUPPORTED/,
    );
    console.log(`# ${advice[0]}`);
  } finally {
    await pair.close();
  }
});

test('a pool that cannot be shared at all refuses its peers, and can still be written from', { skip }, async () => {
  const refused = await open({ receiverWithout: 'descriptors,ipc-handles' });
  try {
    await assert.rejects(refused.writer.ask('move', refused.target), (error) => {
      assert.equal(error.code, 'ERR_KVT_CAPABILITY');
      assert.match(error.message, /its pool cannot be mapped: the peer's pool cannot be shared between processes/);
      console.log(`# ${error.message}`);
      return true;
    });
    const { advice } = await refused.receiver.ask('advice');
    assert.match(
      advice.join('\n'),
      /cannot be shared: cuMemExportToShareableHandle: .*cuIpcGetMemHandle: CUDA_ERROR_NOT_SUPPORTED/,
    );
  } finally {
    await refused.close();
  }
  const writing = await open({ writerWithout: 'descriptors,ipc-handles' });
  try {
    assert.equal((await moves(writing)).explained.path, 'p2p');
  } finally {
    await writing.close();
  }
});

test('an unknown feature to withhold is a typed error that lists the known ones', { skip }, async () => {
  const child = new Child({ KV_TRANSCEIVER_CUDA_WITHOUT: 'nvlink' });
  try {
    await assert.rejects(
      child.ask('open', { options: { kind: 'host', name: 'x', device: 0 }, sizeBytes: POOL, device: 0 }),
      { message: /KV_TRANSCEIVER_CUDA_WITHOUT: 'nvlink' cannot be withheld; list peer-access/ },
    );
  } finally {
    await child.end();
  }
});

test("another GPU's event holds a slice back; another GPU's stream cannot record it", {
  skip: skip || needsTwo,
}, async () => {
  const pair = await openPair(createAgent, [0, 1], POOL);
  try {
    await pair.agent.writeMemory(pair.pool.base, noise(POOL, 8));
    const other = await CudaDevice.open(1);
    const own = await CudaDevice.open(0);
    const busy = await pair.agent.allocatePool({ sizeBytes: 512 * MIB, device: 0 });
    const stream = await own.createStream('high');
    assert.throws(
      () => other.createEvent().record(stream),
      (error) => {
        assert.match(error.code, /^ERR_KVT_/);
        console.log(`# ${error.code}: ${error.message}`);
        return true;
      },
    );
    // An event of GPU 1, reached when its own stream gets there: the slice on GPU 0 waits for it all the same.
    const far = await other.createStream('high');
    const event = other.createEvent();
    event.record(far);
    const table = pair.agent.prepareFragments(
      pair.peer,
      poolTable(pair.pool.base, POOL, PAGE, 0),
      poolTable(pair.remoteBase, POOL, PAGE, 1),
      [fragment({ bytes: PAGE })],
    );
    const slotPairs = pairsOf(new Random(1).different(100, 512), new Random(2).different(100, 512));
    pair.agent.submit({ id: 1, peer: pair.peer, flow: 1, groups: [{ fragments: table, slotPairs }], after: event });
    const done = await pair.log.of(1);
    assert.equal(done.status, 'transferred', done.error?.message);
    assert.ok(busy.base > 0);
    stream.close();
    far.close();
  } finally {
    assert.equal((await closePair(pair)).drained, true);
  }
});

test('a slice that waits on the GPU is taken back at once, and its pages stay as they are', { skip }, async () => {
  for (const devices of devicePairs) {
    const pair = await openPair(createAgent, devices, 64 * MIB);
    try {
      const gpu = await CudaDevice.open(devices[0]);
      const stream = await gpu.createStream('high');
      const busy = await pair.agent.allocatePool({ sizeBytes: 1024 * MIB, device: devices[0] });
      await pair.agent.writeMemory(pair.pool.base, noise(64 * MIB, 9));
      const table = pair.agent.prepareFragments(
        pair.peer,
        poolTable(pair.pool.base, 64 * MIB, PAGE, devices[0]),
        poolTable(pair.remoteBase, 64 * MIB, PAGE, devices[1]),
        [fragment({ bytes: PAGE })],
      );
      const slotPairs = pairsOf(new Random(3).different(1024, 2048), new Random(4).different(1024, 2048));
      const groups = [{ fragments: table, slotPairs }];
      const canary = new Uint8Array(64 * MIB).fill(0xc5);
      const settledMs = [];
      for (let round = 0; round < 5; round++) {
        const event = gpu.createEvent();
        stream.clear(busy.base, 1024 * MIB, 400);
        event.record(stream);
        const ids = [0, 1, 2, 3].map((i) => 10 * round + i + 1);
        for (const id of ids) pair.agent.submit({ id, peer: pair.peer, flow: id, groups, after: event });
        const cancelledAtMs = performance.now();
        for (const id of ids) pair.agent.cancel(id);
        for (const id of ids) {
          const done = await pair.log.of(id);
          assert.deepEqual([done.status, done.drained, done.bytes], ['cancelled', true, 0]);
        }
        settledMs.push(performance.now() - cancelledAtMs);
        assert.equal(event.query(), 'pending', 'the forward was too short to show anything');
        await pair.child.ask('write', { bytes: canary });
        while (event.query() === 'pending') await new Promise((resolve) => setTimeout(resolve, 1));
        await new Promise((resolve) => setTimeout(resolve, 20));
        assert.equal((await pair.child.ask('digest')).sha256, sha256(canary));
      }
      pair.agent.submit({ id: 99, peer: pair.peer, flow: 1, groups, after: null });
      assert.equal((await pair.log.of(99)).status, 'transferred');
      console.log(`# GPU ${devices}: taken back after ${settledMs.map((ms) => ms.toFixed(2)).join(', ')} ms`);
      stream.close();
    } finally {
      assert.equal((await closePair(pair)).drained, true);
    }
  }
});
