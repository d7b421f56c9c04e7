const NONE = -1;

/** Slots in the order they were added; add, remove from anywhere and take the oldest, each O(1). A slot is in it at most once. */
export class SlotQueue {
  readonly #next: Int32Array;
  readonly #previous: Int32Array;
  #oldest = NONE;
  #newest = NONE;
  #size = 0;

  constructor(slotCount: number) {
    this.#next = new Int32Array(slotCount).fill(NONE);
    this.#previous = new Int32Array(slotCount).fill(NONE);
  }

  get size(): number {
    return this.#size;
  }

  add(slot: number): void {
    this.#previous[slot] = this.#newest;
    this.#next[slot] = NONE;
    if (this.#newest === NONE) this.#oldest = slot;
    else this.#next[this.#newest] = slot;
    this.#newest = slot;
    this.#size++;
  }

  /** `slot` must be in the queue. */
  remove(slot: number): void {
    const next = this.#next[slot] as number;
    const previous = this.#previous[slot] as number;
    if (previous === NONE) this.#oldest = next;
    else this.#next[previous] = next;
    if (next === NONE) this.#newest = previous;
    else this.#previous[next] = previous;
    this.#size--;
  }

  takeOldest(): number | null {
    const slot = this.#oldest;
    if (slot === NONE) return null;
    this.remove(slot);
    return slot;
  }
}
