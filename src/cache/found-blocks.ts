import type { GroupPages } from './group-pages.js';

/** Of a block that is in neither place. */
export const ABSENT = -1;
/** Of a block that is on the host only. */
export const OFFLOADED = -2;

/** Numbers of one block, side by side. */
const FIELDS = 4;
const PLACE = 0;
/** How many of the blocks up to this one are absent. */
const ABSENT_SO_FAR = 1;
/** What taking the blocks up to this one would cost. */
const COST_SO_FAR = 2;
/** Of its slot, when it was looked up. */
const GENERATION = 3;

/**
 * Role: where the first blocks of one prompt are in one layer group.
 * Why kept: each block is looked up once, by its name, however often its place is needed after that, and a long prompt makes no object for each
 *   of its blocks. Looking up is most of it, so that it can be done ahead, in portions.
 */
export class FoundBlocks {
  readonly pages: GroupPages;
  #numbers = new Int32Array(0);
  /** Whose blocks were looked up ahead; null: nobody's. */
  #hashes: readonly string[] | null = null;
  /** How many of them. */
  #end = 0;

  constructor(pages: GroupPages) {
    this.pages = pages;
  }

  get hasWindow(): boolean {
    return this.pages.group.windowSize !== null;
  }

  /** Looks up `count` more blocks of a prompt, up to `longest`. @returns how many are known; null: there are more */
  lookAhead(hashes: readonly string[], longest: number, count: number): number | null {
    if (this.#hashes !== hashes) this.#end = 0;
    this.#hashes = hashes;
    const end = Math.min(longest, this.#end + count);
    for (; this.#end < end; this.#end++) {
      const place = this.#find(hashes[this.#end] as string);
      if (place === ABSENT && !this.hasWindow) return this.#end;
      this.#keep(this.#end, longest, place);
    }
    return this.#end < longest ? null : longest;
  }

  /** @returns how many blocks there are before the first absent one; with a window all are looked up */
  lookUp(hashes: readonly string[], longest: number): number {
    const { slots } = this.pages;
    const { hasWindow } = this;
    const ahead = this.#hashes === hashes ? this.#end : 0;
    this.#hashes = null;
    let absent = 0;
    let cost = 0;
    for (let ordinal = 0; ordinal < longest; ordinal++) {
      const hash = hashes[ordinal] as string;
      const at = ordinal * FIELDS;
      const place = ordinal < ahead ? this.#stillAt(at, hash) : this.#find(hash);
      if (place >= 0) cost += slots.isIdle(place) ? 1 : 0;
      else if (place === OFFLOADED) cost += 1;
      else if (!hasWindow) return ordinal;
      else absent += 1;
      if (ordinal >= ahead || this.#numbers[at + PLACE] !== place) this.#keep(ordinal, longest, place);
      this.#numbers[at + ABSENT_SO_FAR] = absent;
      this.#numbers[at + COST_SO_FAR] = cost;
    }
    return longest;
  }

  /** Slots that a match of `blocks` blocks costs; Infinity where a block that it needs is absent. */
  costOf(blocks: number): number {
    const sinks = Math.min(this.pages.sinkBlocks, blocks);
    const begin = matchBegin(this.pages, blocks);
    return this.#within(ABSENT_SO_FAR, sinks, begin, blocks) > 0
      ? Infinity
      : this.#within(COST_SO_FAR, sinks, begin, blocks);
  }

  /** Its slot on the device, OFFLOADED or ABSENT. */
  placeOf(ordinal: number): number {
    return this.#numbers[ordinal * FIELDS + PLACE] as number;
  }

  #find(hash: string): number {
    const { slots, host } = this.pages;
    return slots.find(hash) ?? (host !== null && host.find(hash) !== null ? OFFLOADED : ABSENT);
  }

  /** The place of a block that was looked up ahead. */
  #stillAt(at: number, hash: string): number {
    const place = this.#numbers[at + PLACE] as number;
    if (place === ABSENT) return place;
    const isThere = place >= 0 && this.pages.slots.generationOf(place) === this.#numbers[at + GENERATION];
    return isThere ? place : this.#find(hash);
  }

  #keep(ordinal: number, longest: number, place: number): number {
    const at = ordinal * FIELDS;
    if (at + FIELDS > this.#numbers.length) this.#makeRoom(longest);
    this.#numbers[at + PLACE] = place;
    if (place >= 0) this.#numbers[at + GENERATION] = this.pages.slots.generationOf(place);
    return place;
  }

  #within(field: number, sinks: number, begin: number, end: number): number {
    const before = (blocks: number): number =>
      blocks === 0 ? 0 : (this.#numbers[(blocks - 1) * FIELDS + field] as number);
    return before(sinks) + before(end) - before(begin);
  }

  /** By doubling: most prompts find nothing, or little. */
  #makeRoom(longest: number): void {
    const grown = new Int32Array(Math.min(longest * FIELDS, Math.max(64 * FIELDS, 2 * this.#numbers.length)));
    grown.set(this.#numbers);
    this.#numbers = grown;
  }
}

/** First block behind the sinks that a match of `blocks` blocks takes. */
export function matchBegin(pages: GroupPages, blocks: number): number {
  return Math.min(pages.staleEnd(blocks * pages.group.tokensPerBlock), blocks);
}
