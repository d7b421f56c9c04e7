import type { Clock, Timer } from '../../clock.js';
import { inPortions } from '../../in-portions.js';
import { TurnBudget } from '../../turn-budget.js';
import { ApiError } from './openai-error.js';

export interface AdmissionLimits {
  /** Requests at the servers at once. */
  readonly maxLive: number;
  /** Requests that wait for one of those to end; more are turned away. */
  readonly maxQueued: number;
  /** Longest wait. */
  readonly queueTimeoutMs: number;
}

interface Waiter {
  readonly admit: () => void;
  readonly refuse: (error: Error) => void;
  timer: Timer | null;
}

/** A place among the live requests; `leave` gives it up and may be called again. */
export interface Place {
  leave(): void;
}

/**
 * Role: bounds what is under way: so many requests run, so many wait in order of arrival, the rest is told to come back.
 * Why: without a bound a burst would wait in the servers' memory, and the last of it longer than any client does.
 */
export class AdmissionGate {
  readonly #clock: Clock;
  readonly #limits: AdmissionLimits;
  readonly #waiting = new Set<Waiter>();
  readonly #whenIdle: (() => void)[] = [];
  #live = 0;
  #closed = false;

  constructor(clock: Clock, limits: AdmissionLimits) {
    this.#clock = clock;
    this.#limits = limits;
  }

  get live(): number {
    return this.#live;
  }

  get queued(): number {
    return this.#waiting.size;
  }

  get isClosed(): boolean {
    return this.#closed;
  }

  /** Whether `enter` would take or queue a request now. @throws ApiError 429 when too many wait, 503 when it closes */
  assertRoom(): void {
    const { maxLive, maxQueued } = this.#limits;
    if (this.#closed) throw closing();
    if (this.#live < maxLive || this.#waiting.size < maxQueued) return;
    throw new ApiError(
      429,
      `${this.#live} requests run and ${this.#waiting.size} wait, as many as may; come back later`,
      { code: 'queue_full', retryAfterS: 1 },
    );
  }

  /**
   * @param signal aborted: nobody waits for this request any more
   * @throws ApiError 429 when too many wait, 503 when it closes or the wait was too long
   */
  async enter(signal: AbortSignal): Promise<Place> {
    const { maxLive, queueTimeoutMs } = this.#limits;
    this.assertRoom();
    if (this.#live < maxLive) return this.#place();
    return new Promise<Place>((resolve, reject) => {
      const settle = (act: () => void): void => {
        waiter.timer?.cancel();
        signal.removeEventListener('abort', onAbort);
        this.#waiting.delete(waiter);
        act();
      };
      const waiter: Waiter = {
        admit: () => settle(() => resolve(this.#place())),
        refuse: (error) => settle(() => reject(error)),
        timer: null,
      };
      const onAbort = (): void => waiter.refuse(new ApiError(499, 'the client is gone'));
      signal.addEventListener('abort', onAbort);
      waiter.timer = this.#clock.setTimer(queueTimeoutMs, () =>
        waiter.refuse(
          new ApiError(503, `no server was free within ${queueTimeoutMs} ms`, {
            code: 'queue_timeout',
            retryAfterS: 1,
          }),
        ),
      );
      this.#waiting.add(waiter);
      if (signal.aborted) onAbort();
    });
  }

  /** Takes nobody any more, from now on, not even of those who wait. @returns when those are turned away, in portions */
  close(): Promise<void> {
    this.#closed = true;
    return inPortions(new TurnBudget(this.#clock), () => {
      const [next] = this.#waiting;
      next?.refuse(closing());
      return next !== undefined;
    });
  }

  /** When nobody is live. */
  idle(): Promise<void> {
    if (this.#live === 0) return Promise.resolve();
    return new Promise((resolve) => this.#whenIdle.push(resolve));
  }

  #place(): Place {
    this.#live += 1;
    let left = false;
    return {
      leave: () => {
        if (left) return;
        left = true;
        this.#live -= 1;
        const [next] = this.#closed ? [] : this.#waiting;
        if (next !== undefined) next.admit();
        else if (this.#live === 0) for (const resolve of this.#whenIdle.splice(0)) resolve();
      },
    };
  }
}

function closing(): ApiError {
  return new ApiError(503, 'this server is shutting down', { code: 'shutting_down', retryAfterS: 1 });
}
