import { expect, it } from 'vitest';
import { measureObservers } from '../../../src/cli/bench/dispatch/observe-rows.js';

it('every variant runs transfers to their end, and a hook that nobody listens to costs next to nothing', async () => {
  const { rows, hookNs, offShare } = await measureObservers(3, { warmUps: 2, counts: 1 });
  expect(rows.map(({ variant }) => variant)).toEqual(['off', 'detached', 'logs', 'metrics', 'tracing', 'all']);
  for (const { sliceUs, slicesPerRequest } of rows) {
    expect(sliceUs.min).toBeGreaterThan(0);
    expect(sliceUs.max).toBeLessThan(1e6);
    expect(slicesPerRequest).toBe(16);
  }
  // A collection in the middle makes a count 0; of these some must be one.
  expect(Math.max(...rows.map(({ sliceBytes }) => sliceBytes))).toBeGreaterThan(1000);
  // Also with other work on the machine, a comparison is far from a slice.
  expect(hookNs).toBeLessThan(1000);
  expect(offShare).toBeLessThan(0.05);
});
