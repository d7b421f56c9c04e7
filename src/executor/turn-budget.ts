import type { Clock } from '../clock.js';

/** Work of one kind that the loop does before it lets others have their turn. */
const PORTION_MS = 2;
/** Units of work between two looks at the clock. */
const UNITS_PER_LOOK = 32;

/** Role: cuts long work into portions, so that thousands of requests in one step do not hold up the event loop. */
export class TurnBudget {
  readonly #clock: Clock;
  #sinceMs: number;
  #units = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#sinceMs = clock.now();
  }

  /** Called once per unit of work: true when `nextTurn` should be awaited now. */
  isSpent(): boolean {
    this.#units += 1;
    return this.#units % UNITS_PER_LOOK === 0 && this.#clock.now() - this.#sinceMs > PORTION_MS;
  }

  async nextTurn(): Promise<void> {
    await this.#clock.nextTurn();
    this.#sinceMs = this.#clock.now();
  }
}
