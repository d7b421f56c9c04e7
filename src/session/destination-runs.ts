import type { KvCacheManager } from '../cache/kv-cache-manager.js';
import type { LlmRequest } from '../executor/request.js';
import type { BlockRun } from '../geometry/block-run.js';
import { ALL_BLOCKS, type ContextParallelPlace, groupRun } from './group-run.js';

/**
 * The receiver's run of every layer group: `[0, B)` without what it has (whole blocks of its cached prefix) and without what
 * no token will look at (below the final window, sink blocks apart). What a run leaves out is a hole: the writer moves nothing there.
 * Recurrent state is one slot, whatever prefix is cached: only the state after the whole prompt is of use.
 *
 * @param place default: every block. A context parallel rank's cache manager counts only the blocks it owns
 * @throws InternalError when the cache manager breaks its contract: more or less than asked, or a hole. A window that lacks a block
 *   that it needs would never get it
 */
export function destinationRuns(
  cache: KvCacheManager,
  request: LlmRequest,
  place: ContextParallelPlace = ALL_BLOCKS,
): BlockRun[] {
  const owner = { cache, request: request.id, promptLen: request.promptTokens.length, place };
  return cache.layerGroups.map(({ tokensPerBlock }, index) => {
    const endBlock = Math.ceil(owner.promptLen / tokensPerBlock);
    const beginBlock = Math.floor(request.prepopulatedLen / tokensPerBlock);
    const run = groupRun(owner, index, { beginBlock, endBlock, isLast: true }, 'exact');
    return run ?? { begin: endBlock, slots: new Int32Array(0) };
  });
}
