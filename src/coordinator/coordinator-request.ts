import type { KvTransceiverError } from '../errors.js';
import type { RequestOutcome } from '../executor/executor-events.js';
import type { SamplingParams, ScheduleStyle, TransferPolicy } from '../executor/request.js';

/** What a user asks of a coordinator. */
export interface CoordinatorRequest {
  readonly promptTokens: Uint32Array;
  readonly maxTokens: number;
  /** Default: the coordinator's. */
  readonly scheduleStyle?: ScheduleStyle;
  /** Default: the context server's. */
  readonly transferPolicy?: TransferPolicy;
  /** Default: the engine's. */
  readonly sampling?: SamplingParams;
  /** Tokens that end the answer when they are sampled; the last one is delivered like any other. Default: none. */
  readonly stopTokens?: readonly number[];
  /** W3C trace context, '' for none. */
  readonly traceparent?: string;
  /** Left out: the tokens come with the result alone. */
  readonly onToken?: (token: number, index: number) => void;
  /**
   * Asked when a try has failed that could be repeated, had it not given tokens. @returns true: nobody has seen them and they are forgotten; the
   * next try gives its own, from index 0. Default: nobody has seen any exactly when there is no `onToken`.
   */
  readonly takeBackTokens?: () => boolean;
}

/** Tokens of a request over both servers. */
export interface RequestUsage {
  readonly promptTokens: number;
  /** Prompt tokens that the context server found in its prefix cache. */
  readonly cachedTokens: number;
  readonly completionTokens: number;
}

/** The one outcome of a request. */
export interface CoordinatorResult {
  /** Of the try that decided. */
  readonly id: bigint;
  readonly outcome: RequestOutcome;
  readonly outputTokens: readonly number[];
  /** Null exactly unless failed. */
  readonly error: KvTransceiverError | null;
  readonly usage: RequestUsage;
  /** Tries it took; 1 without a retry. */
  readonly attempts: number;
  /** `Clock` ms. */
  readonly receivedAtMs: number;
  /** Of the try that decided. */
  readonly firstTokenAtMs: number | null;
  /**
   * When the outcome was known. The result of a complete answer comes then, unless its generation server could not say what the prompt had cost:
   * up to a second later, with the context server's own word.
   */
  readonly finishedAtMs: number;
}
