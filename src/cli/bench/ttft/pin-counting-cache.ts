import type {
  CacheAllocation,
  CacheGroupStats,
  CachePrompt,
  KvCacheManager,
  LayerGroup,
  RequestId,
} from '../../../cache/kv-cache-manager.js';
import type { PagesReady } from '../../../cache/page-mover.js';
import type { BlockRun } from '../../../geometry/block-run.js';

/**
 * Role: lets two holders pin the same request: the transfer, which has the one pin that a cache manager knows, and the verification
 *   after it.
 * Why: the ranks of a server keep a request's pages until all of them have drained, which may be after the first token.
 */
export class PinCountingCache implements KvCacheManager {
  readonly tokensPerBlock: number;
  readonly layerGroups: readonly LayerGroup[];
  readonly allocation?: CacheAllocation;
  readonly #inner: KvCacheManager;
  readonly #pins = new Map<RequestId, number>();

  constructor(inner: KvCacheManager) {
    this.#inner = inner;
    this.tokensPerBlock = inner.tokensPerBlock;
    this.layerGroups = inner.layerGroups;
    if (inner.allocation !== undefined) this.allocation = inner.allocation;
  }

  /** The first pin decides which blocks are held. */
  pin(request: RequestId, firstBlocks?: readonly number[]): void {
    const pins = this.#pins.get(request) ?? 0;
    if (pins === 0) this.#inner.pin(request, firstBlocks);
    this.#pins.set(request, pins + 1);
  }

  unpin(request: RequestId): void {
    const pins = this.#pins.get(request) ?? 0;
    if (pins > 1) {
      this.#pins.set(request, pins - 1);
      return;
    }
    this.#inner.unpin(request);
    this.#pins.delete(request);
  }

  isPinned(request: RequestId): boolean {
    return this.#inner.isPinned(request);
  }

  assertFits(request: RequestId, prompt: Pick<CachePrompt, 'promptLen' | 'firstToken'>): void {
    this.#inner.assertFits?.(request, prompt);
  }

  addRequest(request: RequestId, prompt: CachePrompt): { readonly prepopulatedLen: number } {
    return this.#inner.addRequest(request, prompt);
  }

  ensureCapacity(request: RequestId, endToken: number, firstToken?: number): boolean {
    return this.#inner.ensureCapacity(request, endToken, firstToken);
  }

  pagesReady(request: RequestId): PagesReady | null {
    return this.#inner.pagesReady?.(request) ?? null;
  }

  prefixReady(request: RequestId): PagesReady | null {
    if (this.#inner.prefixReady === undefined) return this.pagesReady(request);
    return this.#inner.prefixReady(request);
  }

  markComputed(request: RequestId, endToken: number): void {
    this.#inner.markComputed(request, endToken);
  }

  getBlockIdsRange(request: RequestId, group: number, begin: number, end: number): BlockRun {
    return this.#inner.getBlockIdsRange(request, group, begin, end);
  }

  freeRequest(request: RequestId): void {
    this.#inner.freeRequest(request);
  }

  stats(): readonly CacheGroupStats[] {
    return this.#inner.stats();
  }
}
