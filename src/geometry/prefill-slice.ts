import { assertCount, assertInterval, assertPositive, blocksCovering, blocksFilledBy } from './bounds.js';

/** Blocks `[beginBlock, endBlock)` of the prompt. */
export interface BlockSlice {
  readonly beginBlock: number;
  readonly endBlock: number;
  /** Absent = not the last one. */
  readonly isLast?: boolean;
}

/** The blocks one prefill chunk completed. Empty only when `isLast`. */
export interface PrefillSlice extends BlockSlice {
  readonly isLast: boolean;
}

/** One chunk of a prompt, in tokens. */
export interface PrefillChunk {
  /** The forward computed prompt tokens `[chunkStart, chunkEnd)`. `chunkEnd` may pass `promptLen` where a scheduler pads. */
  readonly chunkStart: number;
  readonly chunkEnd: number;
  readonly promptLen: number;
  /** Tokens found in the cache at admission; the first chunk starts here, whether or not that is a block boundary. */
  readonly prepopulatedLen: number;
  /** Prompt tokens left after this chunk: `promptLen - chunkEnd`, 0 on the last chunk. */
  readonly remaining: number;
  readonly tokensPerBlock: number;
  /** The early prefix slice was sent. */
  readonly prefixSent: boolean;
}

/**
 * Which blocks to send after a prefill chunk. The slices of a request tile `[0, ceil(promptLen / tokensPerBlock))`: each block is
 * in exactly one, and only after all its tokens were computed. Chunks need not end on block boundaries.
 *
 * @returns null when the chunk completed no block and is not the last; the last slice always exists, because `isLast` must reach
 *   the receiver
 * @throws RangeError for negative, fractional or unsafe numbers, a reversed chunk, a chunk that starts inside the reused prefix
 *   (its slices could not tile), or a `remaining` that contradicts `chunkEnd` (the last slice would end too early or never come)
 * @example
 * prefillSlice({ chunkStart: 0, chunkEnd: 259, promptLen: 520, prepopulatedLen: 0, remaining: 261, tokensPerBlock: 32,
 *   prefixSent: false }) // { beginBlock: 0, endBlock: 8, isLast: false }
 */
export function prefillSlice(chunk: PrefillChunk): PrefillSlice | null {
  const { chunkStart, chunkEnd, promptLen, prepopulatedLen, remaining, tokensPerBlock, prefixSent } = chunk;
  assertPositive(tokensPerBlock, 'tokensPerBlock');
  assertCount(promptLen, 'promptLen');
  assertInterval(prepopulatedLen, promptLen, 'prepopulatedLen', 'promptLen');
  assertInterval(prepopulatedLen, chunkStart, 'prepopulatedLen', 'chunkStart');
  assertInterval(chunkStart, chunkEnd, 'chunkStart', 'chunkEnd');
  assertCount(remaining, 'remaining');
  if (remaining !== Math.max(0, promptLen - chunkEnd)) {
    throw new RangeError(`remaining is ${remaining}, but promptLen ${promptLen} - chunkEnd ${chunkEnd} is not`);
  }

  const isFirst = chunkStart === prepopulatedLen;
  const isLast = remaining === 0;
  const blockCount = blocksCovering(promptLen, tokensPerBlock);
  // No chunk covers the reused prefix, so the first slice carries it unless it already left on its own.
  const begin = isFirst && !prefixSent ? 0 : blocksFilledBy(chunkStart, tokensPerBlock);
  const end = isLast ? blocksCovering(chunkEnd, tokensPerBlock) : blocksFilledBy(chunkEnd, tokensPerBlock);
  // Math.max: a bound of -0 leaves as 0.
  const beginBlock = Math.max(0, Math.min(begin, blockCount));
  const endBlock = Math.max(0, Math.min(end, blockCount));
  // A block that this chunk leaves half done is the next slice's first: its begin floors to the same block.
  if (endBlock <= beginBlock && !isLast) return null;
  return { beginBlock, endBlock, isLast };
}
