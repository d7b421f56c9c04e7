import type { BlockRun } from '../geometry/block-run.js';

/** Identity of a request inside one server. Never on the wire (that is the rid). */
export type RequestId = number;

/** Layers that share one life cycle and one slot space. */
export interface LayerGroup {
  readonly kind: 'attention' | 'latent' | 'state';
  /** Sliding window in tokens, or null for full attention. */
  readonly windowSize: number | null;
  readonly tokensPerBlock: number;
  /** Global layer ids. */
  readonly layers: readonly number[];
  /** Physical pages of this group. */
  readonly slotCount: number;
}

/** Who holds the slots of one layer group. */
export interface CacheGroupStats {
  readonly slotCount: number;
  /** Slots that hold nothing and are owned by nobody. */
  readonly free: number;
  /** Slots kept only because their content may be reused; they can be evicted. */
  readonly reusable: number;
  /** Slots held for transfers (a slot also held by its request counts here once). */
  readonly pinned: number;
}

/** What the cache needs to know of a prompt. */
export interface CachePrompt {
  /** Token count of the prompt, >= 1. */
  readonly promptLen: number;
  /** Chained hash of each full block of the prompt, `floor(promptLen / tokensPerBlock)` entries; equal hash = equal prefix content. */
  readonly blockHashes: readonly string[];
}

/**
 * Owns the slots of every layer group on one server and knows what each holds.
 *
 * Ownership: a slot is free, owned by requests (reference counted), reusable (content kept, nobody owns it), or pinned.
 * A pinned slot is never handed out, whatever else happens to the request that pinned it.
 */
export interface KvCacheManager {
  readonly tokensPerBlock: number;
  readonly layerGroups: readonly LayerGroup[];

  /**
   * Admits a request and matches its prefix against reusable blocks.
   * @returns tokens already present, a multiple of `tokensPerBlock`, always < `promptLen` so that one token is left to compute
   * @throws ArgumentError for a known request
   * @throws RequestTooLargeError when the prompt can never fit this pool
   */
  addRequest(request: RequestId, prompt: CachePrompt): { readonly prepopulatedLen: number };

  /**
   * Makes blocks for tokens `[0, endToken)` exist, except those of windowed groups that no token from `firstToken` on can see.
   * @param firstToken first token that will be computed on this server; default: the one after the computed tokens. A generation
   *   server that receives a prompt passes `promptLen`: its windowed groups then get the final window only
   * @returns false = not enough slots now, and nothing changed
   * @throws RangeError for bounds that are negative, reversed or not integers
   */
  ensureCapacity(request: RequestId, endToken: number, firstToken?: number): boolean;

  /** Tokens `[0, endToken)` hold their final content: full blocks become matchable, blocks that left the window may go. */
  markComputed(request: RequestId, endToken: number): void;

  /**
   * Contiguous resident run of `group` ENDING at `end`: ordinals `[end - n, end)`. May start later than `begin` (blocks that left
   * the window), never earlier; never contains a hole. O(end - begin).
   * @throws RangeError for negative, reversed or non-integer bounds, or `end` beyond what is allocated
   */
  getBlockIdsRange(request: RequestId, group: number, begin: number, end: number): BlockRun;

  /** Holds every block the request has now or gets later, until `unpin`, also beyond `freeRequest`. One pin per request. */
  pin(request: RequestId): void;
  unpin(request: RequestId): void;
  isPinned(request: RequestId): boolean;

  /** The request is done with its blocks. They become reusable or free once nothing else (a pin, another request) holds them. */
  freeRequest(request: RequestId): void;

  stats(): readonly CacheGroupStats[];
}
