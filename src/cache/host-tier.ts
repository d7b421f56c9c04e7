import { InternalError } from '../errors.js';
import { ContentIndex } from './content-index.js';
import { SlotQueue } from './slot-queue.js';

/**
 * Role: the host pages of one layer group: content that the device had to give up. Requests never own one.
 * Invariant: a host slot is free or holds one content; content that is being fetched is held and not given up meanwhile.
 */
export class HostTier {
  readonly #slotOf: ContentIndex;
  readonly #hashOf: (string | undefined)[];
  readonly #free: number[];
  /** Content nobody fetches, the longest unused first. */
  readonly #idle: SlotQueue;
  #contentVersion = 0;

  constructor(slotCount: number) {
    this.#slotOf = new ContentIndex(slotCount);
    this.#hashOf = new Array<string | undefined>(slotCount).fill(undefined);
    this.#free = Array.from({ length: slotCount }, (_, index) => slotCount - 1 - index);
    this.#idle = new SlotQueue(slotCount);
  }

  /** Host slots that hold content. */
  get size(): number {
    return this.#slotOf.size;
  }

  /** As `SlotPool.contentVersion`. */
  get contentVersion(): number {
    return this.#contentVersion;
  }

  find(hash: string): number | null {
    return this.#slotOf.find(hash);
  }

  /** Whether the slot holds that content: what `find` would say, without looking for it. */
  holds(slot: number, hash: string): boolean {
    return this.#hashOf[slot] === hash;
  }

  /** Slots that `store` can give away now. */
  get available(): number {
    return this.#free.length + this.#idle.size;
  }

  /**
   * A place for content that is not here yet; gives up the longest unused content when no slot is free.
   * @returns the slot and the content that had to go, or null when all content is held
   */
  store(hash: string): { readonly slot: number; readonly dropped: string | null } | null {
    let dropped: string | null = null;
    let slot = this.#free.pop() ?? null;
    if (slot === null) {
      slot = this.#idle.takeOldest();
      if (slot === null) return null;
      dropped = this.#hashOf[slot] as string;
      this.#slotOf.remove(dropped);
    }
    this.#hashOf[slot] = hash;
    this.#slotOf.add(hash, slot);
    this.#contentVersion++;
    this.#idle.add(slot);
    return { slot, dropped };
  }

  /** Keeps content from being given up until `unhold`. Held once at most. */
  hold(slot: number): void {
    if (this.#hashOf[slot] === undefined) throw new InternalError(`host slot ${slot} has no content to hold`);
    this.#idle.remove(slot);
  }

  /** Content that was held is the most recently used. */
  unhold(slot: number): void {
    this.#idle.add(slot);
  }

  /** Content that nobody holds becomes the most recently used. */
  touch(slot: number): void {
    this.#idle.remove(slot);
    this.#idle.add(slot);
  }

  /** The content turned out wrong. @returns what the slot was thought to hold, or null */
  forget(slot: number): string | null {
    const hash = this.#hashOf[slot];
    if (hash === undefined) return null;
    this.#hashOf[slot] = undefined;
    this.#slotOf.remove(hash);
    this.#contentVersion++;
    this.#idle.remove(slot);
    this.#free.push(slot);
    return hash;
  }
}
