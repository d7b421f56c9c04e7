import { expect, it } from 'vitest';
import { SystemClock } from '../../src/clock.js';
import { inPortions } from '../../src/in-portions.js';
import { TurnBudget } from '../../src/turn-budget.js';
import { TurnLog, workMs } from '../support/turn-log.js';

it('portions end by what promises do because of each unit, too, not by the unit alone', async () => {
  const log = new TurnLog<number>();
  let unit = 0;
  await inPortions(new TurnBudget(new SystemClock()), () => {
    const mine = ++unit;
    if (mine > 40) return false;
    void Promise.resolve()
      .then(() => {})
      .then(() => {
        workMs(0.2);
        log.done(mine);
      });
    return true;
  });
  log.stop();
  expect(log.doneIn.map(({ what }) => what)).toEqual(Array.from({ length: 40 }, (_, index) => index + 1));
  // Half a millisecond, and what the last one of it takes.
  expect(log.mostInATurn).toBeLessThanOrEqual(4);
});

it('what costs next to nothing is done together', async () => {
  const log = new TurnLog<number>();
  let left = 20;
  const work = inPortions(new TurnBudget(new SystemClock()), () => {
    log.done(left);
    return --left > 0;
  });
  expect(left).toBe(19);
  await work;
  log.stop();
  expect(left).toBe(0);
  expect(log.mostInATurn).toBeGreaterThan(1);
});
