/** What a page holds while nobody owns it. */
export const POISON = 0xa5a5_a5a5;

interface Region {
  readonly base: number;
  readonly words: Uint32Array;
}

/** Role: the registered memory of one simulated rank, word by word, at addresses that no other rank has. */
export class Memory {
  readonly #regions: Region[] = [];
  static #nextBase = 0x10_0000;

  /** Filled with POISON. */
  allocate(sizeBytes: number): number {
    const base = Memory.#nextBase;
    Memory.#nextBase += Math.ceil(sizeBytes / 4096) * 4096 + 0x1_0000;
    this.#regions.push({ base, words: new Uint32Array(Math.ceil(sizeBytes / 4)).fill(POISON) });
    return base;
  }

  /** Addresses start again, so that a run does not depend on those before it. */
  static reset(): void {
    Memory.#nextBase = 0x10_0000;
  }

  /** The words of `[address, address + sizeBytes)`, live; null when that is not memory of this rank. */
  words(address: number, sizeBytes: number): Uint32Array | null {
    for (const { base, words } of this.#regions) {
      const begin = (address - base) / 4;
      if (begin >= 0 && begin + sizeBytes / 4 <= words.length) return words.subarray(begin, begin + sizeBytes / 4);
    }
    return null;
  }

  /** As `words(address, sizeBytes)?.fill(POISON)`, without a view of them. */
  poison(address: number, sizeBytes: number): void {
    for (const { base, words } of this.#regions) {
      const begin = (address - base) / 4;
      if (begin < 0 || begin + sizeBytes / 4 > words.length) continue;
      words.fill(POISON, begin, begin + sizeBytes / 4);
      return;
    }
  }

  bytes(address: number, sizeBytes: number): Uint8Array {
    for (const { base, words } of this.#regions)
      if (address >= base && address + sizeBytes <= base + words.byteLength)
        return new Uint8Array(words.buffer, address - base, sizeBytes);
    throw new RangeError(`[${address}, +${sizeBytes}) is not memory of this rank`);
  }
}
