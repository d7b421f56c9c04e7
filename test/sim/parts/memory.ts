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
    const region = this.#regionOf(address, sizeBytes);
    if (region === null) return null;
    const begin = (address - region.base) / 4;
    return region.words.subarray(begin, begin + sizeBytes / 4);
  }

  /**
   * As `to.words(toAddress, sizeBytes)?.set(words(address, sizeBytes))`, without views of them.
   * @returns false when either is not memory of its rank
   */
  copy(address: number, to: Memory, toAddress: number, sizeBytes: number): boolean {
    const [source, destination] = [this.#regionOf(address, sizeBytes), to.#regionOf(toAddress, sizeBytes)];
    if (source === null || destination === null) return false;
    const [begin, at] = [(address - source.base) / 4, (toAddress - destination.base) / 4];
    for (let word = 0; word < sizeBytes / 4; word++)
      destination.words[at + word] = source.words[begin + word] as number;
    return true;
  }

  /** As `words(address, sizeBytes)?.fill(POISON)`, without a view of them. */
  poison(address: number, sizeBytes: number): void {
    const region = this.#regionOf(address, sizeBytes);
    if (region === null) return;
    const begin = (address - region.base) / 4;
    region.words.fill(POISON, begin, begin + sizeBytes / 4);
  }

  #regionOf(address: number, sizeBytes: number): Region | null {
    for (const region of this.#regions) {
      const begin = (address - region.base) / 4;
      if (begin >= 0 && begin + sizeBytes / 4 <= region.words.length) return region;
    }
    return null;
  }

  has(address: number, sizeBytes: number): boolean {
    return this.#regionOf(address, sizeBytes) !== null;
  }

  bytes(address: number, sizeBytes: number): Uint8Array {
    for (const { base, words } of this.#regions)
      if (address >= base && address + sizeBytes <= base + words.byteLength)
        return new Uint8Array(words.buffer, address - base, sizeBytes);
    throw new RangeError(`[${address}, +${sizeBytes}) is not memory of this rank`);
  }
}
