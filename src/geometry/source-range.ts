import { assertCount, assertInterval, assertPositive, blocksCovering } from './bounds.js';
import type { BlockSlice } from './prefill-slice.js';
import { staleBlockEnd } from './stale-block-end.js';

/** What the range rule needs to know of a layer group. */
export interface GroupShape {
  readonly kind: 'attention' | 'latent' | 'state';
  /** Sliding window in tokens, or null for full attention. */
  readonly windowSize: number | null;
  /** First tokens that stay resident beside the window, in whole blocks. Default 0; without meaning where there is no window. */
  readonly sinkTokens?: number;
}

/** Block ordinals `[begin, end)`. */
export interface BlockRange {
  readonly begin: number;
  readonly end: number;
}

/**
 * What to ask the cache manager for, for one layer group and one slice; `sinkRange` names the sink blocks below the window.
 *
 * Windowed groups leave out blocks that are outside the *final* window: that depends on the whole prompt, never on the chunk, so
 * both sides agree on it without talking. Recurrent state changes with every token and goes once, with the last slice, as the one
 * state slot of the request: `{ begin: 0, end: 1 }`.
 *
 * @returns null when there is nothing to ask for; then make no query at all
 * @throws RangeError for negative, reversed, fractional or unsafe bounds, or a window of 0
 * @example sourceRange({ beginBlock: 11, endBlock: 13 }, { kind: 'attention', windowSize: 16 }, 64, 4) // { begin: 12, end: 13 }
 */
export function sourceRange(
  slice: BlockSlice,
  group: GroupShape,
  promptLen: number,
  tokensPerBlock: number,
): BlockRange | null {
  assertInterval(slice.beginBlock, slice.endBlock, 'beginBlock', 'endBlock');
  assertCount(promptLen, 'promptLen');
  assertPositive(tokensPerBlock, 'tokensPerBlock');
  // Before the kind is looked at: a bad window is a mistake of whoever made the group, whatever its kind.
  if (group.windowSize !== null) assertPositive(group.windowSize, 'windowSize');
  if (group.kind === 'state') return slice.isLast === true ? { begin: 0, end: 1 } : null;
  const begin = Math.max(slice.beginBlock, staleBlockEnd(promptLen, group.windowSize, tokensPerBlock));
  // Blocks past the prompt (reserved for speculative tokens) hold nothing worth sending.
  const end = Math.min(slice.endBlock, blocksCovering(promptLen, tokensPerBlock));
  return begin < end ? { begin, end } : null;
}
