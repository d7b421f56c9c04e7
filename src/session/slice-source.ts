import type { KvCacheManager } from '../cache/kv-cache-manager.js';
import { InternalError } from '../errors.js';
import { type LlmRequest, remainingPromptTokens } from '../executor/request.js';
import type { BlockRun } from '../geometry/block-run.js';
import { prefillSlice } from '../geometry/prefill-slice.js';
import { sourceRange } from '../geometry/source-range.js';
import { ownedBlocks } from '../mapping/index.js';
import { type ContextParallelPlace, globalRun } from './destination-runs.js';

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
 * The source run of each layer group for a slice; null where a group sends nothing.
 * @param place default: every block. A context parallel rank's cache manager counts only the blocks it owns
 * @throws InternalError when the cache manager breaks its contract: more than asked, or a full-attention run that is short
 */
export function sourceRuns(
  cache: KvCacheManager,
  request: LlmRequest,
  slice: SliceBounds,
  place: ContextParallelPlace = { cpSize: 1, cpRank: 0 },
): (BlockRun | null)[] {
  return cache.layerGroups.map((group, index) => {
    const range = sourceRange(slice, group, request.promptTokens.length, cache.tokensPerBlock);
    if (range === null) return null;
    const isState = group.kind === 'state';
    const { begin, end } = isState ? range : ownedBlocks(range.begin, range.end, place.cpRank, place.cpSize);
    if (begin >= end) return null;
    const run = cache.getBlockIdsRange(request.id, index, begin, end);
    const full = group.windowSize === null;
    if (run.begin < begin || run.begin + run.slots.length !== end || (full && run.slots.length < end - begin))
      throw new InternalError(
        `cache manager: group ${index} gave blocks [${run.begin}, ${run.begin + run.slots.length}) for [${begin}, ${end})`,
      );
    return isState ? run : globalRun(run, place);
  });
}
