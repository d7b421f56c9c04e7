import type { Clock } from '../clock.js';
import { checkDeadline } from '../deadline.js';
import { ConfigError, StateError } from '../errors.js';
import type { ScheduleStyle } from '../executor/request.js';
import { CallbackGuard, INTERNAL_ERRORS } from '../session/callback-guard.js';
import { Counters } from '../session/counters.js';
import { GuardedClock } from '../session/guarded-clock.js';
import { TurnBudget } from '../turn-budget.js';
import { type CoordinatorObserver, tellSubmitted } from './coordinator-observer.js';
import type { CoordinatorRequest, CoordinatorResult } from './coordinator-request.js';
import { type CoordinatorStats, serverStats } from './coordinator-stats.js';
import { DisaggRequest } from './disagg-request.js';
import type { DisaggServer } from './disagg-server.js';
import { RoundRobinRouter } from './round-robin-router.js';
import type { Router } from './router.js';
import { ServerPool } from './server-pool.js';
import type { SnowflakeIds } from './snowflake-ids.js';

/** What a coordinator needs: its servers, its clock and its policy. */
export interface DisaggCoordinatorOptions {
  readonly clock: Clock;
  readonly ids: SnowflakeIds;
  /** Further ones come by `contextServers.add`. */
  readonly context: DisaggServer | readonly DisaggServer[];
  readonly generation: DisaggServer | readonly DisaggServer[];
  /** Of requests that name none. */
  readonly scheduleStyle: ScheduleStyle;
  /** Default: round robin. */
  readonly contextRouter?: Router;
  /** Default: round robin. */
  readonly generationRouter?: Router;
  /** Further tries of a request that failed for a reason that may pass, before its first token. Default 1. */
  readonly maxRetries?: number;
  /** Something an operator should see. Default: a process warning. */
  readonly onWarning?: (message: string) => void;
}

/** A request under way. */
export interface CoordinatorCall {
  /** Of the newest try. */
  readonly id: bigint;
  /** The one outcome; never rejects. */
  readonly result: Promise<CoordinatorResult>;
  /** The servers have ended the request; never before `result`. */
  readonly released: Promise<void>;
  /** Idempotent; a no-op after the outcome. */
  cancel(): void;
}

/**
 * Role: sends each request to a context and a generation server, as one request with one outcome; to others when those fail.
 * Ownership: the servers stay the caller's.
 */
export class DisaggCoordinator {
  /** Who takes requests. Servers may be added, drained and removed while traffic runs. */
  readonly contextServers: ServerPool;
  readonly generationServers: ServerPool;
  readonly #o: DisaggCoordinatorOptions;
  readonly #counters = new Counters();
  readonly #guard: CallbackGuard;
  readonly #live = new Set<DisaggRequest>();
  readonly #observers = new Set<CoordinatorObserver>();
  #closing = false;

  /**
   * @throws ConfigError for a number of retries that is none
   * @throws ArgumentError for two servers of one role with one name
   */
  constructor(options: DisaggCoordinatorOptions) {
    const { context, generation, maxRetries = 1 } = options;
    if (!Number.isSafeInteger(maxRetries) || maxRetries < 0)
      throw new ConfigError(`maxRetries is ${maxRetries}; it must be a whole number from 0 on`);
    const { clock, onWarning = (message) => process.emitWarning(`kv-transceiver: ${message}`) } = options;
    this.#guard = new CallbackGuard({ clock, counters: this.#counters, warn: onWarning });
    this.#o = { ...options, clock: new GuardedClock(clock, this.#guard) };
    this.contextServers = new ServerPool('context', options.contextRouter ?? new RoundRobinRouter());
    this.generationServers = new ServerPool('generation', options.generationRouter ?? new RoundRobinRouter());
    for (const server of listed(context)) this.contextServers.add(server);
    for (const server of listed(generation)) this.generationServers.add(server);
  }

  /** Requests that some server still works on. */
  get liveCount(): number {
    return this.#live.size;
  }

  /** Lets an observer hear of the requests that are submitted from now on. @returns takes it away again; idempotent */
  observe(observer: CoordinatorObserver): () => void {
    this.#observers.add(observer);
    return () => void this.#observers.delete(observer);
  }

  /** A snapshot. JSON-serialisable. */
  stats(): CoordinatorStats {
    return {
      live: this.#live.size,
      internalErrors: this.#counters.get(INTERNAL_ERRORS),
      context: this.contextServers.status().map(serverStats),
      generation: this.generationServers.status().map(serverStats),
    };
  }

  /** What a server refuses becomes the request's outcome. @throws StateError once `close` was called */
  submit(request: CoordinatorRequest): CoordinatorCall {
    if (this.#closing) throw new StateError('the coordinator is closing; submit to another one');
    const { clock, ids, maxRetries = 1 } = this.#o;
    const watched = this.#observers.size === 0 ? null : tellSubmitted(this.#observers, request, clock.now());
    const call = new DisaggRequest({
      clock,
      guard: this.#guard,
      ids,
      request: watched?.request ?? request,
      scheduleStyle: request.scheduleStyle ?? this.#o.scheduleStyle,
      context: this.contextServers,
      generation: this.generationServers,
      maxRetries,
    });
    this.#live.add(call);
    if (watched !== null) void call.result.then(watched.finished);
    void call.released.then(() => this.#live.delete(call));
    call.start();
    return call;
  }

  /**
   * Takes no new requests and waits for the live ones; what is left at the deadline is cancelled and waited for.
   * @param options.deadlineMs time from now; default: no limit
   * @throws ArgumentError, and nothing is closed, when it is no number of milliseconds
   */
  async close(options: { readonly deadlineMs?: number } = {}): Promise<void> {
    if (options.deadlineMs !== undefined) checkDeadline(options.deadlineMs);
    this.#closing = true;
    const { clock } = this.#o;
    const { deadlineMs } = options;
    const expire = (): void => this.#guard.after('a deadline', this.#cancelLive(), () => {});
    const timer = deadlineMs === undefined ? null : clock.setTimer(deadlineMs, expire, { keepAlive: true });
    await Promise.all([...this.#live].map((call) => call.released));
    timer?.cancel();
  }

  /** In portions: those that end meanwhile leave the set, and none comes while it closes. A retry takes the place of its request. */
  async #cancelLive(): Promise<void> {
    const turns = new TurnBudget(this.#o.clock);
    for (const call of this.#live) {
      call.cancel();
      if (turns.isSpent()) await turns.nextTurn();
    }
  }
}

function listed(servers: DisaggServer | readonly DisaggServer[]): readonly DisaggServer[] {
  return 'submit' in servers ? [servers] : servers;
}
