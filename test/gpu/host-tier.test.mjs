// Pages of a GPU that are saved to host memory and brought back, and slices that wait for it. Run by `node --test` on a GPU host.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createAgent } from '../../dist/agent/native-agent.js';
import { NativePageCopier } from '../../dist/agent/native-page-copier.js';
import { PoolPageMover } from '../../dist/cache/pool-page-mover.js';
import { closePair, fragment, noise, openPair, poolTable, sha256, skip, withLimit } from './support.mjs';

const KIB = 1024;
const PAGE = 64 * KIB;
const SLOTS = 32;
const HOST_SLOTS = 8;

/** One layer group whose pages are the slots of one device pool. */
function groupOf(base, device) {
  const table = poolTable(base, SLOTS * PAGE, PAGE, device);
  const layers = [{ layer: 0, pool: 0, offset: 0, bytes: PAGE }];
  const view = { role: 'kv', dtype: 'bfloat16', layout: 'HND', headsPerRank: 1, headDim: 1, layers };
  const group = { kind: 'attention', windowSize: null, tokensPerBlock: 32, slotCount: SLOTS };
  const layerGroups = [{ ...group, layers: [0], hostSlotCount: HOST_SLOTS }];
  return { pageTable: { ...table, layerGroups: [{ ...group, views: [view] }] }, layerGroups };
}

async function openMover(agent, base, device) {
  const mover = new PoolPageMover();
  await mover.open({ agent, copier: new NativePageCopier(), ...groupOf(base, device) });
  return mover;
}

test('pages go to host memory and come back, in the order of the moves', { skip }, async () => {
  const agent = await createAgent({ kind: 'host', name: 'tier', device: 0 });
  try {
    const pool = await agent.allocatePool({ sizeBytes: SLOTS * PAGE, device: 0 });
    const bytes = noise(SLOTS * PAGE, 11);
    await agent.writeMemory(pool.base, bytes);
    const mover = await openMover(agent, pool.base, 0);
    const page = (slot) => bytes.subarray(slot * PAGE, (slot + 1) * PAGE);
    const read = (slot) => agent.readMemory(pool.base + slot * PAGE, PAGE);
    // Saved, overwritten by another saved page, and copied on: one batch, then one that rests on it.
    mover.move([
      { kind: 'offload', group: 0, slot: 3, hostSlot: 0 },
      { kind: 'offload', group: 0, slot: 4, hostSlot: 1 },
      { kind: 'onboard', group: 0, hostSlot: 1, slot: 3, tokenCount: 32 },
      { kind: 'copy', group: 0, fromSlot: 3, toSlot: 9, tokenCount: 8 },
    ]);
    const { event, done } = mover.move([{ kind: 'onboard', group: 0, hostSlot: 0, slot: 20, tokenCount: 32 }]);
    assert.notEqual(event, null);
    await withLimit(done, 'the moves did not end');
    assert.deepEqual(await read(3), page(4).slice());
    assert.deepEqual(await read(9), page(4).slice());
    assert.deepEqual(await read(20), page(3).slice());
    assert.deepEqual(await read(5), page(5).slice());
    // Many at once, on a stream of the copier's own: what it says is over is over.
    for (let round = 0; round < 50; round++) {
      const slot = 10 + (round % 4);
      const out = mover.move([{ kind: 'offload', group: 0, slot, hostSlot: round % HOST_SLOTS }]);
      const back = mover.move([{ kind: 'onboard', group: 0, hostSlot: round % HOST_SLOTS, slot: 30, tokenCount: 32 }]);
      await withLimit(Promise.all([out.done, back.done]), `round ${round} did not end`);
      assert.deepEqual(await read(30), page(slot).slice());
    }
  } finally {
    assert.equal((await agent.close(5000)).drained, true);
  }
});

test('an early prefix waits for its own moves, and no other slice waits with it', { skip }, async () => {
  const pair = await openPair(createAgent, [0, 0], SLOTS * PAGE);
  try {
    const { agent, peer, pool } = pair;
    const bytes = noise(SLOTS * PAGE, 12);
    await agent.writeMemory(pool.base, bytes);
    await pair.child.ask('write', { bytes: new Uint8Array(SLOTS * PAGE) });
    const whole = [fragment({ bytes: PAGE })];
    const remote = poolTable(pair.remoteBase, SLOTS * PAGE, PAGE, pair.to);
    const table = agent.prepareFragments(peer, poolTable(pool.base, SLOTS * PAGE, PAGE, pair.from), remote, whole);
    const slice = (id, slot, after) =>
      agent.submit({ id, peer, flow: id, after, groups: [{ fragments: table, slotPairs: Int32Array.of(slot, slot) }] });
    const mover = await openMover(agent, pool.base, 0);
    await mover.move([{ kind: 'offload', group: 0, slot: 2, hostSlot: 5 }]).done;
    const never = agent.createEvent();
    slice(1, 1, never);
    const onboard = mover.move([{ kind: 'onboard', group: 0, hostSlot: 5, slot: 7, tokenCount: 32 }]);
    slice(2, 7, onboard.event);
    slice(3, 3, null);
    for (const id of [3, 2]) assert.equal((await pair.log.of(id)).status, 'transferred');
    agent.cancel(1);
    const cancelled = await pair.log.of(1);
    assert.deepEqual([cancelled.status, cancelled.drained, cancelled.postedAtMs], ['cancelled', true, null]);
    const expected = new Uint8Array(SLOTS * PAGE);
    expected.set(bytes.subarray(3 * PAGE, 4 * PAGE), 3 * PAGE);
    expected.set(bytes.subarray(2 * PAGE, 3 * PAGE), 7 * PAGE);
    assert.equal((await pair.child.ask('digest')).sha256, sha256(expected));
  } finally {
    assert.equal((await closePair(pair)).drained, true);
  }
});
