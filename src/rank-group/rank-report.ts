import type { RequestId } from '../cache/kv-cache-manager.js';

/** Most entries of one list in one report. */
export const MAX_NEWS = 4096;
/** Tokens that may come with a finished transfer. */
export const MAX_FIRST_TOKENS = 64;
/** Bytes of UTF-8; what is longer is cut. */
export const MAX_ENDING_TEXT_BYTES = 256;
/** Encoded, one entry in each list, at most. */
const NEWS_BYTES = 700;
/** All reports of a step travel in one frame; this is half of what a frame may hold. */
const STEP_BYTES = 8 * 1024 * 1024;

/** Entries of one list that a rank may report at once, so that the reports of all ranks fit one frame. */
export function newsLimit(size: number): number {
  return Math.min(MAX_NEWS, Math.floor(STEP_BYTES / NEWS_BYTES / size));
}

/** A request that was handed to this rank. */
export interface OfferedRequest {
  readonly id: RequestId;
  /** Of everything that decides how it is scheduled: ranks that were given different requests under one id notice. */
  readonly digest: number;
}

/** An error as other ranks hear of it. */
export interface RankError {
  readonly code: string;
  readonly message: string;
}

/** How a request's transfer ended on one rank, or why this rank cannot go on with it; code and text are empty when completed. */
export interface RankEnding extends RankError {
  readonly id: RequestId;
  readonly outcome: 'completed' | 'failed' | 'cancelled';
  /** Generation side, completed: tokens that came with the cache. */
  readonly firstTokens: readonly number[];
}

/** What the last step looked like on one rank. Equal on all, or the ranks have parted. */
export interface StepCheck {
  /** Rolling hash of every plan so far. */
  readonly planHash: number;
  readonly prompts: number;
  readonly promptTokens: number;
  readonly decodes: number;
  readonly receives: number;
  /** Pages that could be handed out, all layer groups together. */
  readonly freeSlots: number;
  readonly live: number;
}

/**
 * What one rank tells the others at a step boundary: only what is new since its last report. A request is cancelled or failed when any
 * rank says so, completed, schedulable and released when all do.
 */
export interface RankReport {
  /** Counts the exchanges of the rank, from 1. */
  readonly step: number;
  /** The rank slept before: the others may sleep still and have to be woken. */
  readonly afterRest: boolean;
  /** The rank's last report. */
  readonly leaving: boolean;
  /** Why the forward of the rank's last step failed: it then counts on no rank. Null: it went well, or there was none. */
  readonly forwardError: RankError | null;
  readonly check: StepCheck;
  readonly offered: readonly OfferedRequest[];
  readonly cancelled: readonly RequestId[];
  /** Generation first: every expected receiver has asked this rank. */
  readonly ready: readonly RequestId[];
  readonly ended: readonly RankEnding[];
  /** Nothing of this rank can touch the request's pages any more. */
  readonly drained: readonly RequestId[];
}
