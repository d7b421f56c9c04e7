import type { RequestId } from '../cache/kv-cache-manager.js';
import { ArgumentError } from '../errors.js';
import { requireTransferable } from '../session/transferable-request.js';
import type { DisaggregatedParams, LlmRequest, SamplingParams, TransferPolicy } from './request.js';
import { initialState } from './request-states.js';

/** Ids below this are local to one server; global ids (snowflakes) start here. */
const LOCAL_ID_LIMIT = 2 ** 40;

export const MONOLITHIC: TransferPolicy = Object.freeze({ pipelined: false, earlyPrefix: false });

/** What a new request is made of. */
export interface RequestSpec {
  readonly id: RequestId;
  readonly promptTokens: Uint32Array;
  /** Tokens to generate, the context server's first one included. */
  readonly maxTokens: number;
  readonly beamWidth?: number;
  /** Tokens that end the request when they are sampled, `maxTokens` apart. Default: none. */
  readonly stopTokens?: readonly number[];
  readonly disagg?: DisaggregatedParams | null;
  /** Default: the whole prompt after its last chunk. */
  readonly transferPolicy?: TransferPolicy;
  /** Default: the engine's. */
  readonly sampling?: SamplingParams | null;
}

/** A request in its initial state. Nothing is checked here; `Executor.submit` does. */
export function createRequest(spec: RequestSpec): LlmRequest {
  const disagg = spec.disagg ?? null;
  return {
    id: spec.id,
    promptTokens: spec.promptTokens,
    maxTokens: spec.maxTokens,
    beamWidth: spec.beamWidth ?? 1,
    stopTokens: spec.stopTokens ?? [],
    disagg,
    transferPolicy: spec.transferPolicy ?? MONOLITHIC,
    sampling: spec.sampling ?? null,
    state: initialState({ disagg }),
    prepopulatedLen: 0,
    chunkStart: 0,
    chunkEnd: 0,
    outputTokens: [],
    tokensInFlight: 0,
    cancelRequested: false,
    error: null,
  };
}

/**
 * @throws ArgumentError for what no executor can run, naming the field and the remedy
 * @throws RequestTooLargeError for more draft tokens than travel with the pages
 */
export function validateRequest(request: LlmRequest): void {
  const { id, disagg, transferPolicy: policy } = request;
  if (!Number.isSafeInteger(id) || id < 0 || id >= LOCAL_ID_LIMIT) {
    throw new ArgumentError(`request id ${id} is not an integer in [0, 2^40); larger ids are global and never local`);
  }
  if (!(request.promptTokens instanceof Uint32Array) || request.promptTokens.length === 0) {
    throw new ArgumentError(`request ${id}: promptTokens must be a Uint32Array of at least one token`);
  }
  if (!Number.isSafeInteger(request.maxTokens) || request.maxTokens < 1) {
    throw new ArgumentError(`request ${id}: maxTokens is ${request.maxTokens}; it must be an integer of at least 1`);
  }
  if (request.beamWidth !== 1) {
    throw new ArgumentError(
      `request ${id}: beamWidth is ${request.beamWidth}; the executor samples one token per step (pipelined transfer needs that too), set it to 1`,
    );
  }
  const { stopTokens } = request;
  if (!Array.isArray(stopTokens) || stopTokens.some((token) => !Number.isSafeInteger(token) || token < 0)) {
    throw new ArgumentError(`request ${id}: stopTokens must be an array of token ids, each an integer of at least 0`);
  }
  if (request.state !== initialState(request) || request.outputTokens.length > 0) {
    throw new ArgumentError(
      `request ${id} was already run (state ${request.state}); make a new one with createRequest`,
    );
  }
  if (disagg === null) return;
  if (disagg.requestType === 'context_only' && disagg.scheduleStyle === 'context_first' && policy.pipelined) {
    throw new ArgumentError(
      `request ${id}: pipelined transfer needs schedule style 'generation_first' (its destination pages must exist before the first slice); set transferPolicy.pipelined to false for 'context_first'`,
    );
  }
  if (disagg.requestType === 'generation_only') {
    if (disagg.ctxRequestId === null && disagg.disaggRequestId === null) {
      throw new ArgumentError(
        `request ${id}: a generation_only request needs disagg.ctxRequestId or disagg.disaggRequestId`,
      );
    }
    if (disagg.ctxInfoEndpoint === null) {
      throw new ArgumentError(
        `request ${id}: a generation_only request needs disagg.ctxInfoEndpoint, the context server that writes its pages`,
      );
    }
  }
  requireTransferable(request);
}
