import type { CacheManagerOptions } from './manager-options.js';
import { PagedCacheManager } from './paged-cache-manager.js';

/** As for both managers. */
export type GrowingCacheManagerOptions = CacheManagerOptions;

/**
 * Allocates slots chunk by chunk and lets blocks go that left the window: the shape of engines that do not reserve a whole prompt.
 *
 * @example
 * const cache = new GrowingCacheManager({ tokensPerBlock: 64, layerGroups })
 * const { prepopulatedLen } = cache.addRequest(1, { promptLen, blockHashes: chainBlockHashes(tokens, 64) })
 * if (cache.ensureCapacity(1, prepopulatedLen + 2048)) // compute the chunk, then
 *   cache.markComputed(1, prepopulatedLen + 2048)
 */
export class GrowingCacheManager extends PagedCacheManager {
  /** @throws ArgumentError naming the field */
  constructor(options: GrowingCacheManagerOptions) {
    super(options, false);
  }
}
