import { ArgumentError } from '../errors.js';
import type { BlockRun } from '../geometry/block-run.js';
import type {
  CacheAllocation,
  CacheGroupStats,
  CachePrompt,
  KvCacheManager,
  LayerGroup,
  RequestId,
} from './kv-cache-manager.js';
import type { PagesReady } from './page-mover.js';

/**
 * Role: what a pipeline stage shows its transceiver of a cache manager that counts the layer groups of the whole model: the groups that
 *   have a layer in the stage, with those layers only.
 * Why: stages may have different groups (the first layer alone has no sliding window, say). Ranks that act alike must admit, wait and
 *   evict alike, so that each one's executor plans with the groups of the whole model; pages, and what peers are told, are those of the
 *   stage. A group without a layer here costs slots that stand for no memory.
 * Ownership: the manager behind stays the caller's, who gives that one to the executor and this view to the transceiver and the engine.
 *
 * @example
 * const whole = new GrowingCacheManager({ tokensPerBlock: 16, layerGroups: groupsOfTheModel });
 * const stage = new StageCache(whole, { begin: 0, end: 8 });
 */
export class StageCache implements KvCacheManager {
  readonly tokensPerBlock: number;
  readonly layerGroups: readonly LayerGroup[];
  readonly allocation?: CacheAllocation;
  readonly whole: KvCacheManager;
  /** Index in the view -> index in the manager behind. */
  readonly #groups: readonly number[];

  /**
   * @param stage global layer ids `[begin, end)`
   * @throws ArgumentError for a stage in which no group has a layer
   */
  constructor(whole: KvCacheManager, stage: { readonly begin: number; readonly end: number }) {
    const inStage = (layer: number): boolean => layer >= stage.begin && layer < stage.end;
    this.#groups = whole.layerGroups.flatMap(({ layers }, index) => (layers.some(inStage) ? [index] : []));
    if (this.#groups.length === 0)
      throw new ArgumentError(`stage: no layer group has a layer in [${stage.begin}, ${stage.end})`);
    this.whole = whole;
    this.tokensPerBlock = whole.tokensPerBlock;
    this.layerGroups = this.#groups.map((index) => {
      const group = whole.layerGroups[index] as LayerGroup;
      return { ...group, layers: group.layers.filter(inStage) };
    });
    if (whole.allocation !== undefined) this.allocation = whole.allocation;
  }

  assertFits(request: RequestId, prompt: Pick<CachePrompt, 'promptLen' | 'firstToken'>): void {
    this.whole.assertFits?.(request, prompt);
  }

  lookAhead(prompt: CachePrompt, blocks: number): boolean {
    return this.whole.lookAhead?.(prompt, blocks) ?? true;
  }

  fetchAhead(prompt: CachePrompt, blocks: number): boolean {
    return this.whole.fetchAhead?.(prompt, blocks) ?? true;
  }

  addRequest(request: RequestId, prompt: CachePrompt): { readonly prepopulatedLen: number } {
    return this.whole.addRequest(request, prompt);
  }

  growAhead(request: RequestId, blocks: number, endToken: number, firstToken?: number): boolean {
    return this.whole.growAhead?.(request, blocks, endToken, firstToken) ?? true;
  }

  ensureCapacity(request: RequestId, endToken: number, firstToken?: number): boolean {
    return this.whole.ensureCapacity(request, endToken, firstToken);
  }

  pagesReady(request: RequestId): PagesReady | null {
    return this.whole.pagesReady?.(request) ?? null;
  }

  prefixReady(request: RequestId): PagesReady | null {
    if (this.whole.prefixReady === undefined) return this.pagesReady(request);
    return this.whole.prefixReady(request);
  }

  markComputed(request: RequestId, endToken: number): void {
    this.whole.markComputed(request, endToken);
  }

  /** @throws RangeError also for a group that the stage does not have */
  getBlockIdsRange(request: RequestId, group: number, begin: number, end: number): BlockRun {
    const index = this.#groups[group];
    if (index === undefined) throw new RangeError(`group ${group} of a stage with ${this.#groups.length} layer groups`);
    return this.whole.getBlockIdsRange(request, index, begin, end);
  }

  /** Of groups without a layer here the whole prompt is held. Ranks that act alike pin `whole` instead, where each says the same. */
  pin(request: RequestId, firstBlocks?: readonly number[]): void {
    if (firstBlocks === undefined) this.whole.pin(request);
    else {
      const held = this.whole.layerGroups.map((_, index) => firstBlocks[this.#groups.indexOf(index)] ?? 0);
      this.whole.pin(request, held);
    }
  }

  unpin(request: RequestId): void {
    this.whole.unpin(request);
  }

  isPinned(request: RequestId): boolean {
    return this.whole.isPinned(request);
  }

  freeRequest(request: RequestId): void {
    this.whole.freeRequest(request);
  }

  stats(): readonly CacheGroupStats[] {
    const stats = this.whole.stats();
    return this.#groups.map((index) => stats[index] as CacheGroupStats);
  }
}
