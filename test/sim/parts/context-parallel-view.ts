import type {
  CacheGroupStats,
  CachePrompt,
  KvCacheManager,
  LayerGroup,
  RequestId,
} from '../../../src/cache/kv-cache-manager.js';
import type { BlockRun } from '../../../src/geometry/block-run.js';

/**
 * Role: what an executor sees of the cache of a context parallel rank: whole prompts. Every `size`-th block of one is here.
 * Why: the ranks must act alike, so each counts as many blocks as the one with the most, and finds of a prefix what all have: full rows of
 *   `size` blocks.
 */
export class ContextParallelView implements KvCacheManager {
  readonly tokensPerBlock: number;
  readonly layerGroups: readonly LayerGroup[];
  readonly #own: KvCacheManager;
  readonly #size: number;

  constructor(own: KvCacheManager, size: number) {
    this.#own = own;
    this.#size = size;
    this.tokensPerBlock = own.tokensPerBlock;
    this.layerGroups = own.layerGroups;
  }

  addRequest(request: RequestId, prompt: CachePrompt): { readonly prepopulatedLen: number } {
    const { promptLen, blockHashes, firstToken } = prompt;
    const { prepopulatedLen } = this.#own.addRequest(request, {
      promptLen: this.#ownTokens(promptLen),
      blockHashes: blockHashes.filter((_, ordinal) => ordinal % this.#size === this.#size - 1),
      ...(firstToken === undefined ? {} : { firstToken: this.#ownTokens(firstToken) }),
    });
    return { prepopulatedLen: prepopulatedLen * this.#size };
  }

  ensureCapacity(request: RequestId, endToken: number, firstToken?: number): boolean {
    const first = firstToken === undefined ? undefined : this.#ownTokens(firstToken);
    return this.#own.ensureCapacity(request, this.#ownTokens(endToken), first);
  }

  markComputed(request: RequestId, endToken: number): void {
    this.#own.markComputed(request, this.#ownTokens(endToken));
  }

  /** In the rank's own ordinals. */
  getBlockIdsRange(request: RequestId, group: number, begin: number, end: number): BlockRun {
    return this.#own.getBlockIdsRange(request, group, begin, end);
  }

  pin(request: RequestId, firstBlocks?: readonly number[]): void {
    this.#own.pin(request, firstBlocks);
  }

  unpin(request: RequestId): void {
    this.#own.unpin(request);
  }

  isPinned(request: RequestId): boolean {
    return this.#own.isPinned(request);
  }

  freeRequest(request: RequestId): void {
    this.#own.freeRequest(request);
  }

  stats(): readonly CacheGroupStats[] {
    return this.#own.stats();
  }

  /** A block for each begun row; a row that is not full is one token of it. */
  #ownTokens(tokens: number): number {
    const row = this.tokensPerBlock * this.#size;
    return Math.floor(tokens / row) * this.tokensPerBlock + (tokens % row > 0 ? 1 : 0);
  }
}
