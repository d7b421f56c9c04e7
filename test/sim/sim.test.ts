import { describe, expect, it } from 'vitest';
import { inMacrotask } from './core/microtasks.js';
import { hunt } from './hunt.js';
import type { Plan } from './plan.js';
import { randomPlan } from './random-plan.js';
import { runPlan } from './run-plan.js';
import { shrink } from './shrink.js';

/** Enough for seconds; `npm run sim -- --runs N` goes on. */
const LIVES = 6000;

describe('the simulator', () => {
  it(`lives ${LIVES} requests under faults and breaks no rule`, async () => {
    const { failure, lives, completed } = await inMacrotask(() => hunt(1, LIVES));
    expect(failure?.violations ?? [], `seed ${failure?.seed}: npm run sim -- --seed ${failure?.seed} --shrink`).toEqual(
      [],
    );
    expect(lives).toBeGreaterThanOrEqual(LIVES);
    // Most lives are healthy: a cluster that only fails would break no rule either.
    expect(completed / lives).toBeGreaterThan(0.6);
  }, 120_000);

  it.each([895, 1128, 13169])('breaks no rule in seed %i: a cancel beside a note that is under way', async (seed) => {
    expect((await inMacrotask(() => runPlan(randomPlan(seed)))).violations).toEqual([]);
  });

  it.each([3, 17, 101, 4242])('replays seed %i exactly', async (seed) => {
    const told = await inMacrotask(() => runPlan(randomPlan(seed), { tell: true }));
    const again = await inMacrotask(() => runPlan(randomPlan(seed)));
    expect(again.hash).toBe(told.hash);
    expect(told.story.length).toBeGreaterThan(100);
    const other = await inMacrotask(() => runPlan(randomPlan(seed + 1)));
    expect(other.hash).not.toBe(told.hash);
  });

  it('shrinks a failing plan to what it takes', () => {
    const plan = randomPlan(5);
    const needed = plan.requests.slice(3, 5).map(({ number }) => number);
    const run = ({ requests }: Plan): readonly { rule: string }[] =>
      needed.every((number) => requests.some((item) => item.number === number)) ? [{ rule: 'made up' }] : [];
    const smaller = shrink(plan, run);
    expect(smaller?.plan.faults).toEqual([]);
    expect(smaller?.plan.requests.map(({ number }) => number)).toEqual(needed);
    expect(shrink(plan, () => [])).toBeNull();
  });
});
