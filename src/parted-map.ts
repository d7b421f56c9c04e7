/** Of 10,000 entries each part has some 160; of a million, as many as one map may have. */
export const PARTS = 64;

/**
 * Role: a map of what is live, of which there may be tens of thousands.
 * Why in parts: whenever a map is full of entries that came and went, it is made anew, in one turn of the event loop: of 10,000 entries that takes
 *   half a millisecond to one, and maps that hold something of the same requests are full in the same turn. Parts are small, and full at different times.
 * Ordering: entries are met part by part, in each in the order in which they came. One that goes meanwhile is not met any more.
 */
export class PartedMap<Key extends number | bigint, Value> {
  readonly #parts: (Map<Key, Value> | undefined)[] = new Array(PARTS).fill(undefined);
  #size = 0;

  get size(): number {
    return this.#size;
  }

  get(key: Key): Value | undefined {
    return this.#parts[partOf(key)]?.get(key);
  }

  has(key: Key): boolean {
    return this.#parts[partOf(key)]?.has(key) ?? false;
  }

  set(key: Key, value: Value): void {
    const index = partOf(key);
    let part = this.#parts[index];
    if (part === undefined) {
      part = new Map();
      this.#parts[index] = part;
    }
    const before = part.size;
    part.set(key, value);
    this.#size += part.size - before;
  }

  delete(key: Key): boolean {
    const isGone = this.#parts[partOf(key)]?.delete(key) ?? false;
    if (isGone) this.#size -= 1;
    return isGone;
  }

  *values(): Generator<Value, void> {
    for (const part of this.#parts) if (part !== undefined) yield* part.values();
  }

  *[Symbol.iterator](): Generator<[Key, Value], void> {
    for (const part of this.#parts) if (part !== undefined) yield* part;
  }
}

/** As good as random, also of keys that count up: parts that grew evenly would all be full at the same time. */
export function partOf(key: number | bigint): number {
  const number = typeof key === 'bigint' ? Number(BigInt.asUintN(52, key)) : key;
  let mixed = (number % 0x1_0000_0000) ^ (number / 0x1_0000_0000);
  mixed = Math.imul(mixed ^ (mixed >>> 16), 0x85ebca6b);
  mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
  return (mixed ^ (mixed >>> 16)) >>> 26;
}
