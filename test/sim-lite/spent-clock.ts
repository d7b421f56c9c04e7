import { FakeClock } from './fake-clock.js';

/** Each look at it takes a millisecond: a portion ends after one unit of work. */
export class SpentClock extends FakeClock {
  #spentMs = 0;

  override now(): number {
    this.#spentMs += 1;
    return super.now() + this.#spentMs;
  }
}

/** More than a portion. */
const LOOK_MS = 0.6;

/**
 * From now on each look at this clock takes as long as a portion may, so that whoever works in portions yields after each unit. Timers do not
 * hear of that time.
 * @returns ends it; the clock does not go back
 */
export function spendPortions(clock: FakeClock): () => void {
  const { now } = clock;
  let spentMs = 0;
  let lookMs = LOOK_MS;
  clock.now = () => {
    spentMs += lookMs;
    return now.call(clock) + spentMs;
  };
  return () => {
    lookMs = 0;
  };
}
