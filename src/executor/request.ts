import type { RequestId } from '../cache/kv-cache-manager.js';
import type { KvTransceiverError } from '../errors.js';

/** Which part of a request a server does. */
export type RequestType = 'context_only' | 'generation_only' | 'context_and_generation';
/** Who gets a request first. */
export type ScheduleStyle = 'context_first' | 'generation_first';

/** Compute and response phase only; who may touch the pages is the ledger's to say. */
export type RequestState =
  | 'DISAGG_CONTEXT_WAIT_SCHEDULER'
  | 'CONTEXT_INIT'
  | 'DISAGG_CONTEXT_TRANS_IN_PROGRESS'
  | 'DISAGG_CONTEXT_COMPLETE'
  | 'DISAGG_GENERATION_INIT'
  | 'DISAGG_GENERATION_TRANS_IN_PROGRESS'
  | 'DISAGG_GENERATION_TRANS_COMPLETE'
  | 'GENERATION_IN_PROGRESS'
  | 'GENERATION_COMPLETE'
  | 'DISAGG_TRANS_ERROR';

/** Travels between coordinator and servers with each request. */
export interface DisaggregatedParams {
  readonly requestType: RequestType;
  readonly scheduleStyle: ScheduleStyle;
  /** Set by the context server's answer (context first). */
  readonly ctxRequestId: bigint | null;
  /** Chosen by the coordinator, renewed by a retry. */
  readonly disaggRequestId: bigint | null;
  readonly ctxDpRank: number | null;
  /** Control endpoint of the context rank that writes. */
  readonly ctxInfoEndpoint: string | null;
  /**
   * Control endpoint of a rank of the instance that generates: its ranks alone may ask for the pages, and cancel. Left out or null: whoever
   * asks first.
   */
  readonly genInfoEndpoint?: string | null;
  /** Set by the context server's answer (context first), as are the three below; generation first they travel in the aux slot. */
  readonly firstGenTokens: readonly number[];
  /** Natural logarithms, one for each of `firstGenTokens`; left out or empty: the engine computed none. */
  readonly firstGenLogProbs?: readonly number[];
  readonly draftTokens: readonly number[];
  /** What the context server spent on the prompt; left out or null before it answered. */
  readonly ctxUsage?: PromptUsage | null;
  readonly traceparent: string;
}

/** Tokens of a prompt at one server. */
export interface PromptUsage {
  readonly promptTokens: number;
  /** Of those, taken from its prefix cache. */
  readonly cachedTokens: number;
}

/** What a context server says beside the pages of a prompt. */
export interface ContextAnswer {
  readonly firstTokens: readonly number[];
  /** Natural logarithms, one for each of `firstTokens`, in single precision when they came in an aux slot; empty: none were computed. */
  readonly firstLogProbs: readonly number[];
  readonly draftTokens: readonly number[];
  readonly promptLen: number;
  readonly cachedTokens: number;
}

/** How the context side sends this request's pages. Defaults come from the configuration when the request is submitted. */
export interface TransferPolicy {
  /** One slice per chunk; else the whole prompt after its last chunk. */
  readonly pipelined: boolean;
  /** Reused prefix blocks leave before the first forward step. Only with `pipelined`. */
  readonly earlyPrefix: boolean;
}

/** How the tokens of a request are drawn; every server of a request is told the same. */
export interface SamplingParams {
  /** 0 = the most likely token, always. */
  readonly temperature: number;
  /** The most likely tokens that together have this share are drawn from; (0, 1]. */
  readonly topP: number;
  /** The same seed draws the same tokens. */
  readonly seed: number;
}

/** One request inside one server. */
export interface LlmRequest {
  readonly id: RequestId;
  readonly promptTokens: Uint32Array;
  readonly maxTokens: number;
  readonly beamWidth: number;
  /** The request ends with the first of these that is sampled; it is delivered like any other token. */
  readonly stopTokens: readonly number[];
  /** Null for a request that never leaves this server. */
  readonly disagg: DisaggregatedParams | null;
  readonly transferPolicy: TransferPolicy;
  /** Null or absent: as the engine does by default. */
  readonly sampling?: SamplingParams | null;

  state: RequestState;
  /** Tokens found in the cache at admission. */
  prepopulatedLen: number;
  /** The chunk that the last scheduled step computes, `[chunkStart, chunkEnd)`. */
  chunkStart: number;
  chunkEnd: number;
  /** Generated tokens so far (the first one comes from the context server). */
  readonly outputTokens: number[];
  /**
   * Natural logarithm of the probability of each output token: pushed by an engine that computes them, before it hands over the token. Default:
   * left out, and nothing is sent.
   */
  readonly outputLogProbs?: number[];
  /**
   * Generation side: what came with the pages, from before `DISAGG_GENERATION_TRANS_COMPLETE` on. With several ranks only on those that context
   * ranks which own aux write to. Default: left out.
   */
  contextAnswer?: ContextAnswer;
  /** Tokens that forwards under way will add to `outputTokens`: at most one for each step that the schedule lets overlap. */
  tokensInFlight: number;
  cancelRequested: boolean;
  error: KvTransceiverError | null;
}

/** Prompt tokens that no forward has been given yet. */
export function remainingPromptTokens(request: LlmRequest): number {
  return request.promptTokens.length - request.chunkEnd;
}

/** The newest token is the user's last one. */
export function hasLastToken({ outputTokens, maxTokens, stopTokens }: LlmRequest): boolean {
  if (outputTokens.length >= maxTokens) return true;
  const newest = outputTokens.at(-1);
  return newest !== undefined && stopTokens.includes(newest);
}

/** The id both sides know the request by: an orchestrator's retry renews only `disaggRequestId`. */
export function requestKey(request: LlmRequest): bigint {
  return request.disagg?.ctxRequestId ?? request.disagg?.disaggRequestId ?? BigInt(request.id);
}
