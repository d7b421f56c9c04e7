import { assertCount, assertInterval, blocksCovering } from './bounds.js';
import type { BlockSlice } from './prefill-slice.js';
import type { BlockRange, GroupShape } from './source-range.js';
import { staleBlockEnd } from './stale-block-end.js';

/**
 * The sink blocks of a slice that `sourceRange` leaves out because they lie below the final window: every later token still sees them,
 * so they go like the window does. Never meets `sourceRange` of the same slice; the gap between the two is asked for by nobody, and a
 * range over it would be cut behind it.
 *
 * @returns null when there is nothing to ask for: no window, no sinks, or a slice behind them
 * @throws RangeError as `sourceRange`, and for a bad `sinkTokens`
 * @example sinkRange({ beginBlock: 0, endBlock: 13 }, { kind: 'attention', windowSize: 16, sinkTokens: 6 }, 64, 4) // { begin: 0, end: 2 }
 */
export function sinkRange(
  slice: BlockSlice,
  group: GroupShape,
  promptLen: number,
  tokensPerBlock: number,
): BlockRange | null {
  const { kind, windowSize, sinkTokens = 0 } = group;
  assertInterval(slice.beginBlock, slice.endBlock, 'beginBlock', 'endBlock');
  assertCount(sinkTokens, 'sinkTokens');
  const stale = staleBlockEnd(promptLen, windowSize, tokensPerBlock);
  if (kind === 'state' || windowSize === null) return null;
  const begin = Math.max(0, slice.beginBlock);
  // `stale` never passes the prompt.
  const end = Math.min(slice.endBlock, stale, blocksCovering(sinkTokens, tokensPerBlock));
  return begin < end ? { begin, end } : null;
}
