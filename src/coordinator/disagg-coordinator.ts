import type { Clock } from '../clock.js';
import { StateError } from '../errors.js';
import type { ScheduleStyle } from '../executor/request.js';
import { type CoordinatorRequest, type CoordinatorResult, DisaggCall } from './disagg-call.js';
import type { DisaggServer } from './disagg-server.js';
import type { SnowflakeIds } from './snowflake-ids.js';

/** What a coordinator needs: its servers, its clock and its policy. */
export interface DisaggCoordinatorOptions {
  readonly clock: Clock;
  readonly ids: SnowflakeIds;
  readonly context: DisaggServer;
  readonly generation: DisaggServer;
  /** Of requests that name none. */
  readonly scheduleStyle: ScheduleStyle;
}

/** A request under way. */
export interface CoordinatorCall {
  readonly id: bigint;
  /** The one outcome; never rejects. */
  readonly result: Promise<CoordinatorResult>;
  /** Both servers have ended the request; never before `result`. */
  readonly released: Promise<void>;
  /** Idempotent; a no-op after the outcome. */
  cancel(): void;
}

/**
 * Role: sends each request to a context and a generation server, as one request with one outcome.
 * Ownership: the servers stay the caller's.
 */
export class DisaggCoordinator {
  readonly #o: DisaggCoordinatorOptions;
  readonly #live = new Set<DisaggCall>();
  #closing = false;

  constructor(options: DisaggCoordinatorOptions) {
    this.#o = options;
  }

  /** Requests that some server still works on. */
  get liveCount(): number {
    return this.#live.size;
  }

  /** What a server refuses becomes the request's outcome. @throws StateError once `close` was called */
  submit(request: CoordinatorRequest): CoordinatorCall {
    if (this.#closing) throw new StateError('the coordinator is closing; submit to another one');
    const { clock, ids, context, generation } = this.#o;
    const scheduleStyle = request.scheduleStyle ?? this.#o.scheduleStyle;
    const call = new DisaggCall({ id: ids.next(), clock, request, scheduleStyle, context, generation });
    this.#live.add(call);
    void call.released.then(() => this.#live.delete(call));
    call.start();
    return call;
  }

  /**
   * Takes no new requests and waits for the live ones; what is left at the deadline is cancelled and waited for.
   * @param options.deadlineMs time from now; default: no limit
   */
  async close(options: { readonly deadlineMs?: number } = {}): Promise<void> {
    this.#closing = true;
    const timer =
      options.deadlineMs === undefined
        ? null
        : this.#o.clock.setTimer(
            options.deadlineMs,
            () => {
              for (const call of this.#live) call.cancel();
            },
            { keepAlive: true },
          );
    await Promise.all([...this.#live].map((call) => call.released));
    timer?.cancel();
  }
}
