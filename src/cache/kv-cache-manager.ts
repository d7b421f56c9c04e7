import type { BlockRun } from '../geometry/block-run.js';
import type { PagesReady } from './page-mover.js';

/** Identity of a request inside one server. Never on the wire (that is the rid). */
export type RequestId = number;

/** Layers that share one life cycle and one slot space. */
export interface LayerGroup {
  readonly kind: 'attention' | 'latent' | 'state';
  /** Sliding window in tokens, or null for full attention. */
  readonly windowSize: number | null;
  /** Without meaning for `state`, which has one slot per request. */
  readonly tokensPerBlock: number;
  /** Global layer ids. */
  readonly layers: readonly number[];
  /** Physical pages of this group. */
  readonly slotCount: number;
  /** First tokens that stay resident beside the window (attention sinks), in whole blocks. Default 0; only with a window. */
  readonly sinkTokens?: number;
  /** Pages in host memory for content that was evicted from the device. Default 0. */
  readonly hostSlotCount?: number;
}

/** Use of one layer group's slots. */
export interface CacheGroupStats {
  readonly slotCount: number;
  /** Slots that hold nothing and are owned by nobody. */
  readonly free: number;
  /** Slots kept only because their content may be reused; they can be evicted. */
  readonly reusable: number;
  /** Slots held for transfers (a slot also held by its request counts here once). */
  readonly pinned: number;
  /** Host slots that hold content; absent where the group has no host slots. */
  readonly offloaded?: number;
}

/** What the cache needs to know of a prompt. */
export interface CachePrompt {
  /** Token count of the prompt, >= 1. */
  readonly promptLen: number;
  /** Chained hash of each full block of the prompt, `floor(promptLen / tokensPerBlock)` entries; equal hash = equal prefix content. */
  readonly blockHashes: readonly string[];
  /** The prompt itself, `promptLen` tokens. Without it no part of a block is reused. */
  readonly tokens?: Uint32Array;
  /**
   * What the chain of hashes starts from. Default ''. Where `blockHashes` depend on more than the tokens (adapter, tenant), name it here
   * too: parts of a block are compared by their tokens, and the first block has no hash before it that would tell two chains apart.
   */
  readonly rootHash?: string;
  /**
   * First token that will be computed on this server; a generation server that receives the prompt says `promptLen`. Default: the
   * token after the hit. Only to refuse early what can never fit, and to leave out hits that a transfer would overwrite.
   */
  readonly firstToken?: number;
}

/** How a manager takes slots, for whoever plans with them. */
export interface CacheAllocation {
  /** The whole prompt is taken at the first `ensureCapacity` and kept to the end; else blocks come by the chunk and go with the window. */
  readonly reservesPrompt: boolean;
  /** Tokens reserved past the end that was asked for, once the prompt is covered. */
  readonly speculativeTokens: number;
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
  /** Absent: grows by the chunk, nothing speculative. */
  readonly allocation?: CacheAllocation;
  /**
   * The manager behind a view of some of its layer groups. Transfers pin there, in all groups: ranks with different views then hold alike.
   * Absent: this one has all groups.
   */
  readonly whole?: KvCacheManager;

  /**
   * Refuses early, before a request waits in line; changes nothing. Absent: `addRequest` refuses.
   * @throws RequestTooLargeError when the prompt can never fit this pool
   */
  assertFits?(request: RequestId, prompt: Pick<CachePrompt, 'promptLen' | 'firstToken'>): void;

  /**
   * Looks for `blocks` more blocks of a prompt that `addRequest` is given next, with the same array of hashes, so that admitting a long prompt is
   * not one long turn; changes nothing that anybody else sees. Absent: `addRequest` looks for all of them.
   * @returns true when none is left to look for
   * @throws ArgumentError for `blocks` that is no positive integer
   */
  lookAhead?(prompt: CachePrompt, blocks: number): boolean;

