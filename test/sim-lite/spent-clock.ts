import { FakeClock } from './fake-clock.js';

/** Each look at it takes a millisecond: a portion ends after one unit of work. */
export class SpentClock extends FakeClock {
  #spentMs = 0;

  override now(): number {
    this.#spentMs += 1;
    return super.now() + this.#spentMs;
  }
}
