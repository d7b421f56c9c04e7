import { FoundBlocks } from './found-blocks.js';
import type { GroupPages } from './group-pages.js';

/** How much of a prompt is in the cache, and what taking it costs. */
export interface PrefixMatch {
  /** Whole blocks. */
  readonly blocks: number;
  /** Per layer group: slots that taking the match makes unavailable (idle ones it takes over, new ones for content on the host). */
  readonly costs: readonly number[];
}

/**
 * Role: the longest prefix, in whole blocks, that every layer group can serve now. A full-attention group needs each block of it. A windowed
 *   group needs its sink blocks and those that the first token after the prefix still sees: others are never read again. Content on the
 *   host counts as far as the device has slots to fetch it into.
 * Ownership: `foundIn` says where each block of the newest match is, until something changes the pools.
 */
export class PrefixMatcher {
  readonly #groups: readonly GroupPages[];
  readonly #found: readonly FoundBlocks[];

  constructor(groups: readonly GroupPages[]) {
    this.#groups = groups;
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

  /** @param maxBlocks upper bound of the answer */
  match(hashes: readonly string[], maxBlocks: number): PrefixMatch {
    let longest = Math.min(maxBlocks, hashes.length);
    for (const found of this.#found) if (!found.hasWindow) longest = found.lookUp(hashes, longest);
    for (const found of this.#found) if (found.hasWindow) found.lookUp(hashes, longest);
    for (let blocks = longest; blocks > 0; blocks--) {
      if (!this.#found.every((found) => found.costOf(blocks) <= found.pages.slots.available)) continue;
      return { blocks, costs: this.#found.map((found) => found.costOf(blocks)) };
    }
    return { blocks: 0, costs: this.#groups.map(() => 0) };
  }

  foundIn(group: number): FoundBlocks {
    return this.#found[group] as FoundBlocks;
  }
}