  /**
   * Brings at most `blocks` blocks per layer group of a prompt that `addRequest` is given next, with the same array of hashes and after `lookAhead`, from
   * the host to the device, so that admitting it fetches few of them itself. They are content that nobody owns, whether the prompt is admitted or not.
   * Absent: `addRequest` fetches all.
   * @returns true when none is left, there is no room for all of them, or there were no more than `blocks` to begin with: those are left to `addRequest`
   * @throws ArgumentError for `blocks` that is no positive integer
   */
  fetchAhead?(prompt: CachePrompt, blocks: number): boolean;

  /**
   * Admits a request and matches its prefix against reusable blocks, those in host memory included.
   * @returns tokens already present, always < `promptLen` so that one token is left to compute; a multiple of `tokensPerBlock` unless the
   *   manager reuses parts of blocks. They may be read once `pagesReady` says so
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

  /**
   * Takes at most `blocks` blocks per layer group of those that `ensureCapacity` is asked for next, so that a long prompt's are not taken in one
   * long turn. Nobody can read them before, and whoever frees the request gives them back. Absent: `ensureCapacity` takes all.
   * @returns true when none is left to take, or not all can be had now
   * @throws RangeError as `ensureCapacity` does
   * @throws ArgumentError for `blocks` that is no positive integer
   */
  growAhead?(request: RequestId, blocks: number, endToken: number, firstToken?: number): boolean;

  /**
   * When the request's pages may be read and written: null = now. A manager that moves pages (host memory, parts of blocks) hands out
   * slots whose old content is still being saved, or whose new content is still being fetched. Ask again after each `addRequest` and
   * `ensureCapacity`. Absent: always now.
   * @throws TransportError when moves that should have brought the request's content have failed: it must be given up
   */
  pagesReady?(request: RequestId): PagesReady | null;

  /**
   * When the content that `addRequest` found may be read, whatever else of the request's pages is still being moved: null = now. An early
   * prefix is sent behind it. Absent: as `pagesReady`.
   * @throws TransportError as `pagesReady` does
   */
  prefixReady?(request: RequestId): PagesReady | null;

  /** Tokens `[0, endToken)` hold their final content: full blocks become matchable, blocks that left the window may go. */
  markComputed(request: RequestId, endToken: number): void;

  /**
   * Contiguous resident run of `group` ENDING at `end`: ordinals `[end - n, end)`. May start later than `begin` (blocks that left
   * the window), never earlier; never contains a hole: what lies before the last gap inside the range is left out. O(end - begin).
   * A `state` group has one block, ordinal 0. Blocks beyond the tokens that were computed exist and hold nothing yet; blocks beyond what
   * `ensureCapacity` was asked for (speculative ones) are refused.
   * @throws RangeError for negative, reversed or non-integer bounds, or `end` beyond what is allocated
   */
  getBlockIdsRange(request: RequestId, group: number, begin: number, end: number): BlockRun;

  /**
   * Holds the blocks of the prompt that the request has now or gets later, until `unpin`, also beyond `freeRequest`. One pin per request.
   * Blocks beyond the prompt (decoded or speculative tokens) are never part of a transfer and are not held.
   * @param firstBlocks per layer group: the first ordinal that a run of this transfer will name. Blocks below are not held, so a windowed
   *   pool need not keep what has left the window. Give only what the code that names the runs vouches for: `sourceRange` over the
   *   whole prompt never begins below `staleBlockEnd(promptLen, windowSize, tokensPerBlock)`. Sink blocks are held wherever the window
   *   begins (`sinkRange`). Default: 0, the whole prompt is held
   */
  pin(request: RequestId, firstBlocks?: readonly number[]): void;
  unpin(request: RequestId): void;
  isPinned(request: RequestId): boolean;

  /** The request is done with its blocks. They become reusable or free once nothing else (a pin, another request) holds them. */
  freeRequest(request: RequestId): void;

  stats(): readonly CacheGroupStats[];
}
