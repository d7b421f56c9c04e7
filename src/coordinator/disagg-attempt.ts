import type { Clock, Timer } from '../clock.js';
import { InternalError, type KvTransceiverError } from '../errors.js';
import type { RequestOutcome } from '../executor/executor-events.js';
import type { DisaggregatedParams, PromptUsage, ScheduleStyle } from '../executor/request.js';
import { typedError } from '../executor/typed-error.js';
import type { CallbackGuard } from '../session/callback-guard.js';
import type { CoordinatorRequest } from './coordinator-request.js';
import type { DisaggServer, ServerCall, ServerEvents, ServerResult } from './disagg-server.js';

/** One try of a request on one pair of servers. */
export interface AttemptOptions {
  readonly clock: Clock;
  readonly guard: CallbackGuard;
  readonly id: bigint;
  readonly request: CoordinatorRequest;
  readonly scheduleStyle: ScheduleStyle;
  readonly context: DisaggServer;
  readonly generation: DisaggServer;
  readonly onToken: (token: number, index: number) => void;
  /** That server has nothing more to do for this try, or will never be asked: once for each side, before whatever follows from it. */
  readonly onSideDone: (side: Side) => void;
}

export interface AttemptResult {
  readonly outcome: RequestOutcome;
  readonly outputTokens: readonly number[];
  /** Null exactly unless failed. */
  readonly error: KvTransceiverError | null;
  /** Whose word decided. */
  readonly decidedBy: Side;
  /** The server turned the request away; it had no call. */
  readonly refused: boolean;
  /** Of the prompt, at the context server; 0 when it did not say. */
  readonly cachedTokens: number;
  /** When the outcome was known; the clock's. */
  readonly endedAtMs: number;
}

export type Side = 'context' | 'generation';
type Ending = Omit<AttemptResult, 'cachedTokens'>;

/**
 * How long a complete answer waits for what the context server counted, when the generation server could not tell. The context server ends by the
 * same report, and says so when its engine leaves it the time; one that is busy or lost must not hold an answer that its user could have.
 */
export const USAGE_LIMIT_MS = 1000;

/**
 * Role: one try of a request on its two servers.
 * Invariant: one outcome. The first side that fails decides it, and the other one is cancelled at once; a cancel of the user's decides when
 *   both sides ended, because a generation that was already complete stays complete, or when a generation that had its prompt was cut off.
 * Errors: what the user's handler throws ends the try; a server that cannot cancel is not waited for.
 * Ordering: tokens go out as they come; the result of a complete generation goes with its last one, for the usage of the context server came with
 *   the pages. Where it did not, the result waits, for a bounded time, until that server has said it.
 */
export class DisaggAttempt {
  readonly id: bigint;
  /** The one outcome; never rejects. */
  readonly result: Promise<AttemptResult>;
  /** Both servers are done with the request. Never before `result`. */
  readonly released: Promise<void>;
  readonly #o: AttemptOptions;
  readonly #calls = new Map<Side, ServerCall>();
  /** Sides that may still be asked. */
  readonly #unasked = new Set<Side>(['context', 'generation']);
  readonly #running = new Set<Side>();
  #resolveResult: (result: AttemptResult) => void = () => {};
  #resolveReleased: () => void = () => {};
  /** `counting`: complete but for the usage of the context server. */
  #phase: 'running' | 'cancelling' | 'counting' | 'ended' = 'running';
  #counting: { readonly ending: Ending; readonly timer: Timer } | null = null;
  /** Null: nobody said it yet. */
  #contextUsage: PromptUsage | null = null;
  #answered = false;

  constructor(options: AttemptOptions) {
    this.#o = options;
    this.id = options.id;
    this.result = new Promise((resolve) => {
      this.#resolveResult = resolve;
    });
    this.released = new Promise((resolve) => {
      this.#resolveReleased = resolve;
    });
  }

