import { InternalError } from '../errors.js';
import type { CacheGroupStats } from './kv-cache-manager.js';
import type { SeededRandom } from './seeded-random.js';
import { SlotQueue } from './slot-queue.js';

/**
 * Role: the slots of one layer group: who holds each, and what content each keeps.
 * Invariant: a slot is exactly one of free (no holder, no content), reusable (no holder, content published) or held (by requests, by
 *   pins, or both). Only free and reusable slots are handed out; a published hash names one slot, and that slot is not free.
 */
export class SlotPool {
  readonly slotCount: number;
  readonly #random: SeededRandom;
  readonly #owners: Int32Array;
  readonly #pins: Int32Array;
  readonly #hashOf: (string | undefined)[];
  readonly #slotOf = new Map<string, number>();
  readonly #free: number[];
  readonly #reusable: SlotQueue;
  readonly #onEvicted: (slot: number, hash: string) => void;
  #pinned = 0;

  /** `onEvicted`: the content has lost its slot, which is about to be handed out. */
  constructor(slotCount: number, random: SeededRandom, onEvicted: (slot: number, hash: string) => void = () => {}) {
    this.slotCount = slotCount;
    this.#random = random;
    this.#onEvicted = onEvicted;
    this.#owners = new Int32Array(slotCount);
    this.#pins = new Int32Array(slotCount);
    this.#hashOf = new Array<string | undefined>(slotCount).fill(undefined);
    this.#free = Array.from({ length: slotCount }, (_, slot) => slot);
    this.#reusable = new SlotQueue(slotCount);
  }

  /** Slots that `allocate` can hand out now. */
  get available(): number {
    return this.#free.length + this.#reusable.size;
  }

  /** A slot with one owner and no content. Evicts the least recently used content when no slot is free. */
  allocate(): number {
    const slot = this.#takeFree() ?? this.#evictOldest();
    if (slot === null) throw new InternalError('allocate from a slot pool that has none available');
    this.#owners[slot] = 1;
    return slot;
  }

  /** The slot whose content has this hash, or null. */
  find(hash: string): number | null {
    return this.#slotOf.get(hash) ?? null;
  }

  /** Nobody holds the slot. */
  isIdle(slot: number): boolean {
    return this.#ownersOf(slot) === 0 && this.#pinsOf(slot) === 0;
  }

  /** One more request owns a slot that `find` returned. */
  share(slot: number): void {
    if (this.isIdle(slot)) this.#reusable.remove(slot);
    this.#owners[slot] = this.#ownersOf(slot) + 1;
  }

  release(slot: number): void {
    const owners = this.#ownersOf(slot);
    if (owners === 0) throw new InternalError(`slot ${slot} is released more often than it is owned`);
    this.#owners[slot] = owners - 1;
    this.#settle(slot);
  }

  /** Releasing the slot once would make it available. */
  hasOneHolder(slot: number): boolean {
    return this.#ownersOf(slot) === 1 && this.#pinsOf(slot) === 0;
  }

  /** Holds an owned slot for a transfer, also after its last owner is gone. */
  pin(slot: number): void {
    const pins = this.#pinsOf(slot);
    if (pins === 0) this.#pinned++;
    this.#pins[slot] = pins + 1;
  }

  unpin(slot: number): void {
    const pins = this.#pinsOf(slot);
    if (pins === 0) throw new InternalError(`slot ${slot} is unpinned more often than it is pinned`);
    this.#pins[slot] = pins - 1;
    if (pins > 1) return;
    this.#pinned--;
    this.#settle(slot);
  }

  /**
   * The content of an owned slot is final and may be matched. When another slot already holds that content, this one stays private:
   * a page that someone may be reading is never swapped for another.
   * @returns whether the slot now stands for that content
   */
  publish(slot: number, hash: string): boolean {
    if (this.#hashOf[slot] !== undefined || this.#slotOf.has(hash)) return false;
    this.#hashOf[slot] = hash;
    this.#slotOf.set(hash, slot);
    return true;
  }

  /** The content turned out wrong: nobody finds it any more. @returns its hash, or null when none was published */
  withdraw(slot: number): string | null {
    const hash = this.#hashOf[slot];
    if (hash === undefined) return null;
    this.#hashOf[slot] = undefined;
    this.#slotOf.delete(hash);
    if (this.isIdle(slot)) {
      this.#reusable.remove(slot);
      this.#free.push(slot);
    }
    return hash;
  }

  stats(): CacheGroupStats {
    return {
      slotCount: this.slotCount,
      free: this.#free.length,
      reusable: this.#reusable.size,
      pinned: this.#pinned,
    };
  }

  /** Random, so that the pages of a request are scattered from the first one on and stay so after reuse. */
  #takeFree(): number | null {
    const last = this.#free.at(-1);
    if (last === undefined) return null;
    const index = this.#random.below(this.#free.length);
    const slot = this.#free[index] as number;
    this.#free[index] = last;
    this.#free.pop();
    return slot;
  }

  #evictOldest(): number | null {
    const slot = this.#reusable.takeOldest();
    if (slot === null) return null;
    const hash = this.#hashOf[slot] as string;
    this.#slotOf.delete(hash);
    this.#hashOf[slot] = undefined;
    this.#onEvicted(slot, hash);
    return slot;
  }

  /** Gives a slot that lost its last holder to the free or the reusable ones. */
  #settle(slot: number): void {
    if (!this.isIdle(slot)) return;
    if (this.#hashOf[slot] === undefined) this.#free.push(slot);
    else this.#reusable.add(slot);
  }

  #ownersOf(slot: number): number {
    return this.#owners[slot] as number;
  }

  #pinsOf(slot: number): number {
    return this.#pins[slot] as number;
  }
}
