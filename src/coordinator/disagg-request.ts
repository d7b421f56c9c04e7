import type { Clock } from '../clock.js';
import { type KvTransceiverError, StateError, TransferError } from '../errors.js';
import type { ScheduleStyle } from '../executor/request.js';
import { typedError } from '../executor/typed-error.js';
import type { CallbackGuard } from '../session/callback-guard.js';
import type { CoordinatorRequest, CoordinatorResult } from './coordinator-request.js';
import { type AttemptResult, DisaggAttempt } from './disagg-attempt.js';
import type { DisaggServer } from './disagg-server.js';
import type { ServerLease, ServerPool } from './server-pool.js';
import type { SnowflakeIds } from './snowflake-ids.js';

export interface DisaggRequestOptions {
  readonly clock: Clock;
  readonly guard: CallbackGuard;
  readonly ids: SnowflakeIds;
  readonly request: CoordinatorRequest;
  readonly scheduleStyle: ScheduleStyle;
  readonly context: ServerPool;
  readonly generation: ServerPool;
  readonly maxRetries: number;
}

/**
 * Role: one request of a user, over as many tries as it takes.
 * Invariant: one outcome. A try is repeated only while the user has seen no token of it (tokens that only the coordinator's caller has are taken
 *   back), and always under a new id: frames of the earlier one may still be on their way.
 */
export class DisaggRequest {
  /** The one outcome; never rejects. */
  readonly result: Promise<CoordinatorResult>;
  /** The servers of every try are done with it. Never before `result`. */
  readonly released: Promise<void>;
  readonly #o: DisaggRequestOptions;
  readonly #receivedAtMs: number;
  readonly #failedServers = new Set<DisaggServer>();
  readonly #releases: Promise<void>[] = [];
  #resolveResult: (result: CoordinatorResult) => void = () => {};
  #attempt: DisaggAttempt | null = null;
  #attempts = 0;
  #id: bigint;
  #cancelled = false;
  #firstTokenAtMs: number | null = null;

  constructor(options: DisaggRequestOptions) {
    this.#o = options;
    this.#receivedAtMs = options.clock.now();
    this.#id = options.ids.next();
    this.result = new Promise((resolve) => {
      this.#resolveResult = resolve;
    });
    this.released = this.result.then(() => Promise.all(this.#releases)).then(() => {});
  }

  /** Of the newest try. */
  get id(): bigint {
    return this.#id;
  }

  start(): void {
    const error = this.#o.guard.run(`a try of request ${this.#id}`, () => this.#try());
    if (error !== null) this.#fail(error);
  }

  /** Ends the request for its user, on both servers. Idempotent; a no-op after the outcome. */
  cancel(): void {
    this.#cancelled = true;
    this.#attempt?.cancel();
  }

  #try(): void {
    this.#attempts += 1;
    let context: ServerLease | null = null;
    let generation: ServerLease;
    try {
      context = this.#o.context.lease(this.#o.request, this.#failedServers);
      generation = this.#o.generation.lease(this.#o.request, this.#failedServers);
    } catch (error) {
      context?.end();
      this.#fail(typedError(error, 'routing failed'));
      return;
    }
    this.#run(context, generation);
  }

  #run(context: ServerLease, generation: ServerLease): void {
    const { request, scheduleStyle } = this.#o;
    const leases = { context, generation };
    const attempt = new DisaggAttempt({
      clock: this.#o.clock,
      guard: this.#o.guard,
      id: this.#id,
      request,
      scheduleStyle,
      context: context.server,
      generation: generation.server,
      onToken: (token, index) => {
        this.#firstTokenAtMs ??= this.#o.clock.now();
        request.onToken?.(token, index);
      },
      // Each by itself: a context server is free for the next prompt when its pages have left, however long they are decoded from.
      onSideDone: (side) => leases[side].end(),
    });
    this.#attempt = attempt;
    this.#releases.push(attempt.released);
    const { guard } = this.#o;
    guard.after(`the outcome of request ${this.#id}`, attempt.result, (result) => {
      const error = guard.run(`the outcome of request ${this.#id}`, () =>
        this.#judge(result, context.server, generation.server),
      );
      // Whether it could be tried again, a handler of its user's had a say in.
      if (error !== null) this.#finish({ ...result, outcome: 'failed', error });
    });
    attempt.start();
  }

  #judge(result: AttemptResult, context: DisaggServer, generation: DisaggServer): void {
    const { error, decidedBy } = result;
    const retry = error !== null && this.#mayRetry(error, result.refused);
    if (!retry) {
      this.#finish(result);
      return;
    }
    // A transfer has two ends, and who reports that it broke need not be who broke it.
    if (error instanceof TransferError || decidedBy === 'context') this.#failedServers.add(context);
    if (error instanceof TransferError || decidedBy === 'generation') this.#failedServers.add(generation);
    this.#firstTokenAtMs = null;
    this.#id = this.#o.ids.next();
    this.start();
  }

  #mayRetry(error: KvTransceiverError, refused: boolean): boolean {
    if (this.#cancelled || this.#attempts > this.#o.maxRetries) return false;
    // A server that is closing refuses with a StateError; another one may take the request.
    if (!error.retryable && !(refused && error instanceof StateError)) return false;
    return this.#firstTokenAtMs === null || this.#takeBackTokens();
  }

  #takeBackTokens(): boolean {
    const { onToken, takeBackTokens } = this.#o.request;
    return takeBackTokens === undefined ? onToken === undefined : takeBackTokens();
  }

  #fail(error: KvTransceiverError): void {
    this.#finish({ outcome: 'failed', outputTokens: [], error, cachedTokens: 0, endedAtMs: this.#o.clock.now() });
  }

  #finish(result: Pick<AttemptResult, 'outcome' | 'outputTokens' | 'error' | 'cachedTokens' | 'endedAtMs'>): void {
    const { outcome, outputTokens, error, cachedTokens, endedAtMs } = result;
    this.#resolveResult({
      id: this.#id,
      outcome,
      outputTokens,
      error,
      usage: {
        promptTokens: this.#o.request.promptTokens.length,
        cachedTokens,
        completionTokens: outputTokens.length,
      },
      attempts: this.#attempts,
      receivedAtMs: this.#receivedAtMs,
      firstTokenAtMs: this.#firstTokenAtMs,
      finishedAtMs: endedAtMs,
    });
  }
}
