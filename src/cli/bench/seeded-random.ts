const MASK_64 = (1n << 64n) - 1n;

/** splitmix64's finaliser: spreads related seeds (run seed, request number) over the whole 64-bit space. */
export function mixSeed(...parts: readonly (number | bigint)[]): bigint {
  let state = 0x9e3779b97f4a7c15n;
  for (const part of parts) {
    state = (state + BigInt(part) + 0x9e3779b97f4a7c15n) & MASK_64;
    state = ((state ^ (state >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK_64;
    state = ((state ^ (state >> 27n)) * 0x94d049bb133111ebn) & MASK_64;
    state ^= state >> 31n;
  }
  return state;
}

/** xorshift32, good enough for token ids and shuffles, and the same on every machine. */
export class SeededRandom {
  #state: number;

  constructor(seed: bigint) {
    // The generator cannot leave 0.
    this.#state = Number(seed & 0xffffffffn) || 0x6d2b79f5;
  }

  nextUint32(): number {
    let state = this.#state;
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    this.#state = state >>> 0;
    return this.#state;
  }

  /** A whole number in `[0, bound)`. */
  below(bound: number): number {
    return this.nextUint32() % bound;
  }
}

/** Fisher-Yates, in place. */
export function shuffle(values: Int32Array, random: SeededRandom): Int32Array {
  for (let last = values.length - 1; last > 0; last--) {
    const other = random.below(last + 1);
    const kept = values[last] ?? 0;
    values[last] = values[other] ?? 0;
    values[other] = kept;
  }
  return values;
}
