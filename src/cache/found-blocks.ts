import type { GroupPages } from './group-pages.js';

/** Of a block that is in neither place. */
export const ABSENT = -1;
/** Below any other place: see `offloadedIn`. */
const OFFLOADED = -2;

/** Place of a block that is in a slot of the host only; and back. */
export function offloadedIn(hostSlot: number): number {
  return OFFLOADED - hostSlot;
}

export function isOffloaded(place: number): boolean {
  return place <= OFFLOADED;
}

export function hostSlotOf(place: number): number {
  return OFFLOADED - place;
}

/** Numbers of one block, side by side. */
const FIELDS = 3;
/** Of its slot, when it was looked up. */
const GENERATION = 0;
/** Ordinal of the last absent block up to this one; -1: none is. */
const LAST_ABSENT = 1;
/** What taking the blocks up to this one would cost. */
const COST_SO_FAR = 2;

/**
 * Role: where the first blocks of one prompt are in one layer group.
 * Why kept: each block is looked up once, by its name, however often its place is needed after that, and a long prompt makes no object for each
 *   of its blocks. Looking up is most of it, so that it can be done ahead, in portions; what a hit costs is counted only where it could cost
 *   more than there is.
 */
export class FoundBlocks {
  readonly pages: GroupPages;
  #places = new Int32Array(0);
  #numbers = new Int32Array(0);
  /** Whose blocks were looked up ahead; null: nobody's. */
  #hashes: readonly string[] | null = null;
  /** How many of them. */
  #end = 0;
  #offloaded = 0;
  /** Of the content, before the first of them was looked up. */
  #version = 0;
  #areCostsCounted = false;

  constructor(pages: GroupPages) {
    this.pages = pages;
  }

  get hasWindow(): boolean {
    return this.pages.group.windowSize !== null;
  }

  /** False: none of the blocks that were looked up is offloaded. */
  get hasOffloaded(): boolean {
    return this.#offloaded > 0;
  }

