// Many slices in a row over each path, some behind events, cancels mixed in: every byte right, host and device memory flat.
//   node --test test/gpu/soak.test.mjs, or SOAK_SLICES=100000 for the long one; SOAK_JSON=FILE keeps what was seen
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { after, test } from 'node:test';
import { createAgent } from '../../dist/agent/native-agent.js';
import { POOL_BYTES, Soak } from './soak-run.mjs';
import { closePair, devicePairs, openPair, skip, skipNixl } from './support.mjs';

const MIB = 2 ** 20;
const SLICES = Number(process.env.SOAK_SLICES ?? 5000);
/** From the middle of the run to its end: of the heap after a collection, and of all that is resident. */
const HEAP_GROWTH_BYTES = 2 * MIB;
const GROWTH_BYTES = 16 * MIB;
/** NIXL pays per run and bounce per slice: a fifth takes as long as all of p2p. */
const PATHS = [
  { path: 'p2p', kind: 'host', slices: SLICES, skip },
  { path: 'rdma', kind: 'nixl', slices: Math.ceil(SLICES / 5), skip: skipNixl },
  {
    path: 'bounce',
    kind: 'nixl',
    slices: Math.ceil(SLICES / 5),
    bounce: { sizeBytes: 32 * MIB, maxChunkSize: 4 * MIB, requestTimeoutMs: 5000 },
    skip: skipNixl,
  },
];

const seen = [];
after(() => {
  if (process.env.SOAK_JSON === undefined) return;
  const sum = (key) => seen.reduce((total, path) => total + (path[key] ?? 0), 0);
  const totals = { slices: sum('slices'), cancelled: sum('cancelled'), wrongBytes: sum('wrongBytes') };
  writeFileSync(process.env.SOAK_JSON, `${JSON.stringify({ bench: 'soak', ...totals, paths: seen }, null, 1)}\n`);
});

for (const { path, slices, skip: why, ...options } of PATHS) {
  test(`${slices} slices of random shapes over ${path}, cancels mixed in`, {
    skip: why,
    timeout: 900_000,
  }, async () => {
    const pair = await openPair(createAgent, devicePairs.at(-1), POOL_BYTES, { path, ...options });
    const soak = await Soak.open(pair, path);
    try {
      await soak.run(slices);
    } catch (error) {
      soak.tally.error = error.message;
      throw error;
    } finally {
      seen.push(soak.tally);
      console.log(`# ${JSON.stringify(soak.tally)}`);
      assert.equal((await closePair(pair)).drained, true);
    }
    const { tally } = soak;
    assert.equal(tally.wrongBytes, 0);
    assert.ok(tally.cancelled > 0 && tally.transferred > slices / 2 && tally.behindEvents > 0, JSON.stringify(tally));
    const { half, last } = tally.memory;
    assert.deepEqual(last.deviceMiB, half.deviceMiB, 'device memory grew');
    const heap = last.heapBytes - half.heapBytes;
    assert.ok(heap < HEAP_GROWTH_BYTES, `the writer's heap grew by ${heap} bytes`);
    for (const who of ['writer', 'receiver']) {
      const grown = last.rssBytes[who] - half.rssBytes[who];
      assert.ok(grown < GROWTH_BYTES, `the ${who}'s resident memory grew by ${grown} bytes`);
    }
  });
}
