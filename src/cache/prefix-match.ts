import type { GroupPages } from './group-pages.js';

/** How much of a prompt is in the cache, and what taking it costs. */
export interface PrefixMatch {
  /** Whole blocks. */
  readonly blocks: number;
  /** Per layer group: slots that taking the match makes unavailable (idle ones it takes over, new ones for content on the host). */
  readonly costs: readonly number[];
}

/** Counts over the first n blocks of a prompt in one group, for every n. */
interface Tally {
  readonly pages: GroupPages;
  readonly absent: Int32Array;
  readonly cost: Int32Array;
}

/**
 * The longest prefix, in whole blocks, that every layer group can serve now. A full-attention group needs each block of it. A windowed
 * group needs its sink blocks and those that the first token after the prefix still sees: others are never read again. Content on the
 * host counts as far as the device has slots to fetch it into.
 *
 * @param maxBlocks upper bound of the answer
 */
export function matchPrefix(groups: readonly GroupPages[], hashes: readonly string[], maxBlocks: number): PrefixMatch {
  let longest = Math.min(maxBlocks, hashes.length);
  for (const pages of groups) {
    if (pages.group.windowSize !== null) continue;
    let length = 0;
    while (length < longest && pages.place(hashes[length] as string) !== 'absent') length++;
    longest = length;
  }
  const tallies = groups.map((pages) => tally(pages, hashes, longest));
  for (let blocks = longest; blocks > 0; blocks--) {
    const costs = tallies.map((counts) => costOf(counts, blocks));
    if (costs.every((cost, index) => cost <= (groups[index] as GroupPages).slots.available)) return { blocks, costs };
  }
  return { blocks: 0, costs: groups.map(() => 0) };
}

/** First block behind the sinks that a match of `blocks` blocks takes. */
export function matchBegin(pages: GroupPages, blocks: number): number {
  return Math.min(pages.staleEnd(blocks * pages.group.tokensPerBlock), blocks);
}

function tally(pages: GroupPages, hashes: readonly string[], longest: number): Tally {
  const absent = new Int32Array(longest + 1);
  const cost = new Int32Array(longest + 1);
  for (let ordinal = 0; ordinal < longest; ordinal++) {
    const hash = hashes[ordinal] as string;
    const slot = pages.slots.find(hash);
    const isAbsent = slot === null && pages.place(hash) === 'absent';
    const takes = slot === null ? !isAbsent : pages.slots.isIdle(slot);
    absent[ordinal + 1] = (absent[ordinal] as number) + Number(isAbsent);
    cost[ordinal + 1] = (cost[ordinal] as number) + Number(takes);
  }
  return { pages, absent, cost };
}

/** Slots that a match of `blocks` blocks costs; Infinity where a block that it needs is absent. */
function costOf({ pages, absent, cost }: Tally, blocks: number): number {
  const sinks = Math.min(pages.sinkBlocks, blocks);
  const begin = matchBegin(pages, blocks);
  const within = (counts: Int32Array): number =>
    (counts[sinks] as number) + (counts[blocks] as number) - (counts[begin] as number);
  return within(absent) > 0 ? Infinity : within(cost);
}
