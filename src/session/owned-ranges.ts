import type { BlockSlice } from '../geometry/prefill-slice.js';
import { sinkRange } from '../geometry/sink-range.js';
import { type BlockRange, type GroupShape, sourceRange } from '../geometry/source-range.js';
import { ownedBlocks } from '../mapping/index.js';
import type { ContextParallelPlace } from './group-run.js';

/** What one rank has of a slice of one layer group, in its own count of blocks; null: nothing. */
export interface OwnedRanges {
  /** Sink blocks below the window. */
  readonly front: BlockRange | null;
  /** The part of the final window; everything where there is no window. */
  readonly back: BlockRange | null;
}

/**
 * The rule by which each side names its blocks, so that either can say what the other must name.
 * @param slice in ordinals of the prompt, on every rank. State is one slot, on every rank alike
 */
export function ownedRanges(
  group: GroupShape & { readonly tokensPerBlock: number },
  slice: BlockSlice,
  promptLen: number,
  place: ContextParallelPlace,
): OwnedRanges {
  const { tokensPerBlock } = group;
  const range = sourceRange(slice, group, promptLen, tokensPerBlock);
  if (group.kind === 'state') return { front: null, back: range };
  return { front: owned(sinkRange(slice, group, promptLen, tokensPerBlock), place), back: owned(range, place) };
}

/** The rank's own count of its blocks in a range; null when it has none there. */
function owned(range: BlockRange | null, { cpRank, cpSize }: ContextParallelPlace): BlockRange | null {
  if (range === null) return null;
  const { begin, end } = ownedBlocks(range.begin, range.end, cpRank, cpSize);
  return begin < end ? { begin, end } : null;
}
