import { assertCount, assertPositive, blocksFilledBy } from './bounds.js';

/** What decides whether a reused prefix leaves early. */
export interface EarlyPrefixGates {
  /** Tokens found in the cache at admission. */
  readonly prepopulatedLen: number;
  readonly tokensPerBlock: number;
  readonly isFirstChunk: boolean;
  readonly cancelled: boolean;
  readonly pipelined: boolean;
}

/**
 * The whole blocks of the reused prefix: they can leave before the first forward. A partly reused block is not among them, because
 * the first chunk still writes into it.
 *
 * @returns null when there is no whole block, after the first chunk, when cancelled, or when not pipelined
 * @throws RangeError for negative, fractional or unsafe numbers
 * @example
 * earlyPrefixSlice({ prepopulatedLen: 14, tokensPerBlock: 4, isFirstChunk: true, cancelled: false, pipelined: true })
 * // { beginBlock: 0, endBlock: 3 }
 */
export function earlyPrefixSlice(
  gates: EarlyPrefixGates,
): { readonly beginBlock: 0; readonly endBlock: number } | null {
  const { prepopulatedLen, tokensPerBlock, isFirstChunk, cancelled, pipelined } = gates;
  assertCount(prepopulatedLen, 'prepopulatedLen');
  assertPositive(tokensPerBlock, 'tokensPerBlock');
  if (!isFirstChunk || cancelled || !pipelined) return null;
  const endBlock = blocksFilledBy(prepopulatedLen, tokensPerBlock);
  return endBlock === 0 ? null : { beginBlock: 0, endBlock };
}
