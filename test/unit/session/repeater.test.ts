import { describe, expect, it } from 'vitest';
import { REPEAT_FIRST_MS, Repeater } from '../../../src/session/repeater.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { spendPortions } from '../../sim-lite/spent-clock.js';

describe('repeats that are due together', () => {
  it('take several timers when there are many, in their order, each once', () => {
    const clock = new FakeClock();
    const repeater = new Repeater<number>(clock);
    const sent: number[] = [];
    let most = 0;
    const timer = clock.setTimer.bind(clock);
    clock.setTimer = (delayMs, callback) =>
      timer(delayMs, () => {
        const before = sent.length;
        callback();
        most = Math.max(most, sent.length - before);
      });
    const keys = Array.from({ length: 50 }, (_, key) => key);
    for (const key of keys) repeater.start(key, () => void sent.push(key));
    expect(sent.splice(0)).toEqual(keys);
    const stop = spendPortions(clock);
    clock.advance(REPEAT_FIRST_MS);
    stop();
    expect(sent).toEqual(keys);
    expect(most).toBe(1);
    repeater.stopAll();
    expect(clock.pendingTimerCount).toBe(0);
  });
});
