import type { BlockRun } from '../geometry/block-run.js';

/**
 * Role: the slots of one request in one layer group: its sink blocks `[0, sinkBlocks)`, which stay, and the resident run `[begin, end)`
 *   behind them.
 * Invariant: sinks fill first; the run has no hole, only grows at its end and shrinks at its front. The one gap there can be lies
 *   between the two.
 */
export class BlockTable {
  readonly #sinkBlocks: number;
  readonly #sinks: number[] = [];
  #slots = new Int32Array(16);
  /** Ordinal that `#slots[0]` belongs to. */
  #origin: number;
  #begin: number;
  #end: number;

  constructor(sinkBlocks = 0) {
    this.#sinkBlocks = sinkBlocks;
    this.#origin = sinkBlocks;
    this.#begin = sinkBlocks;
    this.#end = sinkBlocks;
  }

  /** First ordinal of the run behind the sinks. */
  get begin(): number {
    return this.#begin;
  }

  get end(): number {
    return this.#sinks.length < this.#sinkBlocks ? this.#sinks.length : this.#end;
  }

  /** The slot of ordinal `end`. */
  push(slot: number): void {
    if (this.#sinks.length < this.#sinkBlocks) {
      this.#sinks.push(slot);
      return;
    }
    if (this.#end - this.#origin === this.#slots.length) this.#makeRoom();
    this.#slots[this.#end - this.#origin] = slot;
    this.#end++;
  }

  /** Resident slots. */
  get count(): number {
    return this.#sinks.length + this.#end - this.#begin;
  }

  /** The slot of an ordinal, or null where it is not resident. */
  slotAt(ordinal: number): number | null {
    if (ordinal < this.#sinks.length) return this.#sinks[ordinal] as number;
    if (ordinal < this.#begin || ordinal >= this.#end) return null;
    return this.#slots[ordinal - this.#origin] as number;
  }

  /** Drops the blocks of the run below `begin`; past the end it leaves an empty run there. Sinks stay, and must be complete by then. */
  advanceTo(begin: number): void {
    if (begin <= this.#begin) return;
    this.#begin = begin;
    if (begin <= this.#end) return;
    this.#end = begin;
    this.#origin = begin;
  }

  /** A copy of the resident blocks inside `[begin, end)` that end at `end`, back to the last gap. */
  cut(begin: number, end: number): BlockRun {
    const sinkEnd = this.#sinks.length;
    const isGap = this.#begin > sinkEnd;
    if (end <= sinkEnd) return { begin, slots: Int32Array.from(this.#sinks.slice(begin, end)) };
    if (!isGap && begin < sinkEnd) {
      const slots = new Int32Array(end - begin);
      slots.set(this.#sinks.slice(begin));
      slots.set(this.#slots.subarray(sinkEnd - this.#origin, end - this.#origin), sinkEnd - begin);
      return { begin, slots };
    }
    const from = Math.min(Math.max(begin, this.#begin), end);
    return { begin: from, slots: this.#slots.slice(from - this.#origin, Math.max(from, end) - this.#origin) };
  }

  /** Every resident slot, by ordinal. */
  forEach(visit: (slot: number, ordinal: number) => void): void {
    for (let ordinal = 0; ordinal < this.#sinks.length; ordinal++) visit(this.#sinks[ordinal] as number, ordinal);
    for (let ordinal = this.#begin; ordinal < this.#end; ordinal++)
      visit(this.#slots[ordinal - this.#origin] as number, ordinal);
  }

  /** Every resident slot, the deepest block first. */
  forEachDescending(visit: (slot: number, ordinal: number) => void): void {
    for (let ordinal = this.#end - 1; ordinal >= this.#begin; ordinal--) {
      visit(this.#slots[ordinal - this.#origin] as number, ordinal);
    }
    for (let ordinal = this.#sinks.length - 1; ordinal >= 0; ordinal--) visit(this.#sinks[ordinal] as number, ordinal);
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
