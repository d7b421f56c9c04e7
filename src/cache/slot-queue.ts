const NONE = -1;
/** Of each slot, side by side: the one after it, and the one before it. */
const LINKS = 2;

/** Slots in the order they were added; add, remove from anywhere and take the oldest, each O(1). A slot is in it at most once. */
export class SlotQueue {
  readonly #links: Int32Array;
  #oldest = NONE;
  #newest = NONE;
  #size = 0;

  constructor(slotCount: number) {
    this.#links = new Int32Array(slotCount * LINKS).fill(NONE);
  }

  get size(): number {
    return this.#size;
  }

  add(slot: number): void {
    this.#links[slot * LINKS + 1] = this.#newest;
    this.#links[slot * LINKS] = NONE;
    if (this.#newest === NONE) this.#oldest = slot;
    else this.#links[this.#newest * LINKS] = slot;
    this.#newest = slot;
    this.#size++;
  }

  /** `slot` must be in the queue. */
  remove(slot: number): void {
    const next = this.#links[slot * LINKS] as number;
    const previous = this.#links[slot * LINKS + 1] as number;
    if (previous === NONE) this.#oldest = next;
    else this.#links[previous * LINKS] = next;
    if (next === NONE) this.#newest = previous;
    else this.#links[next * LINKS + 1] = previous;
    this.#size--;
  }

  takeOldest(): number | null {
    const slot = this.#oldest;
    if (slot === NONE) return null;
    this.remove(slot);
    return slot;
  }
}
