import type { BlockRun } from '../geometry/block-run.js';

/**
 * Role: the slots of one request in one layer group: the contiguous resident run `[begin, end)` of block ordinals.
 * Invariant: no holes; the run only grows at its end and shrinks at its front.
 */
export class BlockTable {
  #slots = new Int32Array(16);
  /** Ordinal that `#slots[0]` belongs to. */
  #origin = 0;
  #begin = 0;
  #end = 0;

  get begin(): number {
    return this.#begin;
  }

  get end(): number {
    return this.#end;
  }

  push(slot: number): void {
    if (this.#end - this.#origin === this.#slots.length) this.#makeRoom();
    this.#slots[this.#end - this.#origin] = slot;
    this.#end++;
  }

  /** Slot of an ordinal inside `[begin, end)`. */
  slotAt(ordinal: number): number {
    return this.#slots[ordinal - this.#origin] as number;
  }

  /** Drops the blocks below `begin`; past the end it leaves an empty run there. */
  advanceTo(begin: number): void {
    if (begin <= this.#begin) return;
    this.#begin = begin;
    if (begin <= this.#end) return;
    this.#end = begin;
    this.#origin = begin;
  }

  /** A copy of the resident blocks inside `[begin, end)`; the run ends at `end`. */
  cut(begin: number, end: number): BlockRun {
    const from = Math.min(Math.max(begin, this.#begin), end);
    return { begin: from, slots: this.#slots.slice(from - this.#origin, end - this.#origin) };
  }

  /** Only what is resident is kept: a windowed group's table stays as small as its window. */
  #makeRoom(): void {
    const resident = this.#slots.subarray(this.#begin - this.#origin, this.#end - this.#origin);
    const grown = resident.length * 2 > this.#slots.length ? new Int32Array(this.#slots.length * 2) : this.#slots;
    grown.set(resident);
    this.#slots = grown;
    this.#origin = this.#begin;
  }
}
