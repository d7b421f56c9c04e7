/** Who owns which page, and what each page holds. */
export { chainBlockHashes } from './block-hash.js';
export type { BlockPlace } from './group-pages.js';
export { GrowingCacheManager, type GrowingCacheManagerOptions } from './growing-cache-manager.js';
export type {
  CacheAllocation,
  CacheGroupStats,
  CachePrompt,
  KvCacheManager,
  LayerGroup,
  RequestId,
} from './kv-cache-manager.js';
export type { CacheManagerOptions } from './manager-options.js';
export type { PageMove, PageMover, PagesReady } from './page-mover.js';
export { PagedCacheManager } from './paged-cache-manager.js';
export { type PageMoverMemory, PoolPageMover } from './pool-page-mover.js';
export type { PrefixLocation } from './prefix-reuse.js';
export { ReservingCacheManager, type ReservingCacheManagerOptions } from './reserving-cache-manager.js';
export { StageCache } from './stage-cache.js';
