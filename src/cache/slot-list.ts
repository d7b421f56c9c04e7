const NO_SLOTS = new Int32Array(0);

/** Slots in the order in which they came, without an object for each. */
export class SlotList {
  #slots: Int32Array;
  #length = 0;

  /** @param capacity it grows beyond */
  constructor(capacity: number) {
    this.#slots = capacity === 0 ? NO_SLOTS : new Int32Array(capacity);
  }

  get length(): number {
    return this.#length;
  }

  at(index: number): number {
    return this.#slots[index] as number;
  }

  /** A view, good until the next change. */
  get slots(): Int32Array {
    return this.#slots.subarray(0, this.#length);
  }

  push(slot: number): void {
    this.#makeRoom(1);
    this.#slots[this.#length++] = slot;
  }

  append(slots: Int32Array): void {
    this.#makeRoom(slots.length);
    this.#slots.set(slots, this.#length);
    this.#length += slots.length;
  }

  #makeRoom(count: number): void {
    if (this.#length + count <= this.#slots.length) return;
    const grown = new Int32Array(Math.max(4, 2 * this.#slots.length, this.#length + count));
    grown.set(this.slots);
    this.#slots = grown;
  }
}
