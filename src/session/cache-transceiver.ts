import type { ReadyEvent } from '../agent/transfer-agent.js';
import type { KvTransceiverError } from '../errors.js';
import type { LlmRequest } from '../executor/request.js';
import type { TransferLedger } from './transfer-ledger.js';

/** Which blocks a send covers: ordinals `[beginBlock, endBlock)`. */
export interface SendReceipt {
  readonly beginBlock: number;
  readonly endBlock: number;
  readonly isLast: boolean;
}

/** The one terminal outcome of one request on one side. */
export interface Settled {
  readonly request: LlmRequest;
  readonly side: 'context' | 'generation';
  readonly outcome: 'completed' | 'failed' | 'cancelled';
  /** Null exactly when completed. */
  readonly error: KvTransceiverError | null;
  /** Tokens that came with the cache (generation side, generation first); else empty. */
  readonly firstTokens: readonly number[];
  /**
   * Generation side, not completed: tokens from the start of the prompt whose cache arrived whole, so that the engine computes only the
   * rest. Whole blocks; 0 when unknown, or no more than its cached prefix.
   */
  readonly salvageableTokens: number;
  readonly timings: TransferTimings;
}

/** One slice to one receiver. CLOCK_MONOTONIC ms; `postedAtMs` is null when nothing had to move. */
export interface SliceTiming {
  readonly seq: number;
  readonly beginBlock: number;
  readonly endBlock: number;
  readonly bytes: number;
  /** The executor handed the slice over (its pages may still be computed then). */
  readonly submittedAtMs: number;
  readonly postedAtMs: number | null;
  readonly finishedAtMs: number | null;
}

/**
 * CLOCK_MONOTONIC ms of what comes between the last byte and the outcome; null where it did not happen or is the other side's to say.
 * Of several receivers or writers the last one counts.
 */
export interface TailTimings {
  /** The JS thread heard that the last slice had arrived. */
  readonly lastHeardAtMs: number | null;
  readonly auxPostedAtMs: number | null;
  readonly auxFinishedAtMs: number | null;
  /** Sending side: the report was handed to the messenger. Receiving side: it was read. */
  readonly reportedAtMs: number | null;
}

export const NO_TAIL: TailTimings = {
  lastHeardAtMs: null,
  auxPostedAtMs: null,
  auxFinishedAtMs: null,
  reportedAtMs: null,
};

/** CLOCK_MONOTONIC ms of one request's transfer; null where it did not happen. Bytes count KV pages, aux not. */
export interface TransferTimings {
  readonly startedAtMs: number;
  readonly firstPostAtMs: number | null;
  readonly lastSliceSubmittedAtMs: number | null;
  readonly settledAtMs: number;
  readonly slices: number;
  readonly bytesPlanned: number;
  readonly bytesDone: number;
  /** Sending side; empty on the receiving side. */
  readonly perSlice: readonly SliceTiming[];
  readonly tail: TailTimings;
}

/**
 * The verbs an executor calls. None of them waits; outcomes come from `takeSettled`.
 * Outcome and release are separate: a settled request's pages may stay pinned until the transfer has drained (the ledger knows).
 */
export interface CacheTransceiver {
  /** Who holds pages. Needed where several ranks act alike: their pages become free at one agreed step. */
  readonly ledger?: TransferLedger;
  /**
   * Sends what the chunk `[request.chunkStart, request.chunkEnd)` completed, behind `after`; the last slice when no prompt token remains.
   * @returns null when the chunk completed no block
   * @throws SessionRetiredError when the request's session already ended; nothing is pinned then
   */
  respondAndSendAsync(request: LlmRequest, options: { readonly after: ReadyEvent | null }): SendReceipt | null;
  /** Sends the whole blocks of the reused prefix before the first forward. Null when there is none. */
  sendEarlyPrefix(request: LlmRequest, options: { readonly after: ReadyEvent | null }): SendReceipt | null;
  /** Generation side: asks every overlapping context rank for `[0, B)` of the prompt. The request's blocks must exist. */
  requestAndReceiveAsync(request: LlmRequest): void;
  /**
   * Context side: whether every expected receiver has asked for this request (its pages can be written as they are computed). The first
   * call starts the request's queue clock: one whose receivers never ask settles as failed.
   * @throws SessionRetiredError when another request of its id has ended here: there is no session then, and nothing settles
   */
  receiverReady(request: LlmRequest): boolean;
  /** @returns true when nothing of the request can touch memory any more; else false, and a `Settled` or a later call tells. */
  cancelRequest(request: LlmRequest, reason: string): boolean;
  /**
   * Context side: first tokens have been added to the `outputTokens` of requests whose last slice was handed over. What waits for them leaves now;
   * without this call, at the next `takeSettled`.
   */
  firstTokensKnown?(): void;
  /** Outcomes since the last call, each exactly once. */
  takeSettled(): readonly Settled[];
  /** One listener, called when `takeSettled` or `receiverReady` may have something new, or pages were released. Never synchronously from the verbs above. */
  onActivity(listener: () => void): void;
}
