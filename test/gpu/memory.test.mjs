// Device pools, copies, page content and what is refused. Run by `node --test` on a GPU host (scripts/gpu-test.sh).
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createAgent } from '../../dist/agent/native-agent.js';
import { createPageContent } from '../../dist/agent/native-page-content.js';
import { found, noise, skip, skipNixl } from './support.mjs';

const MIB = 2 ** 20;

async function withAgent(options, use) {
  const agent = await createAgent({ kind: 'host', name: 'memory', ...options });
  try {
    return await use(agent);
  } finally {
    assert.equal((await agent.close(5000)).drained, true);
  }
}

test('a device pool is zeroed, copied in and out, and never touched from the JS thread', { skip }, async () => {
  await withAgent({}, async (agent) => {
    const pool = await agent.allocatePool({ sizeBytes: 3 * MIB + 17, device: 0 });
    assert.equal(pool.device, 0);
    const zeros = await agent.readMemory(pool.base, pool.sizeBytes);
    assert.equal(zeros.length, pool.sizeBytes);
    assert.ok(zeros.every((byte) => byte === 0));
    const bytes = noise(MIB, 3);
    await agent.writeMemory(pool.base + 1001, bytes);
    assert.deepEqual(await agent.readMemory(pool.base + 1001, MIB), bytes);
    assert.equal((await agent.readMemory(pool.base + 1000, 1))[0], 0);
    assert.throws(() => agent.readBytes(pool.base, 8), { code: 'ERR_KVT_ARGUMENT', message: /readMemory/ });
    assert.throws(() => agent.writeBytes(pool.base, bytes), { code: 'ERR_KVT_ARGUMENT', message: /writeMemory/ });
    await assert.rejects(agent.readMemory(pool.base + pool.sizeBytes - 1, 2), { code: 'ERR_KVT_ARGUMENT' });
    // Host pools of the same agent go on as before.
    const host = await agent.allocatePool({ sizeBytes: 4096 });
    agent.writeBytes(host.base, bytes.subarray(0, 4096));
    assert.deepEqual(await agent.readMemory(host.base, 4096), bytes.slice(0, 4096));
  });
});

test('what cannot be allocated is a typed error with the driver’s text', { skip }, async () => {
  await withAgent({}, async (agent) => {
    await assert.rejects(agent.allocatePool({ sizeBytes: MIB, device: 99 }), {
      code: 'ERR_KVT_ARGUMENT',
      message: /no GPU 99.*CUDA_VISIBLE_DEVICES/,
    });
    await assert.rejects(agent.allocatePool({ sizeBytes: 2 ** 44, device: 0 }), { code: 'ERR_KVT_RESOURCE' });
    const free = found.cuda.devices[0].memoryBytes;
    const held = await agent.allocatePool({ sizeBytes: Math.floor(free * 0.6), device: 0 });
    await assert.rejects(agent.allocatePool({ sizeBytes: Math.floor(free * 0.6), device: 0 }), {
      code: 'ERR_KVT_RESOURCE',
      message: /does not fit on GPU 0.*CUDA_ERROR_OUT_OF_MEMORY/,
    });
    // And goes on.
    assert.equal((await agent.readMemory(held.base, 1))[0], 0);
    await agent.allocatePool({ sizeBytes: MIB, device: 0 });
    if (found.cuda.deviceCount > 1) {
      await assert.rejects(agent.allocatePool({ sizeBytes: MIB, device: 1 }), {
        code: 'ERR_KVT_ARGUMENT',
        message: /another agent for GPU 1/,
      });
    }
  });
});

test('options of paths that cannot be are refused', { skip }, async () => {
  await assert.rejects(createAgent({ kind: 'host', name: 'x', path: 'rdma' }), { code: 'ERR_KVT_ARGUMENT' });
  await assert.rejects(createAgent({ kind: 'host', name: 'x', path: 'tcp' }), { code: 'ERR_KVT_ARGUMENT' });
  await assert.rejects(createAgent({ kind: 'host', name: 'x', device: -1 }), { code: 'ERR_KVT_ARGUMENT' });
  await assert.rejects(createAgent({ kind: 'host', name: 'x', device: 99 }), { code: 'ERR_KVT_ARGUMENT' });
});

