import { expect, it } from 'vitest';
import { measureObservers } from '../../../src/cli/bench/dispatch/observe-rows.js';

it('every variant runs transfers to their end, and the hooks of a slice are set against what it costs', async () => {
  const { rows, hookNs, offShare } = await measureObservers(3, { warmUps: 2, counts: 5 });
  expect(rows.map(({ variant }) => variant)).toEqual(['off', 'detached', 'logs', 'metrics', 'tracing', 'all']);
  for (const { sliceUs, slicesPerRequest } of rows) {
    expect(sliceUs.min).toBeGreaterThan(0);
    expect(sliceUs.max).toBeGreaterThanOrEqual(sliceUs.p50);
    expect(slicesPerRequest).toBe(16);
  }
  // A collection in the middle of a count takes from it; of all of them some are without.
  expect(Math.max(...rows.map(({ sliceBytes }) => sliceBytes))).toBeGreaterThan(1000);
  expect(hookNs).toBeGreaterThan(0);
  expect(offShare).toBeCloseTo((4 * hookNs) / 1e3 / (rows[0]?.sliceUs.p50 ?? 0), 12);
});
