/** Slots in the order in which they came, without an object for each. */
export class SlotList {
  #slots: Int32Array;
  #length = 0;

  /** @param capacity it grows beyond */
  constructor(capacity: number) {
    this.#slots = new Int32Array(Math.max(4, capacity));
  }

  get length(): number {
    return this.#length;
  }

  at(index: number): number {
    return this.#slots[index] as number;
  }

  push(slot: number): void {
    if (this.#length === this.#slots.length) {
      const grown = new Int32Array(2 * this.#length);
      grown.set(this.#slots);
      this.#slots = grown;
    }
    this.#slots[this.#length++] = slot;
  }
}
