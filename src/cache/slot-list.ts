const NO_SLOTS = new Int32Array(0);

/**
 * Is given slots `[begin, end)` of an array, which it neither changes nor keeps. Why no view of them: of a short array that would be memory outside
 * V8's heap, see `SHORT_ARRAY`.
 */
export type SlotsAction = (slots: Int32Array, begin: number, end: number) => void;

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

  withAll(act: SlotsAction): void {
    act(this.#slots, 0, this.#length);
  }

  push(slot: number): void {
    this.#makeRoom(1);
    this.#slots[this.#length++] = slot;
  }

  append(slots: Int32Array, begin = 0, end = slots.length): void {
    this.#makeRoom(end - begin);
    copySlots(slots, begin, end, this.#slots, this.#length);
    this.#length += end - begin;
  }

  #makeRoom(count: number): void {
    if (this.#length + count <= this.#slots.length) return;
    const grown = new Int32Array(Math.max(4, 2 * this.#slots.length, this.#length + count));
    copySlots(this.#slots, 0, this.#length, grown, 0);
    this.#slots = grown;
  }
}

export function copySlots(from: Int32Array, begin: number, end: number, to: Int32Array, at: number): void {
  for (let index = begin; index < end; index++) to[at + index - begin] = from[index] as number;
}
