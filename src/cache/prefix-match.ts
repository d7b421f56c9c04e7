import { FoundBlocks } from './found-blocks.js';
import type { GroupPages } from './group-pages.js';

/**
 * Role: the longest prefix, in whole blocks, that every layer group can serve now. A full-attention group needs each block of it. A windowed
 *   group needs its sink blocks and those that the first token after the prefix still sees: others are never read again. Content on the
 *   host counts as far as the device has slots to fetch it into.
 * Ownership: `foundIn` says where each block of the newest match is, and what it costs (slots that taking it makes unavailable: idle ones it
 *   takes over, new ones for content on the host), until something changes the pools.
 */
export class PrefixMatcher {
  readonly #found: readonly FoundBlocks[];

  constructor(groups: readonly GroupPages[]) {
    this.#found = groups.map((pages) => new FoundBlocks(pages));
  }

  /** Looks up `count` more blocks in each group, for the next `match` of these very hashes. @returns true when none is left */
  lookAhead(hashes: readonly string[], maxBlocks: number, count: number): boolean {
    let longest = Math.min(maxBlocks, hashes.length);
    for (const hasWindow of [false, true]) {
      for (const found of this.#found) {
        if (found.hasWindow !== hasWindow) continue;
        const known = found.lookAhead(hashes, longest, count);
        if (known === null) return false;
        longest = known;
      }
    }
    return true;
  }

  /** @param maxBlocks upper bound of the answer. @returns whole blocks */
  match(hashes: readonly string[], maxBlocks: number): number {
    let longest = Math.min(maxBlocks, hashes.length);
    for (const found of this.#found) if (!found.hasWindow) longest = found.lookUp(hashes, longest);
    for (const found of this.#found) if (found.hasWindow) found.lookUp(hashes, longest);
    let blocks = longest;
    while (blocks > 0 && !this.#found.every((found) => found.canTake(blocks))) blocks = this.#nextBelow(blocks);
    return blocks;
  }

  /** Ends what `lookAhead` and `match` remember of a prompt. */
  forget(): void {
    for (const found of this.#found) found.forget();
  }

  foundIn(group: number): FoundBlocks {
    return this.#found[group] as FoundBlocks;
  }

  /** The longest that could be served where `blocks` cannot. What lies between still needs an absent block that it needs. */
  #nextBelow(blocks: number): number {
    return this.#found.reduce((next, found) => {
      const absent = found.lastAbsentOf(blocks);
      return absent < 0 ? next : Math.min(next, absent);
    }, blocks - 1);
  }
}
