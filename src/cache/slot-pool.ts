import { InternalError } from '../errors.js';
import { ContentIndex } from './content-index.js';
import type { CacheGroupStats } from './kv-cache-manager.js';
import type { SeededRandom } from './seeded-random.js';
import { SlotQueue } from './slot-queue.js';

/**
 * Numbers of each slot, side by side: slots are visited in any order, and memory comes by the line. No more than these: of a prompt of a million
 * tokens each slot is another line, and what does not fit the cache takes several times as long.
 */
const FIELDS = 2;
/** `OWNER` for each owner, and `CONTENT` when content is published. */
const USE = 0;
const PINS = 1;
const OWNER = 2;
const CONTENT = 1;

/**
 * Role: the slots of one layer group: who holds each, and what content each keeps.
 * Invariant: a slot is exactly one of free (no holder, no content), reusable (no holder, content published) or held (by requests, by
 *   pins, or both). Only free and reusable slots are handed out; a published hash names one slot, and that slot is not free.
 */
export class SlotPool {
  readonly slotCount: number;
  readonly #random: SeededRandom;
  readonly #numbers: Int32Array;
  /** How often content has left each slot. */
  readonly #generations: Int32Array;
  readonly #hashOf: (string | undefined)[];
  readonly #slotOf: ContentIndex;
  /** A stack of `#freeCount` slots. */
  readonly #free: Int32Array;
  readonly #reusable: SlotQueue;
  readonly #onEvicted: (slot: number, hash: string) => void;
  #freeCount: number;
  #pinned = 0;
  #contentVersion = 0;
  #useVersion = 0;

  /** `onEvicted`: the content has lost its slot, which is about to be handed out. */
  constructor(slotCount: number, random: SeededRandom, onEvicted: (slot: number, hash: string) => void = () => {}) {
    this.slotCount = slotCount;
    this.#random = random;
    this.#onEvicted = onEvicted;
    this.#numbers = new Int32Array(slotCount * FIELDS);
    this.#generations = new Int32Array(slotCount);
    this.#hashOf = new Array<string | undefined>(slotCount).fill(undefined);
    this.#slotOf = new ContentIndex(slotCount);
    this.#free = new Int32Array(slotCount);
    for (let slot = 0; slot < slotCount; slot++) this.#free[slot] = slot;
    this.#freeCount = slotCount;
    this.#reusable = new SlotQueue(slotCount);
  }

  /** Slots that `allocate` can hand out now. */
  get available(): number {
    return this.#freeCount + this.#reusable.size;
  }

  /** A slot with one owner and no content. Evicts the least recently used content when no slot is free. */
  allocate(): number {
    this.#useVersion++;
    const slot = this.#freeCount > 0 ? this.#takeFree() : this.#evictOldest();
    this.#numbers[slot * FIELDS + USE] = OWNER;
    return slot;
  }

  /** The slot whose content has this hash, or null. */
  find(hash: string): number | null {
    return this.#slotOf.find(hash);
  }

  /** As long as it stays the same, no content has come or gone, and `find` says what it said before. */
  get contentVersion(): number {
    return this.#contentVersion;
  }

  /** As long as it stays the same, nobody has taken or given back a slot, and what is evicted next is what was. */
  get useVersion(): number {
    return this.#useVersion;
  }

  /** As long as it stays the same, the slot holds the content that `find` found in it. */
  generationOf(slot: number): number {
    return this.#generations[slot] as number;
  }

  /** Nobody holds the slot. */
  isIdle(slot: number): boolean {
    return this.#useOf(slot) < OWNER && this.#pinsOf(slot) === 0;
  }

  /** Slots that hold nothing. */
  get freeCount(): number {
    return this.#freeCount;
  }

  /** Content that nobody holds becomes the most recently used. */
  touch(slot: number): void {
    this.#reusable.remove(slot);
    this.#reusable.add(slot);
  }

  /** One more request owns a slot that `find` returned. */
  share(slot: number): void {
    this.#useVersion++;
    if (this.isIdle(slot)) this.#reusable.remove(slot);
    this.#numbers[slot * FIELDS + USE] = this.#useOf(slot) + OWNER;
  }

  /** As `share`, of each. This and its like see a million tokens in one turn, so that nothing is called for each slot that need not be. */
  shareAll(slots: Int32Array, begin = 0, end = slots.length): void {
    this.#useVersion++;
    const numbers = this.#numbers;
    const reusable = this.#reusable;
    for (let index = begin; index < end; index++) {
      const slot = slots[index] as number;
      const at = slot * FIELDS;
      const use = numbers[at + USE] as number;
      if (use < OWNER && numbers[at + PINS] === 0) reusable.remove(slot);
      numbers[at + USE] = use + OWNER;
    }
  }

  release(slot: number): void {
    this.releaseAll(Int32Array.of(slot));
  }

