import type { Clock } from '../clock.js';
import type { KvTransceiverError } from '../errors.js';
import type { DisaggregatedParams, LlmRequest } from './request.js';

/** `cancelled` = ended by its user, an ordinary end; `failed` = `request.error` says why. */
export type RequestOutcome = 'completed' | 'cancelled' | 'failed';

/**
 * What happens to one request. Times are `Clock` milliseconds. Handlers run on the loop, between its stages: they may submit and cancel,
 * and should be short. What a handler throws goes to `ExecutorEvents.onHandlerError`, never into the loop.
 */
export interface RequestEvents {
  /** The first forward that computes prompt tokens is about to be enqueued. */
  onPrefillStarted?(request: LlmRequest, atMs: number): void;
  /** Every prompt token is computed and the first token is known. */
  onPrefillDone?(request: LlmRequest, atMs: number): void;
  /** Context first: what the generation server needs; the pages wait, pinned, until it asks. */
  onContextAnswer?(request: LlmRequest, params: DisaggregatedParams): void;
  /** Generation and aggregate requests: the first token can go to the user. */
  onFirstToken?(request: LlmRequest, token: number, atMs: number): void;
  /** Every token for the user, the first one (index 0) included. */
  onToken?(request: LlmRequest, token: number, index: number, atMs: number): void;
  /** Exactly once per accepted request, after it gave up its pages (a transfer that is not drained keeps them pinned). */
  onFinished?(request: LlmRequest, outcome: RequestOutcome, atMs: number): void;
}

/** One turn of the loop that ran a forward. Times are `Clock` milliseconds. */
export interface StepReport {
  readonly step: number;
  readonly startedAtMs: number;
  readonly endedAtMs: number;
  readonly contextTokens: number;
  readonly contextRequests: number;
  readonly generationRequests: number;
}

/** Events of all requests of an executor, and of its loop. */
export interface ExecutorEvents extends RequestEvents {
  /** After each step that ran a forward. */
  onStep?(report: StepReport): void;
  /**
   * The ranks of this server do not act together any more: one is gone, or they ran different steps. Every request of this rank has failed
   * with `error`, and no new one is taken: restart all ranks.
   */
  onRankGroupLost?(error: KvTransceiverError): void;
  /** Something an operator should see. Default: a process warning. */
  onWarning?(message: string): void;
  /** A handler threw. Default: a process warning. */
  onHandlerError?(error: unknown, handler: string): void;
}

/** Hears the events of an executor that runs already, beside the handlers that it was made with. */
export interface ExecutorObserver extends ExecutorEvents {
  /** A request was accepted. */
  onSubmitted?(request: LlmRequest, atMs: number): void;
}

type Handler = Exclude<keyof RequestEvents, undefined>;

/** Calls the executor's and the request's handlers; nothing they throw reaches the loop. */
export class EventSink {
  readonly #common: ExecutorEvents;
  readonly #observers = new Set<ExecutorObserver>();

  constructor(common: ExecutorEvents) {
    this.#common = common;
  }

  /** @returns takes it away again; idempotent */
  observe(observer: ExecutorObserver): () => void {
    this.#observers.add(observer);
    return () => void this.#observers.delete(observer);
  }

  submitted(request: LlmRequest, clock: Clock): void {
    if (this.#observers.size === 0) return;
    const atMs = clock.now();
    for (const observer of this.#observers) this.#guard('onSubmitted', () => observer.onSubmitted?.(request, atMs));
  }

  emit<H extends Handler>(own: RequestEvents, handler: H, ...args: Parameters<NonNullable<RequestEvents[H]>>): void {
    this.#call(this.#common, handler, args);
    if (own !== this.#common) this.#call(own, handler, args);
    for (const observer of this.#observers) this.#call(observer, handler, args);
  }

  #call(events: RequestEvents, handler: Handler, args: unknown[]): void {
    try {
      (events[handler] as ((...values: unknown[]) => void) | undefined)?.apply(events, args);
    } catch (error) {
      this.#threw(handler, error);
    }
  }

  step(report: StepReport): void {
    this.#guard('onStep', () => this.#common.onStep?.(report));
    for (const observer of this.#observers) this.#guard('onStep', () => observer.onStep?.(report));
  }

  rankGroupLost(error: KvTransceiverError): void {
    this.#guard('onRankGroupLost', () => this.#common.onRankGroupLost?.(error));
    for (const observer of this.#observers) this.#guard('onRankGroupLost', () => observer.onRankGroupLost?.(error));
  }

  warning(message: string): void {
    const { onWarning } = this.#common;
    if (onWarning === undefined) process.emitWarning(`kv-transceiver: ${message}`);
    else this.#guard('onWarning', () => onWarning.call(this.#common, message));
    for (const observer of this.#observers) this.#guard('onWarning', () => observer.onWarning?.(message));
  }

  #guard(handler: string, call: () => void): void {
    try {
      call();
    } catch (error) {
      this.#threw(handler, error);
    }
  }

  #threw(handler: string, error: unknown): void {
    if (this.#common.onHandlerError === undefined) warnOf(handler, error);
    else this.#tellHandlerError(error, handler);
  }

  #tellHandlerError(error: unknown, handler: string): void {
    try {
      this.#common.onHandlerError?.(error, handler);
    } catch (second) {
      warnOf(handler, error);
      warnOf('onHandlerError', second);
    }
  }
}

function warnOf(handler: string, error: unknown): void {
  process.emitWarning(`kv-transceiver: handler ${handler} threw: ${String(error)}`);
}
