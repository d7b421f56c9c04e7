import type { CacheManagerOptions } from './manager-options.js';
import { PagedCacheManager } from './paged-cache-manager.js';

/** As for both managers. */
export type ReservingCacheManagerOptions = CacheManagerOptions;

/**
 * Takes all slots of a prompt at the first `ensureCapacity` and keeps them, windowed ones too, until the request is freed: the shape of
 * engines that admit a request only when all of it fits. Blocks beyond the computed tokens exist and hold nothing yet; they must not be
 * read.
 *
 * @example
 * const cache = new ReservingCacheManager({ tokensPerBlock: 4, layerGroups })
 * cache.addRequest(1, { promptLen: 64, blockHashes: chainBlockHashes(tokens, 4) })
 * cache.ensureCapacity(1, 8) // all 16 blocks, or false
 */
export class ReservingCacheManager extends PagedCacheManager {
  /** @throws ArgumentError naming the field */
  constructor(options: ReservingCacheManagerOptions) {
    super(options, true);
  }
}
