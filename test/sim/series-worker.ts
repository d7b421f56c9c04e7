import { inMacrotask } from './core/microtasks.js';
import { randomPlan } from './random-plan.js';
import { runPlan } from './run-plan.js';

/** Seeds `[from, to)`. */
interface SeedRange {
  readonly from: number;
  readonly to: number;
}

// One process of a series: lives the ranges that it is sent, until nobody sends any.
// Thousands of typed errors are made and thrown away; a failing seed is replayed with its stacks.
Error.stackTraceLimit = 0;
process.on('message', ({ from, to }: SeedRange) => {
  void inMacrotask(() =>
    Array.from({ length: to - from }, (_, index) => {
      const { seed, lives, completed, events, hash, violations } = runPlan(randomPlan(from + index));
      return { seed, lives, completed, events, hash, broken: violations[0] ?? null };
    }),
  ).then((runs) => {
    const { user, system } = process.cpuUsage();
    process.send?.({ runs, cpuUs: user + system });
  });
});
