import { hostSlotOf, isOffloaded, matchBegin } from './found-blocks.js';
import type { GroupPages } from './group-pages.js';
import type { HostTier } from './host-tier.js';
import type { PrefixMatcher } from './prefix-match.js';

/** What of one layer group is on the host. */
interface Offloaded {
  readonly pages: GroupPages;
  readonly host: HostTier;
  /** The first `left` of them are blocks to bring, in their order. */
  readonly ordinals: Int32Array;
  left: number;
  /** Slots that the whole prefix would cost. */
  readonly cost: number;
}

/**
 * Role: brings what of a prompt is on the host to the device before the prompt is taken, in portions: taking a long one is then no long turn.
 * Ownership: nobody's. What was brought is content that nobody holds, like that of a request which has ended: nothing is left over when the prompt is
 *   never taken.
 * Ordering: the deepest blocks first, as they are the first to be evicted. The prefix is made the most recently used before that, on the device and
 *   the host, and nothing is brought where there is not room for all of it beside: bringing one block evicts no other of them. Once others have
 *   changed what is where, that is no longer so, and whoever goes on begins anew.
 */
export class FetchAhead {
  readonly #groups: readonly GroupPages[];
  readonly #hashes: readonly string[];
  readonly #matcher: PrefixMatcher;
  /** By group; null: nothing of it is on the host. */
  readonly #offloaded: readonly (Offloaded | null)[];
  /** Of content and use, after the newest portion. */
  #version: number;

  /**
   * @param blocks of the prompt, as the newest match found them
   * @param most blocks that need not be brought ahead, since whoever takes the prompt may fetch as many in one turn
   * @returns null when there are no more, or no room
   */
  static begin(
    groups: readonly GroupPages[],
    matcher: PrefixMatcher,
    hashes: readonly string[],
    blocks: number,
    most: number,
  ): FetchAhead | null {
    const offloaded = groups.map((pages, group) => offloadedOf(pages, group, matcher, blocks));
    if (offloaded.every((one) => one === null || one.left <= most)) return null;
    if (!offloaded.every((one) => one === null || hasRoom(one))) return null;
    groups.forEach((pages, group) => {
      touch(pages, matcher.foundIn(group).places(0, blocks), neededOf(pages, blocks));
    });
    return new FetchAhead(groups, hashes, matcher, offloaded);
  }

  private constructor(
    groups: readonly GroupPages[],
    hashes: readonly string[],
    matcher: PrefixMatcher,
    offloaded: readonly (Offloaded | null)[],
  ) {
    this.#groups = groups;
    this.#hashes = hashes;
    this.#matcher = matcher;
    this.#offloaded = offloaded;
    this.#version = this.#versions();
  }

  /** Whether it goes on for these hashes: nobody else has changed since what is where. */
  isOf(hashes: readonly string[]): boolean {
    return this.#hashes === hashes && this.#version === this.#versions();
  }

  /** Brings `blocks` more in each group. @returns true when none is left, or there is no room any more */
  step(blocks: number): boolean {
    let left = 0;
    for (const [group, one] of this.#offloaded.entries()) {
      if (one === null) continue;
      if (one.cost > one.pages.slots.available) return true;
      this.#bring(group, one, Math.max(0, one.left - blocks));
      left += one.left;
    }
    this.#version = this.#versions();
    return left === 0;
  }

  #versions(): number {
    return this.#groups.reduce((sum, { contentVersion, slots }) => sum + contentVersion + slots.useVersion, 0);
  }

  #bring(group: number, one: Offloaded, from: number): void {
    const { pages, host, ordinals } = one;
    const found = this.#matcher.foundIn(group);
    const slots = new Int32Array(one.left - from);
    let count = 0;
    for (let index = from; index < one.left; index++) {
      const ordinal = ordinals[index] as number;
      const hash = this.#hashes[ordinal] as string;
      // The portion itself may have evicted it, where there was less room than was thought.
      const hostSlot = pages.slots.find(hash) === null ? host.find(hash) : null;
      if (hostSlot === null) continue;
      host.hold(hostSlot);
      const slot = pages.fetch(host, hostSlot, hash);
      found.moved(this.#hashes, ordinal, slot);
      slots[count++] = slot;
    }
    pages.slots.releaseAll(slots, 0, count);
    one.left = from;
  }
}

function offloadedOf(pages: GroupPages, group: number, matcher: PrefixMatcher, blocks: number): Offloaded | null {
  const { host } = pages;
  const found = matcher.foundIn(group);
  if (host === null || !found.hasOffloaded) return null;
  const places = found.places(0, blocks);
  const cost = found.costOf(blocks);
  const ordinals = new Int32Array(cost);
  let left = 0;
  for (const [begin, end] of neededOf(pages, blocks)) {
    for (let ordinal = begin; ordinal < end; ordinal++)
      if (isOffloaded(places[ordinal] as number)) ordinals[left++] = ordinal;
  }
  return { pages, host, ordinals, left, cost };
}

/** Blocks that a match of `blocks` blocks takes, in their order. */
function neededOf(pages: GroupPages, blocks: number): readonly (readonly [begin: number, end: number])[] {
  const begin = matchBegin(pages, blocks);
  return [
    [0, Math.min(pages.sinkBlocks, begin)],
    [begin, blocks],
  ];
}

/** For what is evicted for it, beside what is on the host of the prefix itself. (The device has room, or it would not have been found.) */
function hasRoom({ pages: { slots }, host, left }: Offloaded): boolean {
  return left - slots.freeCount <= host.available - left;
}

/** The last one first, as in `releaseAll`. */
function touch({ slots, host }: GroupPages, places: Int32Array, needed: ReturnType<typeof neededOf>): void {
  for (const [begin, end] of needed.toReversed()) {
    for (let ordinal = end - 1; ordinal >= begin; ordinal--) {
      const place = places[ordinal] as number;
      if (isOffloaded(place)) host?.touch(hostSlotOf(place));
      else if (slots.isIdle(place)) slots.touch(place);
    }
  }
}
