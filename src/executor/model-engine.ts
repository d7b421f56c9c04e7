import type { ReadyEvent } from '../agent/transfer-agent.js';
import type { PagesReady } from '../cache/page-mover.js';
import type { LlmRequest } from './request.js';

/**
 * One chunk of one context request, or one decode step of one generation request.
 * A decode step samples the token at `outputTokens[chunkStart + 1 - promptTokens.length]`, and feeds the one before that.
 */
export interface ScheduledWork {
  readonly request: LlmRequest;
  /**
   * Prompt tokens `[chunkStart, chunkEnd)` for a chunk; both the position of the token that is fed for a decode step. With the overlap
   * schedule that token may not be in `request.outputTokens` yet: the forward before this one samples it.
   */
  readonly chunkStart: number;
  readonly chunkEnd: number;
  /**
   * The cache manager still moves pages of this request (host memory, parts of blocks): the forward touches them behind `event`, or after
   * `done`, and fails when that fails. Null or absent: nothing to wait for.
   */
  readonly pagesReady?: PagesReady | null;
}

/** The work of one step. */
export interface ScheduledBatch {
  readonly context: readonly ScheduledWork[];
  readonly generation: readonly ScheduledWork[];
}

/** What a forward gives back once it is enqueued. */
export interface ForwardResult {
  /** Signalled when the pages of this batch are written; null when they already are. */
  readonly event: ReadyEvent | null;
  /**
   * The sampled token, an integer in [0, 2^32), of each request that produced one: finished prompts and decode steps; a request without one, or
   * with something else, fails, and it alone. Settles after `event`, and also a rejection
   * only when nothing of this forward writes pages any more: the pages are given up then. Overlap schedule: read only after those of the
   * forward before; what a request's earlier forward failed to compute is never sent, whatever comes of this one.
   */
  readonly tokens: Promise<ReadonlyMap<LlmRequest, number>>;
}

/** What a user plugs in. */
export interface ModelEngine {
  /**
   * Forwards may be enqueued while earlier ones run; they run one after another, and a decode step is fed the token that an earlier forward
   * sampled for its request, also while that forward is under way (an engine keeps it where it samples). What it computes for a request
   * whose earlier forward failed does not matter. Needed for the overlap schedule. Default: false.
   */
  readonly feedsItself?: boolean;
  /** Resolves when the work is enqueued, not when it is done. A rejection means that nothing was enqueued. */
  forward(batch: ScheduledBatch): Promise<ForwardResult>;
}
