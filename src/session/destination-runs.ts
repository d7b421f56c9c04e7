import type { KvCacheManager } from '../cache/kv-cache-manager.js';
import { InternalError } from '../errors.js';
import type { LlmRequest } from '../executor/request.js';
import type { BlockRun } from '../geometry/block-run.js';
import { staleBlockEnd } from '../geometry/stale-block-end.js';
import { ownedBlocks } from '../mapping/index.js';

/** A rank's place among those that share out the blocks of a prompt. */
export interface ContextParallelPlace {
  readonly cpSize: number;
  readonly cpRank: number;
}

const ALL_BLOCKS: ContextParallelPlace = { cpSize: 1, cpRank: 0 };

/**
 * The receiver's run of every layer group: `[0, B)` without what it has (whole blocks of its cached prefix) and without what
 * no token will look at (below the final window). What a run leaves out in front is a hole: the writer moves nothing there.
 * Recurrent state is one slot, whatever prefix is cached: only the state after the whole prompt is of use.
 *
 * @param place default: every block. A context parallel rank's cache manager counts only the blocks it owns
 */
export function destinationRuns(
  cache: KvCacheManager,
  request: LlmRequest,
  place: ContextParallelPlace = ALL_BLOCKS,
): BlockRun[] {
  const promptLen = request.promptTokens.length;
  return cache.layerGroups.map((group, index) => {
    if (group.kind === 'state') return cache.getBlockIdsRange(request.id, index, 0, 1);
    const blockCount = Math.ceil(promptLen / group.tokensPerBlock);
    const cached = Math.floor(request.prepopulatedLen / group.tokensPerBlock);
    const begin = Math.max(cached, staleBlockEnd(promptLen, group.windowSize, group.tokensPerBlock));
    const owned = ownedBlocks(begin, blockCount, place.cpRank, place.cpSize);
    if (owned.begin >= owned.end) return { begin: blockCount, slots: new Int32Array(0) };
    const run = cache.getBlockIdsRange(request.id, index, owned.begin, owned.end);
    return globalRun(run, place);
  });
}

/** A run in a rank's own count of blocks, as ordinals of the prompt. */
export function globalRun(run: BlockRun, { cpSize, cpRank }: ContextParallelPlace): BlockRun {
  if (cpSize === 1) return run;
  if (run.stride !== undefined) throw new InternalError(`cache manager: a run of stride ${run.stride}`);
  return { begin: cpRank + run.begin * cpSize, slots: run.slots, stride: cpSize };
}