  /** The last one first: what is evicted first is then the deepest block, which the fewest prompts share. */
  releaseAll(slots: Int32Array, begin = 0, end = slots.length): void {
    this.#useVersion++;
    const numbers = this.#numbers;
    for (let index = end - 1; index >= begin; index--) {
      const slot = slots[index] as number;
      const at = slot * FIELDS;
      const use = (numbers[at + USE] as number) - OWNER;
      if (use < 0) throw new InternalError(`slot ${slot} is released more often than it is owned`);
      numbers[at + USE] = use;
      if (use < OWNER && numbers[at + PINS] === 0) this.#giveUp(slot, use);
    }
  }

  /** Releasing the slot once would make it available. */
  hasOneHolder(slot: number): boolean {
    const use = this.#useOf(slot);
    return use >= OWNER && use < 2 * OWNER && this.#pinsOf(slot) === 0;
  }

  /** Holds an owned slot for a transfer, also after its last owner is gone. */
  pin(slot: number): void {
    const pins = this.#pinsOf(slot);
    if (pins === 0) this.#pinned++;
    this.#numbers[slot * FIELDS + PINS] = pins + 1;
  }

  pinAll(slots: Int32Array, begin = 0, end = slots.length): void {
    const numbers = this.#numbers;
    for (let index = begin; index < end; index++) {
      const at = (slots[index] as number) * FIELDS + PINS;
      const pins = numbers[at] as number;
      if (pins === 0) this.#pinned++;
      numbers[at] = pins + 1;
    }
  }

  /** The last one first, as `releaseAll`. */
  unpinAll(slots: Int32Array, begin = 0, end = slots.length): void {
    this.#useVersion++;
    const numbers = this.#numbers;
    for (let index = end - 1; index >= begin; index--) {
      const slot = slots[index] as number;
      const at = slot * FIELDS;
      const pins = (numbers[at + PINS] as number) - 1;
      if (pins < 0) throw new InternalError(`slot ${slot} is unpinned more often than it is pinned`);
      numbers[at + PINS] = pins;
      if (pins > 0) continue;
      this.#pinned--;
      const use = numbers[at + USE] as number;
      if (use < OWNER) this.#giveUp(slot, use);
    }
  }

  /**
   * The content of an owned slot is final and may be matched. When another slot already holds that content, this one stays private:
   * a page that someone may be reading is never swapped for another.
   * @returns whether the slot now stands for that content
   */
  publish(slot: number, hash: string): boolean {
    if (this.#hasContent(slot) || !this.#slotOf.add(hash, slot)) return false;
    this.#contentVersion++;
    this.#hashOf[slot] = hash;
    this.#numbers[slot * FIELDS + USE] = this.#useOf(slot) | CONTENT;
    return true;
  }

  /** The content turned out wrong: nobody finds it any more. @returns its hash, or null when none was published */
  withdraw(slot: number): string | null {
    const hash = this.#hashOf[slot];
    if (hash === undefined) return null;
    this.#forget(slot, hash);
    if (this.isIdle(slot)) {
      this.#reusable.remove(slot);
      this.#free[this.#freeCount++] = slot;
    }
    return hash;
  }

  stats(): CacheGroupStats {
    return {
      slotCount: this.slotCount,
      free: this.#freeCount,
      reusable: this.#reusable.size,
      pinned: this.#pinned,
    };
  }

  /** Random, so that the pages of a request are scattered from the first one on and stay so after reuse. One must be free. */
  #takeFree(): number {
    const index = this.#random.below(this.#freeCount);
    const slot = this.#free[index] as number;
    this.#free[index] = this.#free[--this.#freeCount] as number;
    return slot;
  }

  #evictOldest(): number {
    const slot = this.#reusable.takeOldest();
    if (slot === null) throw new InternalError('allocate from a slot pool that has none available');
    const hash = this.#hashOf[slot] as string;
    this.#forget(slot, hash);
    this.#onEvicted(slot, hash);
    return slot;
  }

  #forget(slot: number, hash: string): void {
    this.#contentVersion++;
    this.#slotOf.remove(hash);
    this.#hashOf[slot] = undefined;
    this.#numbers[slot * FIELDS + USE] = this.#useOf(slot) & ~CONTENT;
    this.#generations[slot] = (this.generationOf(slot) + 1) | 0;
  }

  /** To the free or the reusable ones, a slot that lost its last holder. */
  #giveUp(slot: number, use: number): void {
    if (use === CONTENT) this.#reusable.add(slot);
    else this.#free[this.#freeCount++] = slot;
  }

  #hasContent(slot: number): boolean {
    return (this.#useOf(slot) & CONTENT) !== 0;
  }

  #useOf(slot: number): number {
    return this.#numbers[slot * FIELDS + USE] as number;
  }

  #pinsOf(slot: number): number {
    return this.#numbers[slot * FIELDS + PINS] as number;
  }
}
