/** Small seeded generator (mulberry32): the same seed gives the same order of slots, so that a failing run replays. */
export class SeededRandom {
  #state: number;

  constructor(seed: number) {
    // Signed: such a number is kept in its field, one above 2^31 as an object of its own.
    this.#state = seed | 0;
  }

  /** Uniform enough in `[0, bound)`; bound is positive and below 2^32. */
  below(bound: number): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0;
    let mixed = this.#state;
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return Math.floor((((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32) * bound);
  }
}
