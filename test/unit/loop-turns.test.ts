import { afterEach, describe, expect, it, vi } from 'vitest';
import { SystemClock } from '../../src/clock.js';
import { TurnBudget } from '../../src/turn-budget.js';
import { TurnLog, workMs } from '../support/turn-log.js';

afterEach(() => void vi.restoreAllMocks());

describe('those who yield to the event loop', () => {
  it('do not add up: what comes too late in one turn goes on in the next, in order', async () => {
    const clock = new SystemClock();
    const log = new TurnLog<string>();
    const names = ['a', 'b', 'c', 'd'];
    await Promise.all(
      names.map(async (name) => {
        for (let portion = 1; portion <= 3; portion++) {
          await clock.nextTurn();
          log.done(`${name}${portion}`);
          workMs(1.5);
        }
      }),
    );
    log.stop();
    expect(log.mostInATurn).toBe(1);
    const order = [1, 2, 3].flatMap((portion) => names.map((name) => `${name}${portion}`));
    expect(log.doneIn.map(({ what }) => what)).toEqual(order);
  });

  it('go on together when all of it is little', async () => {
    // Nothing else on the machine takes any time.
    vi.spyOn(performance, 'now').mockReturnValue(0);
    const clock = new SystemClock();
    const log = new TurnLog<number>();
    await Promise.all(
      Array.from({ length: 500 }, async (_, index) => {
        await clock.nextTurn();
        log.done(index);
      }),
    );
    log.stop();
    expect(log.doneIn.map(({ what }) => what)).toEqual(Array.from({ length: 500 }, (_, index) => index));
    expect(log.turn).toBeLessThanOrEqual(1);
  });

  it('let timers and sockets have their turn between two portions', async () => {
    const clock = new SystemClock();
    const turns = new TurnBudget(clock);
    let ticks = 0;
    const timer = setInterval(() => {
      ticks += 1;
    }, 1);
    // Each takes longer than a portion, and than the timer.
    for (let unit = 0; unit < 20; unit++) {
      workMs(2.5);
      if (turns.isSpent()) await turns.nextTurn();
    }
    clearInterval(timer);
    expect(ticks).toBeGreaterThanOrEqual(19);
  });
});
