// Many slices in a row over p2p, cancels mixed in: every byte right, host and device memory flat.
//   node --test test/gpu/soak.test.mjs, or SOAK_SLICES=100000 for the long one
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { test } from 'node:test';
import { createAgent } from '../../dist/agent/native-agent.js';
import {
  applyPlan,
  closePair,
  devicePairs,
  noise,
  openPair,
  pairsOf,
  poolTable,
  Random,
  randomFragments,
  sha256,
  skip,
} from './support.mjs';

const SLICES = Number(process.env.SOAK_SLICES ?? 5000);
const POOL = 8 * 2 ** 20;
/** Slices between two looks at all bytes of the receiver. */
const CHECK_EVERY = 250;
const SHAPES = 24;
const IN_FLIGHT = 16;
const MIB = 2 ** 20;

/** MiB in use on every GPU, as the driver sees it. */
function deviceMiB() {
  const listed = execFileSync('nvidia-smi', ['--query-gpu=memory.used', '--format=csv,noheader,nounits'], {
    encoding: 'utf8',
  });
  return listed.trim().split('\n').map(Number);
}

test(`${SLICES} slices of random shapes, cancels mixed in`, { skip, timeout: 900_000 }, async () => {
  const devices = devicePairs.at(-1);
  const pair = await openPair(createAgent, devices, POOL);
  try {
    const source = noise(POOL, 1);
    const expected = noise(POOL, 2).slice();
    await pair.agent.writeMemory(pair.pool.base, source);
    await pair.child.ask('write', { bytes: expected });
    const shapes = Array.from({ length: SHAPES }, (_, seed) => {
      const random = new Random(seed + 1);
      const [srcSlot, dstSlot] = [1024 + 16 * random.below(1500), 1024 + 16 * random.below(1500)];
      const fragments = randomFragments(random, srcSlot, dstSlot);
      const table = pair.agent.prepareFragments(
        pair.peer,
        poolTable(pair.pool.base, POOL, srcSlot, pair.from),
        poolTable(pair.remoteBase, POOL, dstSlot, pair.to),
        fragments,
      );
      return { srcSlot, dstSlot, fragments, table, slots: Math.floor(POOL / Math.max(srcSlot, dstSlot)) };
    });
    const random = new Random(99);
    const counts = { transferred: 0, cancelled: 0 };
    let usedAtHalf = null;
    let used = null;
    let deviceAtHalf = null;
    let again = 0;
    const flight = [];
    /** A slice that was stopped may have left some of its bytes: it is sent again before all bytes are looked at. */
    const stopped = [];
    const submit = (id, { shape, slotPairs, isCancelled }) => {
      pair.agent.submit({ id, peer: pair.peer, flow: 1, groups: [{ fragments: shape.table, slotPairs }], after: null });
      if (isCancelled) pair.agent.cancel(id);
      flight.push({ id, shape, slotPairs, isCancelled });
    };
    const settle = async () => {
      const { id, shape, slotPairs, isCancelled } = flight.shift();
      const done = await pair.log.of(id);
      assert.equal(done.drained, true);
      assert.ok(
        done.status === 'transferred' || (isCancelled && done.status === 'cancelled'),
        `${id}: ${done.status} ${done.error?.message}`,
      );
      counts[done.status]++;
      // One flow keeps its order, so that what lands last on the host copy landed last on the GPU too.
      if (done.status === 'transferred')
        applyPlan(source, expected, shape.srcSlot, shape.dstSlot, shape.fragments, slotPairs);
      else stopped.push({ shape, slotPairs, isCancelled: false });
    };
    for (let id = 1; id <= SLICES; id++) {
      const shape = shapes[random.below(SHAPES)];
      const count = 1 + random.below(Math.min(shape.slots, 64));
      const slotPairs = pairsOf(random.different(count, shape.slots), random.different(count, shape.slots));
      submit(id, { shape, slotPairs, isCancelled: random.below(5) === 0 });
      if (flight.length >= IN_FLIGHT) await settle();
      if (id % CHECK_EVERY === 0 || id === SLICES) {
        while (flight.length > 0) await settle();
        for (const slice of stopped.splice(0)) {
          submit(SLICES + ++again, slice);
          await settle();
        }
        assert.equal((await pair.child.ask('digest')).sha256, sha256(expected), `after ${id} slices`);
        globalThis.gc?.();
        used = process.memoryUsage().rss;
        if (id >= SLICES / 2 && usedAtHalf === null) {
          usedAtHalf = used;
          deviceAtHalf = deviceMiB();
        }
      }
    }
    console.log(
      `# ${JSON.stringify({ ...counts, rssMiB: Math.round(used / MIB), rssAtHalfMiB: Math.round(usedAtHalf / MIB) })}`,
    );
    assert.ok(counts.cancelled > 0 && counts.transferred > SLICES / 2);
    assert.deepEqual(deviceMiB(), deviceAtHalf);
    assert.ok(used - usedAtHalf < 64 * MIB, `resident memory grew from ${usedAtHalf} to ${used}`);
  } finally {
    assert.equal((await closePair(pair)).drained, true);
  }
});
