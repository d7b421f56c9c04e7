import { GrowingCacheManager } from '../../../cache/growing-cache-manager.js';
import type {
  CacheAllocation,
  CacheGroupStats,
  CachePrompt,
  KvCacheManager,
  LayerGroup,
  RequestId,
} from '../../../cache/kv-cache-manager.js';
import type { BlockRun } from '../../../geometry/block-run.js';

/**
 * Role: cache manager of a context parallel rank. Callers speak of the prompt's tokens and of the blocks that the rank owns, counted
 *   0, 1, ...; a manager behind it keeps one block for each stripe (as many neighbouring blocks as there are ranks).
 * Why: every rank sees the same stripes, whichever of their blocks it owns, so that all ranks of a side admit, wait and find prefixes
 *   alike. A rank that owns no block of the last stripe has one slot too many.
 * Invariant: a stripe is found again only when all its tokens were computed; what is found is whole stripes.
 * Windows are not cut: which blocks left one depends on the whole prompt, and the pools of the bench have room for it. Of a windowed group
 *   only the final window is received, so what a request with such a group received is found by nobody else.
 */
export class ContextParallelCache implements KvCacheManager {
  readonly tokensPerBlock: number;
  readonly layerGroups: readonly LayerGroup[];
  readonly allocation: CacheAllocation;
  readonly #cpSize: number;
  readonly #inner: GrowingCacheManager;
  /** Requests that receive their prompt, windows cut. */
  readonly #receivingInPart = new Set<RequestId>();

  /** `layerGroups`: as the rank's page table has them. */
  constructor(options: {
    readonly cpSize: number;
    readonly tokensPerBlock: number;
    readonly layerGroups: readonly LayerGroup[];
    readonly seed: number;
  }) {
    const { cpSize, tokensPerBlock, layerGroups, seed } = options;
    this.#cpSize = cpSize;
    this.tokensPerBlock = tokensPerBlock;
    // Who plans with the groups counts blocks of the whole prompt.
    this.layerGroups = layerGroups.map((group) =>
      group.kind === 'state' ? group : { ...group, slotCount: group.slotCount * cpSize },
    );
    this.#inner = new GrowingCacheManager({
      tokensPerBlock,
      layerGroups: layerGroups.map((group) => ({ ...group, windowSize: null })),
      seed,
    });
    this.allocation = this.#inner.allocation;
  }

  addRequest(request: RequestId, prompt: CachePrompt): { readonly prepopulatedLen: number } {
    const { promptLen, blockHashes, firstToken } = prompt;
    const { prepopulatedLen } = this.#inner.addRequest(request, {
      promptLen: this.#heldTokens(promptLen),
      blockHashes: this.#stripeHashes(request, promptLen, blockHashes),
    });
    const receives = firstToken === promptLen;
    if (receives && this.layerGroups.some(({ windowSize }) => windowSize !== null)) this.#receivingInPart.add(request);
    return { prepopulatedLen: prepopulatedLen * this.#cpSize };
  }

  ensureCapacity(request: RequestId, endToken: number, firstToken?: number): boolean {
    const first = firstToken === undefined ? undefined : this.#wholeTokens(firstToken);
    return this.#inner.ensureCapacity(request, this.#heldTokens(endToken), first);
  }

  markComputed(request: RequestId, endToken: number): void {
    if (!this.#receivingInPart.has(request)) this.#inner.markComputed(request, this.#wholeTokens(endToken));
  }

  getBlockIdsRange(request: RequestId, group: number, begin: number, end: number): BlockRun {
    return this.#inner.getBlockIdsRange(request, group, begin, end);
  }

  /** Holds all blocks: none of them leaves a window here. */
  pin(request: RequestId): void {
    this.#inner.pin(request);
  }

  unpin(request: RequestId): void {
    this.#inner.unpin(request);
  }

  isPinned(request: RequestId): boolean {
    return this.#inner.isPinned(request);
  }

  freeRequest(request: RequestId): void {
    this.#inner.freeRequest(request);
    this.#receivingInPart.delete(request);
  }

  stats(): readonly CacheGroupStats[] {
    return this.#inner.stats();
  }

  /** Tokens that make the manager behind hold one block for each stripe that `[0, end)` touches. */
  #heldTokens(end: number): number {
    return this.#stripesIn(end) * this.tokensPerBlock + Math.min(this.tokensPerBlock, this.#restOf(end));
  }

  /** As `#heldTokens`, but a stripe that is not over yet never looks full. */
  #wholeTokens(end: number): number {
    return this.#stripesIn(end) * this.tokensPerBlock + Math.min(this.tokensPerBlock - 1, this.#restOf(end));
  }

  #stripesIn(end: number): number {
    return Math.floor(end / (this.tokensPerBlock * this.#cpSize));
  }

  #restOf(end: number): number {
    return end % (this.tokensPerBlock * this.#cpSize);
  }

  /** A stripe is named by its last block, whose hash tells all blocks before it. */
  #stripeHashes(request: RequestId, promptLen: number, blockHashes: readonly string[]): readonly string[] {
    const stripes = this.#stripesIn(promptLen);
    const hashes = Array.from(
      { length: stripes },
      (_, stripe) => blockHashes[(stripe + 1) * this.#cpSize - 1] as string,
    );
    // A block that is full although its stripe is not: nobody else shall find it.
    if (this.#restOf(promptLen) >= this.tokensPerBlock) hashes.push(`unfinished stripe of request ${request}`);
    return hashes;
  }
}
