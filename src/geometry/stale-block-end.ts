import { assertCount, assertPositive } from './bounds.js';

/**
 * First block that the request still needs once its prompt is computed: blocks below are outside the final window. Also answers
 * the same question after any number of tokens, which is how a cache manager knows what may go.
 *
 * @param promptLen tokens computed before the next one
 * @param windowSize sliding window in tokens; null for full attention
 * @returns `max(0, floor((promptLen + 1 - windowSize) / tokensPerBlock))`, 0 for full attention. The `+ 1` is the next token: it
 *   sees itself and the `windowSize - 1` tokens before it. May equal the block count, then nothing of the prompt is needed.
 * @throws RangeError for negative, fractional or unsafe numbers, or a window or block size of 0
 * @example staleBlockEnd(64, 16, 4) // 12
 */
export function staleBlockEnd(promptLen: number, windowSize: number | null, tokensPerBlock: number): number {
  assertCount(promptLen, 'promptLen');
  assertPositive(tokensPerBlock, 'tokensPerBlock');
  if (windowSize === null) return 0;
  assertPositive(windowSize, 'windowSize');
  return Math.max(0, Math.floor((promptLen - windowSize + 1) / tokensPerBlock));
}
