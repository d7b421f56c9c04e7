import type { Clock } from '../clock.js';

/** Work of one kind that the loop does before it lets others have their turn. */
const PORTION_MS = 2;
/** Units of work between two looks at the clock. */
const UNITS_PER_LOOK = 32;

/** Role: cuts long work into portions, so that thousands of requests in one step do not hold up the event loop. */
export class TurnBudget {
  readonly #clock: Clock;
  readonly #unitsPerLook: number;
  #sinceMs: number;
  #units = 0;

  /** @param unitsPerLook 1 for units that take long enough to be worth a look at the clock each. Default 32 */
  constructor(clock: Clock, unitsPerLook = UNITS_PER_LOOK) {
    this.#clock = clock;
    this.#unitsPerLook = unitsPerLook;
    this.#sinceMs = clock.now();
  }

  /** Called once per unit of work: true when `nextTurn` should be awaited now. */
  isSpent(): boolean {
    this.#units += 1;
    return this.#units % this.#unitsPerLook === 0 && this.#clock.now() - this.#sinceMs > PORTION_MS;
  }

  async nextTurn(): Promise<void> {
    await this.#clock.nextTurn();
    this.#sinceMs = this.#clock.now();
  }
}