test('engine memory is registered anywhere inside its allocation', { skip: skipNixl }, async () => {
  // The pool of a NIXL agent is a plain allocation of this process, as an engine would make it.
  await withAgent({ kind: 'nixl', name: 'engine', device: 0 }, async (engine) => {
    const memory = await engine.allocatePool({ sizeBytes: 4 * MIB, device: 0 });
    await withAgent({ device: 0 }, async (agent) => {
      const odd = { address: memory.base + 4099, sizeBytes: MIB + 13, device: 0 };
      assert.deepEqual(await agent.registerPool(odd), { base: odd.address, sizeBytes: odd.sizeBytes, device: 0 });
      const bytes = noise(1000, 5);
      await agent.writeMemory(odd.address + 7, bytes);
      assert.deepEqual(await engine.readMemory(memory.base + 4106, 1000), bytes);
      await assert.rejects(agent.registerPool(odd), { code: 'ERR_KVT_ARGUMENT', message: /overlaps/ });
      await assert.rejects(agent.registerPool({ ...odd, address: memory.base + 2 * MIB, sizeBytes: 4 * MIB }), {
        code: 'ERR_KVT_ARGUMENT',
        message: /leaves its allocation: it takes bytes \d+ to \d+ of \d+/,
      });
      await assert.rejects(agent.registerPool({ ...odd, address: 4096 }), { code: 'ERR_KVT_ARGUMENT' });
      await assert.rejects(agent.registerPool({ ...odd, sizeBytes: 0 }), { code: 'ERR_KVT_ARGUMENT' });
    });
  });
});

test('page content on a GPU is that of host memory, byte for byte', { skip }, async () => {
  const content = createPageContent();
  const page = 4 * 32 * 256;
  const slotCount = 40;
  const table = (base) => ({
    pools: [{ base, memory: { kind: 'host' }, slotBytes: page, slotStride: page, slotCount }],
    layerGroups: [
      {
        kind: 'attention',
        windowSize: null,
        tokensPerBlock: 32,
        slotCount,
        views: [
          {
            role: 'key',
            dtype: 'bfloat16',
            layout: 'HND',
            headsPerRank: 4,
            headDim: 128,
            layers: [{ layer: 3, pool: 0, offset: 0, bytes: page }],
          },
        ],
      },
    ],
    aux: null,
  });
  const slots = Int32Array.from({ length: 20 }, (_, i) => (i * 7 + 3) % slotCount);
  const tokenSeeds = content.chainTokenSeeds(Uint32Array.from({ length: 20 * 32 }, (_, i) => i * 3 + 1));
  const job = (base) => ({
    table: table(base),
    group: 0,
    run: { begin: 0, slots },
    tokenBegin: 5,
    tokenEnd: 20 * 32 - 9,
    tokenSeeds,
    firstHead: 4,
  });
  await withAgent({}, async (agent) => {
    const device = await agent.allocatePool({ sizeBytes: page * slotCount, device: 0 });
    const host = await agent.allocatePool({ sizeBytes: page * slotCount });
    const filled = await content.fill(job(device.base));
    assert.deepEqual(filled, await content.fill(job(host.base)));
    const onHost = agent.readBytes(host.base, host.sizeBytes);
    assert.deepEqual(await agent.readMemory(device.base, device.sizeBytes), onHost);
    const good = await content.verify(job(device.base));
    assert.deepEqual(good, { bytesChecked: filled.bytesWritten, wrongBytes: 0, firstWrong: null });
    const at = slots[2] * page + 100;
    await agent.writeMemory(device.base + at, Uint8Array.of(onHost[at] ^ 1));
    agent.writeBytes(host.base + at, Uint8Array.of(onHost[at] ^ 1));
    const bad = await content.verify(job(device.base));
    assert.equal(bad.wrongBytes, 1);
    assert.deepEqual(bad, await content.verify(job(host.base)));
  });
});
