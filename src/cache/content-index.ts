/** Entries of one part on average: to make a map of so many larger takes well below a millisecond, one of a million 50. */
const PART_ENTRIES = 4096;
/** Characters that choose the part: the last ones, in which names that count up differ. */
const LOOKED_AT = 4;

/**
 * Role: which slot holds the content of a name.
 * Why in parts: a map grows by copying itself, in one turn of the event loop. Names are the caller's: however they fall on the parts, each
 *   is found.
 */
export class ContentIndex {
  readonly #parts: readonly Map<string, number>[];
  readonly #mask: number;
  #size = 0;

  /** @param capacity most entries there can be */
  constructor(capacity: number) {
    const parts = 1 << Math.max(0, Math.ceil(Math.log2(Math.max(1, capacity) / PART_ENTRIES)));
    this.#mask = parts - 1;
    this.#parts = Array.from({ length: parts }, () => new Map<string, number>());
  }

  get size(): number {
    return this.#size;
  }

  find(hash: string): number | null {
    return this.#partOf(hash).get(hash) ?? null;
  }

  /** @returns false, and nothing changes, when there is one of that name */
  add(hash: string, slot: number): boolean {
    const part = this.#partOf(hash);
    if (part.has(hash)) return false;
    part.set(hash, slot);
    this.#size += 1;
    return true;
  }

  remove(hash: string): void {
    if (this.#partOf(hash).delete(hash)) this.#size -= 1;
  }

  #partOf(hash: string): Map<string, number> {
    let mixed = 0;
    if (this.#mask > 0) {
      for (let at = Math.max(0, hash.length - LOOKED_AT); at < hash.length; at++)
        mixed = Math.imul(mixed ^ hash.charCodeAt(at), 0x9e3779b1);
      mixed ^= mixed >>> 15;
    }
    return this.#parts[mixed & this.#mask] as Map<string, number>;
  }
}
