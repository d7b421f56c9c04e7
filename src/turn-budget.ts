import type { Clock } from './clock.js';

/** Work that is done before others have their turn. */
const PORTION_MS = 0.5;
/** Small units of work between two looks at the clock. */
const UNITS_PER_LOOK = 32;

/**
 * Role: cuts long work into portions, so that thousands of requests in one step, or of frames that came together, do not hold up the event loop.
 * Why one for all stages of a loop: each would start to count anew, and the portions of those that follow one another would add up.
 */
export class TurnBudget {
  readonly #clock: Clock;
  #sinceMs: number;
  #smallUnits = 0;
  /** One function for all turns. */
  readonly #begin = (): void => {
    this.#sinceMs = this.#clock.now();
  };

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#sinceMs = clock.now();
  }

  /** One that begins now, for work that begins now: this one counts since the last turn that it waited for, however long ago that was. */
  begun(): TurnBudget {
    return new TurnBudget(this.#clock);
  }

  /** Called once per unit of work that is worth a look at the clock: true when `nextTurn` should be awaited now. */
  isSpent(): boolean {
    return this.#clock.now() - this.#sinceMs > PORTION_MS;
  }

  /** The same for units that take a few microseconds: looks now and then. */
  isSpentBySmall(): boolean {
    this.#smallUnits += 1;
    return this.#smallUnits % UNITS_PER_LOOK === 0 && this.isSpent();
  }

  nextTurn(): Promise<void> {
    return this.#clock.nextTurn().then(this.#begin);
  }
}
