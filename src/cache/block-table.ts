import type { BlockRun } from '../geometry/block-run.js';
import { copySlots, SlotList, type SlotsAction } from './slot-list.js';

/**
 * Role: the slots of one request in one layer group: its sink blocks `[0, sinkBlocks)`, which stay, and the resident run `[begin, end)`
 *   behind them.
 * Invariant: sinks fill first; the run has no hole, only grows at its end and shrinks at its front. The one gap there can be lies
 *   between the two.
 */
export class BlockTable {
  readonly #sinkBlocks: number;
  readonly #sinks = new SlotList(0);
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
    return this.#lacksSinks ? this.#sinks.length : this.#end;
  }

  /** @param act is given the sink blocks that are there, below `end` */
  withSinks(act: SlotsAction, end = this.#sinkBlocks): void {
    this.#sinks.withAll((slots, begin, count) => act(slots, begin, Math.min(count, end)));
  }

  /** @param act is given the resident blocks of the run behind the sinks that lie inside `[begin, end)` */
  withRun(act: SlotsAction, begin = this.#begin, end = this.#end): void {
    const from = Math.max(begin, this.#begin);
    act(this.#slots, from - this.#origin, Math.max(from, Math.min(end, this.#end)) - this.#origin);
  }

  /** The slot of ordinal `end`. */
  push(slot: number): void {
    if (this.#lacksSinks) {
      this.#sinks.push(slot);
      return;
    }
    this.#makeRoom(1);
    this.#slots[this.#end - this.#origin] = slot;
    this.#end++;
  }

  /** The slots of ordinals from `end` on; all of them sinks, or none. */
  append(slots: Int32Array): void {
    if (this.#lacksSinks) {
      this.#sinks.append(slots);
      return;
    }
    this.#makeRoom(slots.length);
    copySlots(slots, 0, slots.length, this.#slots, this.#end - this.#origin);
    this.#end += slots.length;
  }

  /** Resident slots. */
  get count(): number {
    return this.#sinks.length + this.#end - this.#begin;
  }

  /** The slot of an ordinal, or null where it is not resident. */
  slotAt(ordinal: number): number | null {
    if (ordinal < this.#sinks.length) return this.#sinks.at(ordinal);
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
    const from = end <= sinkEnd || (!isGap && begin < sinkEnd) ? begin : Math.min(Math.max(begin, this.#begin), end);
    const slots = new Int32Array(end - from);
    for (let ordinal = from; ordinal < end; ordinal++) slots[ordinal - from] = this.slotAt(ordinal) as number;
    return { begin: from, slots };
  }

  get #lacksSinks(): boolean {
    return this.#sinks.length < this.#sinkBlocks;
  }

  /** Only what is resident is kept: a windowed group's table stays as small as its window. */
  #makeRoom(count: number): void {
    if (this.#end - this.#origin + count <= this.#slots.length) return;
    const needed = this.#end - this.#begin + count;
    const isFull = 2 * needed > this.#slots.length;
    const grown = isFull ? new Int32Array(Math.max(2 * this.#slots.length, needed)) : this.#slots;
    this.withRun((slots, begin, end) => copySlots(slots, begin, end, grown, 0));
    this.#slots = grown;
    this.#origin = this.#begin;
  }
}
