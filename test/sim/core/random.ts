/** Deterministic numbers (mulberry32). Every part of the simulator has its own stream, so that removing one fault leaves the rest as it was. */
export class Random {
  #state: number;

  constructor(seed: number, ...path: readonly number[]) {
    let state = seed >>> 0;
    for (const part of path) state = mix32(state ^ Math.imul(part + 1, 0x9e3779b1));
    this.#state = state;
  }

  /** In [0, 1). */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), this.#state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  }

  /** In [0, n). */
  below(n: number): number {
    return Math.floor(this.next() * n);
  }

  /** Whole, in [low, high]. */
  between(low: number, high: number): number {
    return low + this.below(high - low + 1);
  }

  /** In [low, high). */
  real(low: number, high: number): number {
    return low + this.next() * (high - low);
  }

  chance(probability: number): boolean {
    return this.next() < probability;
  }

  pick<T>(items: readonly T[]): T {
    return items[this.below(items.length)] as T;
  }
}

/** A 32-bit finalizer (murmur3). */
export function mix32(value: number): number {
  let h = value >>> 0;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}
