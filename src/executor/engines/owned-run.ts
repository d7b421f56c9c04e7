import type { KvCacheManager, RequestId } from '../../cache/kv-cache-manager.js';
import type { BlockRun } from '../../geometry/block-run.js';
import { ownedBlocks } from '../../mapping/expected-bytes.js';

/** A rank's place among those that share out the blocks of a prompt. */
export interface BlockOwner {
  readonly cpSize: number;
  readonly cpRank: number;
}

/**
 * The pages that a rank has for the blocks `[begin, end)` of the prompt, as ordinals of the prompt; of a state group its one page.
 * A context parallel rank's cache manager counts only the blocks it owns.
 */
export function ownedRun(
  cache: KvCacheManager,
  request: RequestId,
  group: number,
  begin: number,
  end: number,
  { cpSize, cpRank }: BlockOwner,
): BlockRun {
  if (cache.layerGroups[group]?.kind === 'state') return cache.getBlockIdsRange(request, group, 0, 1);
  const owned = ownedBlocks(begin, end, cpRank, cpSize);
  if (owned.begin >= owned.end) return { begin: end, slots: new Int32Array(0) };
  const run = cache.getBlockIdsRange(request, group, owned.begin, owned.end);
  return cpSize === 1 ? run : { begin: cpRank + run.begin * cpSize, slots: run.slots, stride: cpSize };
}
