import { blocksCovering, blocksFilledBy } from '../geometry/bounds.js';
import type { LayerGroup } from './kv-cache-manager.js';

/**
 * Whether a transfer brings every token of a block. It brings the final window and the sinks, both in whole blocks *of the sender*:
 * where those are smaller than ours, the block in which our window begins or our sinks end arrives in part. That is all a request
 * needs, but the block must not pass for whole content.
 *
 * @param promptLen tokens of the prompt that was sent
 * @param senderTokensPerBlock of the smallest blocks it may have come in; 1 = unknown
 */
export function arrivesWhole(
  { windowSize, sinkTokens = 0, tokensPerBlock }: LayerGroup,
  ordinal: number,
  promptLen: number,
  senderTokensPerBlock: number,
): boolean {
  if (windowSize === null) return true;
  const begin = ordinal * tokensPerBlock;
  const seenBegin = Math.max(0, promptLen + 1 - windowSize);
  const windowBegin = blocksFilledBy(seenBegin, senderTokensPerBlock) * senderTokensPerBlock;
  const sinkEnd = blocksCovering(sinkTokens, senderTokensPerBlock) * senderTokensPerBlock;
  return begin >= windowBegin || sinkEnd >= windowBegin || begin + tokensPerBlock <= sinkEnd;
}