  /** Looks up `count` more blocks of a prompt, up to `longest`. @returns how many are known; null: there are more */
  lookAhead(hashes: readonly string[], longest: number, count: number): number | null {
    if (this.#hashes !== hashes) this.#begin(hashes);
    const end = Math.min(longest, this.#end + count);
    while (this.#end < end) if (!this.#keep(this.#find(hashes[this.#end] as string))) return this.#end;
    return this.#end < longest ? null : longest;
  }

  /** @returns how many blocks there are before the first absent one; with a window all are looked up */
  lookUp(hashes: readonly string[], longest: number): number {
    if (this.#hashes === hashes && this.pages.contentVersion !== this.#version) this.#lookAgain(hashes);
    this.#areCostsCounted = false;
    return this.lookAhead(hashes, longest, longest) as number;
  }

  /** The prompt was taken, or is not asked about again. */
  forget(): void {
    this.#hashes = null;
  }

  /** A block of a prompt has come from the host to the device. Whoever asks about another prompt now learns nothing of it. */
  moved(hashes: readonly string[], ordinal: number, slot: number): void {
    if (this.#hashes !== hashes || ordinal >= this.#end || !isOffloaded(this.#places[ordinal] as number)) return;
    this.#places[ordinal] = slot;
    this.#numbers[ordinal * FIELDS + GENERATION] = this.pages.slots.generationOf(slot);
    this.#offloaded -= 1;
    this.#areCostsCounted = false;
  }

  /** The last absent block that a match of `blocks` blocks needs; -1: none. */
  lastAbsentOf(blocks: number): number {
    if (!this.hasWindow) return -1;
    const last = this.#before(LAST_ABSENT, blocks);
    return last >= matchBegin(this.pages, blocks)
      ? last
      : this.#before(LAST_ABSENT, Math.min(this.pages.sinkBlocks, blocks));
  }

  /** Slots that a match of `blocks` blocks costs, of which none is absent. */
  costOf(blocks: number): number {
    if (!this.#areCostsCounted) this.#countCosts();
    const sinks = Math.min(this.pages.sinkBlocks, blocks);
    return (
      this.#before(COST_SO_FAR, sinks) +
      this.#before(COST_SO_FAR, blocks) -
      this.#before(COST_SO_FAR, matchBegin(this.pages, blocks))
    );
  }

  /** Whether the blocks that a match of `blocks` blocks needs are there, and the slots that it costs. */
  canTake(blocks: number): boolean {
    if (this.lastAbsentOf(blocks) >= 0) return false;
    // Content that nobody holds is available itself.
    return !this.hasOffloaded || this.costOf(blocks) <= this.pages.slots.available;
  }

  /** Of each block its slot on the device, `offloadedIn` one of the host, or ABSENT. A view, good until the next look-up. */
  places(begin: number, end: number): Int32Array {
    return this.#places.subarray(begin, end);
  }

  #find(hash: string): number {
    const { slots, host } = this.pages;
    const slot = slots.find(hash);
    if (slot !== null) return slot;
    const hostSlot = host?.find(hash) ?? null;
    return hostSlot === null ? ABSENT : offloadedIn(hostSlot);
  }

  /** Whether `#find` would say the same of a block that it said of it before: on the device without looking for it. */
  #isStill(place: number, ordinal: number, hash: string): boolean {
    const { slots, host } = this.pages;
    if (place >= 0) return slots.generationOf(place) === this.#numbers[ordinal * FIELDS + GENERATION];
    return isOffloaded(place) && host?.holds(hostSlotOf(place), hash) === true && slots.find(hash) === null;
  }

  #begin(hashes: readonly string[]): void {
    this.#hashes = hashes;
    this.#end = 0;
    this.#offloaded = 0;
    this.#version = this.pages.contentVersion;
  }

  /** Content came or went since the first block was looked up. */
  #lookAgain(hashes: readonly string[]): void {
    const end = this.#end;
    this.#begin(hashes);
    for (let ordinal = 0; ordinal < end; ordinal++) {
      const place = this.#places[ordinal] as number;
      const hash = hashes[ordinal] as string;
      if (!this.#keep(this.#isStill(place, ordinal, hash) ? place : this.#find(hash))) return;
    }
  }

  /** The place of the next block. @returns false, and it is not kept, where the prefix ends before it */
  #keep(place: number): boolean {
    if (place === ABSENT && !this.hasWindow) return false;
    if (this.#end === this.#places.length) this.#makeRoom();
    const at = this.#end * FIELDS;
    const numbers = this.#numbers;
    if (place >= 0) numbers[at + GENERATION] = this.pages.slots.generationOf(place);
    else if (isOffloaded(place)) this.#offloaded++;
    const lastAbsent = this.#end === 0 ? -1 : (numbers[at - FIELDS + LAST_ABSENT] as number);
    numbers[at + LAST_ABSENT] = place === ABSENT ? this.#end : lastAbsent;
    this.#places[this.#end++] = place;
    return true;
  }

  #countCosts(): void {
    const { slots } = this.pages;
    let cost = 0;
    for (let ordinal = 0; ordinal < this.#end; ordinal++) {
      const place = this.#places[ordinal] as number;
      if (isOffloaded(place) || (place >= 0 && slots.isIdle(place))) cost++;
      this.#numbers[ordinal * FIELDS + COST_SO_FAR] = cost;
    }
    this.#areCostsCounted = true;
  }

  /** A number of the last of the first `blocks` blocks. */
  #before(field: number, blocks: number): number {
    if (blocks === 0) return field === LAST_ABSENT ? -1 : 0;
    return this.#numbers[(blocks - 1) * FIELDS + field] as number;
  }

  /** By doubling: most prompts find nothing, or little. */
  #makeRoom(): void {
    const blocks = Math.max(64, 2 * this.#places.length);
    const places = new Int32Array(blocks);
    const numbers = new Int32Array(blocks * FIELDS);
    places.set(this.#places);
    numbers.set(this.#numbers);
    this.#places = places;
    this.#numbers = numbers;
  }
}

/** First block behind the sinks that a match of `blocks` blocks takes. */
export function matchBegin(pages: GroupPages, blocks: number): number {
  return Math.min(pages.staleEnd(blocks * pages.group.tokensPerBlock), blocks);
}
