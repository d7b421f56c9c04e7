import type { Clock } from '../clock.js';
import { InternalError, type KvTransceiverError } from '../errors.js';
import type { RequestOutcome } from '../executor/executor-events.js';
import type { DisaggregatedParams, ScheduleStyle, TransferPolicy } from '../executor/request.js';
import { typedError } from '../executor/typed-error.js';
import type { DisaggServer, ServerCall, ServerEvents, ServerResult } from './disagg-server.js';

export interface CoordinatorRequest {
  readonly promptTokens: Uint32Array;
  readonly maxTokens: number;
  /** Default: the coordinator's. */
  readonly scheduleStyle?: ScheduleStyle;
  /** Default: the context server's. */
  readonly transferPolicy?: TransferPolicy;
  /** W3C trace context, '' for none. */
  readonly traceparent?: string;
  readonly onToken?: (token: number, index: number) => void;
}

export interface CoordinatorResult {
  readonly id: bigint;
  readonly outcome: RequestOutcome;
  readonly outputTokens: readonly number[];
  /** Null exactly unless failed. */
  readonly error: KvTransceiverError | null;
  /** `Clock` ms. */
  readonly receivedAtMs: number;
  readonly firstTokenAtMs: number | null;
  readonly finishedAtMs: number;
}

export interface DisaggCallOptions {
  readonly id: bigint;
  readonly clock: Clock;
  readonly request: CoordinatorRequest;
  readonly scheduleStyle: ScheduleStyle;
  readonly context: DisaggServer;
  readonly generation: DisaggServer;
}

type Side = 'context' | 'generation';

/**
 * Role: one request on its two servers.
 * Invariant: one outcome. The first side that fails decides it, and the other one is cancelled at once; a cancel of the user's decides when
 *   both sides ended, because a generation that was already complete stays complete.
 */
export class DisaggCall {
  readonly id: bigint;
  /** The one outcome; never rejects. */
  readonly result: Promise<CoordinatorResult>;
  /** Both servers are done with the request. Never before `result`. */
  readonly released: Promise<void>;
  readonly #o: DisaggCallOptions;
  readonly #receivedAtMs: number;
  readonly #calls = new Map<Side, ServerCall>();
  readonly #running = new Set<Side>();
  #resolveResult: (result: CoordinatorResult) => void = () => {};
  #resolveReleased: () => void = () => {};
  #phase: 'running' | 'cancelling' | 'ended' = 'running';
  #firstTokenAtMs: number | null = null;
  #answered = false;

  constructor(options: DisaggCallOptions) {
    this.#o = options;
    this.id = options.id;
    this.#receivedAtMs = options.clock.now();
    this.result = new Promise((resolve) => {
      this.#resolveResult = resolve;
    });
    this.released = new Promise((resolve) => {
      this.#resolveReleased = resolve;
    });
  }

  start(): void {
    if (this.#o.scheduleStyle === 'context_first') {
      this.#submit('context', this.#params('context_only'));
      return;
    }
    // The generation server has the longer way to its first write: it asks before the context server can be ready.
    this.#submit('generation', this.#params('generation_only'));
    if (this.#phase === 'running') this.#submit('context', this.#params('context_only'));
  }

  /** Ends the request for its user, on both servers. Idempotent; a no-op after the outcome. */
  cancel(): void {
    if (this.#phase !== 'running') return;
    this.#phase = 'cancelling';
    this.#cancelBoth();
  }

  #params(requestType: 'context_only' | 'generation_only'): DisaggregatedParams {
    return {
      requestType,
      scheduleStyle: this.#o.scheduleStyle,
      ctxRequestId: null,
      disaggRequestId: this.id,
      ctxDpRank: null,
      ctxInfoEndpoint: this.#o.context.infoEndpoint,
      firstGenTokens: [],
      draftTokens: [],
      traceparent: this.#o.request.traceparent ?? '',
    };
  }

  #submit(side: Side, params: DisaggregatedParams): void {
    const { promptTokens, maxTokens, transferPolicy = null } = this.#o.request;
    const events: ServerEvents =
      side === 'context'
        ? { onContextAnswer: (answer) => this.#onAnswer(answer) }
        : { onToken: (token, index) => this.#onToken(token, index) };
    this.#running.add(side);
    let call: ServerCall;
    try {
      call = this.#o[side].submit({ promptTokens, maxTokens, params, transferPolicy }, events);
    } catch (error) {
      this.#onDone(side, failure(error));
      return;
    }
    this.#calls.set(side, call);
    // Cancelled or ended from inside `submit`: the call was not known yet.
    if (this.#phase !== 'running') call.cancel();
    call.done.then(
      (result) => this.#onDone(side, result),
      (error: unknown) => this.#onDone(side, failure(error)),
    );
  }

  /** Context first: the prompt is computed and its pages wait for the generation server. */
  #onAnswer(params: DisaggregatedParams): void {
    if (this.#answered || this.#o.scheduleStyle !== 'context_first') return;
    this.#answered = true;
    if (this.#phase === 'running') this.#submit('generation', params);
  }

  #onToken(token: number, index: number): void {
    if (this.#phase === 'ended') return;
    if (index === 0) this.#firstTokenAtMs = this.#o.clock.now();
    this.#o.request.onToken?.(token, index);
  }

  #onDone(side: Side, result: ServerResult): void {
    this.#running.delete(side);
    if (this.#phase !== 'ended') this.#judge(side, result);
    if (this.#running.size === 0 && this.#phase === 'ended') this.#resolveReleased();
  }

  #judge(side: Side, result: ServerResult): void {
    if (side === 'generation' && result.outcome === 'completed') {
      this.#end('completed', result.outputTokens, null);
    } else if (this.#phase === 'cancelling') {
      // What else goes wrong while the user's cancel is under way is of no interest to the user.
      if (this.#running.size === 0) this.#end('cancelled', result.outputTokens, null);
    } else if (result.outcome !== 'completed') {
      this.#end(result.outcome, result.outputTokens, result.error);
    } else if (this.#o.scheduleStyle === 'context_first' && !this.#answered) {
      this.#end('failed', [], new InternalError(`${this.#o.context.name} ended request ${this.id} without an answer`));
    }
  }

  #end(outcome: RequestOutcome, outputTokens: readonly number[], error: KvTransceiverError | null): void {
    this.#phase = 'ended';
    this.#resolveResult({
      id: this.id,
      outcome,
      outputTokens,
      error,
      receivedAtMs: this.#receivedAtMs,
      firstTokenAtMs: this.#firstTokenAtMs,
      finishedAtMs: this.#o.clock.now(),
    });
    // A completed generation has every page; its context server is about to hear the same.
    if (outcome !== 'completed') this.#cancelBoth();
  }

  #cancelBoth(): void {
    for (const side of this.#running) this.#calls.get(side)?.cancel();
  }
}

function failure(error: unknown): ServerResult {
  return { outcome: 'failed', outputTokens: [], error: typedError(error, 'the server refused the request') };
}