  start(): void {
    if (this.#o.scheduleStyle === 'context_first') {
      this.#submit('context', () => this.#params('context_only'));
      return;
    }
    // The generation server has the longer way to its first write: it asks before the context server can be ready.
    this.#submit('generation', () => this.#params('generation_only'));
    if (this.#phase === 'running') this.#submit('context', () => this.#params('context_only'));
  }

  /** Ends the request for its user, on both servers. Idempotent; a no-op after the outcome. */
  cancel(): void {
    if (this.#phase !== 'running') return;
    this.#phase = 'cancelling';
    this.#askNoMore();
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
      genInfoEndpoint: this.#o.generation.infoEndpoint,
      firstGenTokens: [],
      draftTokens: [],
      traceparent: this.#o.request.traceparent ?? '',
    };
  }

  #submit(side: Side, paramsOf: () => DisaggregatedParams): void {
    const { promptTokens, maxTokens, transferPolicy = null, sampling = null, stopTokens = [] } = this.#o.request;
    const events: ServerEvents =
      side === 'context'
        ? { onContextAnswer: (answer) => this.#onAnswer(answer) }
        : { onToken: (token, index) => this.#onToken(token, index) };
    this.#unasked.delete(side);
    this.#running.add(side);
    let call: ServerCall;
    let done: Promise<ServerResult>;
    try {
      const asked = { promptTokens, maxTokens, params: paramsOf(), transferPolicy, sampling, stopTokens };
      call = this.#o[side].submit(asked, events);
      done = call.done.catch((error: unknown) => failure(this.#o.guard.caught(`request ${this.id}`, error)));
    } catch (error) {
      this.#onDone(side, failure(error), true);
      return;
    }
    this.#calls.set(side, call);
    // Cancelled or ended from inside `submit`: the call was not known yet.
    if (this.#phase !== 'running') this.#cancel(side);
    this.#o.guard.after(`the end of request ${this.id}`, done, (result) => this.#onDone(side, result));
  }

  /** Context first: the prompt is computed and its pages wait for the generation server. */
  #onAnswer(params: DisaggregatedParams): void {
    if (this.#answered || this.#o.scheduleStyle !== 'context_first') return;
    this.#answered = true;
    this.#noteUsage(params.ctxUsage);
    if (this.#phase === 'running') this.#submit('generation', () => params);
  }

  #onToken(token: number, index: number): void {
    if (this.#phase === 'ended') return;
    const { guard } = this.#o;
    const error = guard.run(`onToken of request ${this.id}`, () => this.#o.onToken(token, index));
    if (error === null) return;
    this.#end(this.#ending('generation', 'failed', [], error));
  }

  #onDone(side: Side, result: ServerResult, refused = false): void {
    this.#running.delete(side);
    this.#o.onSideDone(side);
    this.#noteUsage(side === 'context' ? result.usage : result.contextUsage);
    if (this.#phase === 'counting') this.#endCounting();
    else if (this.#phase !== 'ended') this.#judge(side, result, refused);
    if (this.#running.size === 0 && this.#phase === 'ended') this.#resolveReleased();
  }

  #judge(side: Side, result: ServerResult, refused: boolean): void {
    const { outcome, outputTokens, error } = result;
    if (side === 'generation' && outcome === 'completed') {
      this.#complete(this.#ending(side, outcome, outputTokens, null, refused));
    } else if (this.#phase === 'cancelling') {
      // What else goes wrong while the user's cancel is under way is of no interest to the user.
      const isCut = side === 'generation' && this.#contextUsage !== null;
      if (isCut || this.#running.size === 0) this.#end(this.#ending(side, 'cancelled', outputTokens, null, refused));
    } else if (outcome !== 'completed') {
      this.#end(this.#ending(side, outcome, outputTokens, error, refused));
    } else if (this.#o.scheduleStyle === 'context_first' && !this.#answered) {
      const lost = new InternalError(`${this.#o.context.name} ended request ${this.id} without an answer`);
      this.#end(this.#ending(side, 'failed', [], lost, refused));
    }
  }

  #ending(
    decidedBy: Side,
    outcome: RequestOutcome,
    outputTokens: readonly number[],
    error: KvTransceiverError | null,
    refused = false,
  ): Ending {
    return { outcome, outputTokens, error, decidedBy, refused, endedAtMs: this.#o.clock.now() };
  }

  #noteUsage(usage: PromptUsage | null | undefined): void {
    this.#contextUsage ??= usage ?? null;
  }

  #complete(ending: Ending): void {
    if (this.#contextUsage !== null || !this.#running.has('context')) {
      this.#end(ending);
      return;
    }
    this.#phase = 'counting';
    const timer = this.#o.clock.setTimer(USAGE_LIMIT_MS, () => this.#endCounting(), { keepAlive: true });
    this.#counting = { ending, timer };
  }

  /** The context server is done, whatever came of it, or took too long: what is known of the usage by now is all that the user gets. */
  #endCounting(): void {
    if (this.#counting === null) return;
    const { ending, timer } = this.#counting;
    this.#counting = null;
    timer.cancel();
    this.#end(ending);
  }

  #end(ending: Ending): void {
    this.#phase = 'ended';
    this.#askNoMore();
    const { outcome, outputTokens, error, decidedBy, refused, endedAtMs } = ending;
    const cachedTokens = this.#contextUsage?.cachedTokens ?? 0;
    this.#resolveResult({ outcome, outputTokens, error, decidedBy, refused, endedAtMs, cachedTokens });
    // A completed generation has every page; its context server is about to hear the same.
    if (outcome !== 'completed') this.#cancelBoth();
  }

  #askNoMore(): void {
    for (const side of this.#unasked) this.#o.onSideDone(side);
    this.#unasked.clear();
  }

  #cancelBoth(): void {
    for (const side of this.#running) this.#cancel(side);
  }

  #cancel(side: Side): void {
    const call = this.#calls.get(side);
    if (call !== undefined) this.#o.guard.run(`the cancel of request ${this.id}`, () => call.cancel());
  }
}

function failure(error: unknown): ServerResult {
  return { outcome: 'failed', outputTokens: [], error: typedError(error, 'the server refused the request') };
}
