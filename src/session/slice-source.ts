import type { KvCacheManager } from '../cache/kv-cache-manager.js';
import { type LlmRequest, remainingPromptTokens } from '../executor/request.js';
import type { BlockRun } from '../geometry/block-run.js';
import { prefillSlice } from '../geometry/prefill-slice.js';
import { ALL_BLOCKS, type ContextParallelPlace, groupRun } from './group-run.js';

export interface SliceBounds {
  readonly beginBlock: number;
  readonly endBlock: number;
  readonly isLast: boolean;
}

/** Which blocks the chunk that was just scheduled sends. Null when it completes none. */
export function requestSlice(request: LlmRequest, tokensPerBlock: number, prefixSent: boolean): SliceBounds | null {
  const remaining = remainingPromptTokens(request);
  const promptLen = request.promptTokens.length;
  if (!request.transferPolicy.pipelined)
    return remaining > 0 ? null : { beginBlock: 0, endBlock: Math.ceil(promptLen / tokensPerBlock), isLast: true };
  return prefillSlice({
    chunkStart: request.chunkStart,
    chunkEnd: request.chunkEnd,
    promptLen,
    prepopulatedLen: request.prepopulatedLen,
    remaining,
    tokensPerBlock,
    prefixSent,
  });
}

/**
 * The source run of each layer group for a slice; null where a group sends nothing. What `destinationRuns` is to the receiver.
 * @param slice in ordinals of the prompt, on every rank
 * @param place default: every block. A context parallel rank's cache manager counts only the blocks it owns
 * @throws InternalError when the cache manager breaks its contract: more than asked, a hole, or less than asked of what no window lets go
 */
export function sourceRuns(
  cache: KvCacheManager,
  request: LlmRequest,
  slice: SliceBounds,
  place: ContextParallelPlace = ALL_BLOCKS,
): (BlockRun | null)[] {
  const owner = { cache, request: request.id, promptLen: request.promptTokens.length, place };
  return cache.layerGroups.map((_, index) => groupRun(owner, index, slice, 'suffix'));
}
