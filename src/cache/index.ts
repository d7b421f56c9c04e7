/** Who owns which page, and what each page holds. */
export { chainBlockHashes } from './block-hash.js';
export { GrowingCacheManager, type GrowingCacheManagerOptions } from './growing-cache-manager.js';
export type { CacheGroupStats, CachePrompt, KvCacheManager, LayerGroup, RequestId } from './kv-cache-manager.js';
