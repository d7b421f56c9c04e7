const NONE = -1;

/** Where the queue keeps the slot after each one, and the one before it: `numbers[slot * stride + at]` and the number behind it. */
export interface QueueLinks {
  readonly numbers: Int32Array;
  readonly stride: number;
  readonly at: number;
}

/** Slots in the order they were added; add, remove from anywhere and take the oldest, each O(1). A slot is in it at most once. */
export class SlotQueue {
  readonly #numbers: Int32Array;
  readonly #stride: number;
  readonly #at: number;
  #oldest = NONE;
  #newest = NONE;
  #size = 0;

  /** @param links default: an array of its own */
  constructor(slotCount: number, links: QueueLinks = { numbers: new Int32Array(2 * slotCount), stride: 2, at: 0 }) {
    this.#numbers = links.numbers;
    this.#stride = links.stride;
    this.#at = links.at;
  }

  get size(): number {
    return this.#size;
  }

  add(slot: number): void {
    const at = this.#placeOf(slot);
    this.#numbers[at + 1] = this.#newest;
    this.#numbers[at] = NONE;
    if (this.#newest === NONE) this.#oldest = slot;
    else this.#numbers[this.#placeOf(this.#newest)] = slot;
    this.#newest = slot;
    this.#size++;
  }

  /** `slot` must be in the queue. */
  remove(slot: number): void {
    const at = this.#placeOf(slot);
    const next = this.#numbers[at] as number;
    const previous = this.#numbers[at + 1] as number;
    if (previous === NONE) this.#oldest = next;
    else this.#numbers[this.#placeOf(previous)] = next;
    if (next === NONE) this.#newest = previous;
    else this.#numbers[this.#placeOf(next) + 1] = previous;
    this.#size--;
  }

  takeOldest(): number | null {
    const slot = this.#oldest;
    if (slot === NONE) return null;
    this.remove(slot);
    return slot;
  }

  #placeOf(slot: number): number {
    return slot * this.#stride + this.#at;
  }
}
