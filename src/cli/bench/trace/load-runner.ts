import { setTimeout as sleep } from 'node:timers/promises';
import type { TtftSample } from '../output-contract.js';
import type { PreparedRequest, TtftCluster } from '../ttft/ttft-cluster.js';
import type { PlannedRequest } from '../ttft/workload.js';

/** Prompts that are made at once before the clock runs. */
const PREPARED_TOGETHER = 32;

/** Where the requests are run: what `TtftCluster` offers, so that arrivals can be tested without processes. */
export type LoadTarget = Pick<TtftCluster, 'prepare' | 'measure' | 'refuse'>;

/** What may be under way at once. */
export interface LoadLimits {
  readonly concurrency: number;
  /** Null: any number may wait. */
  readonly maxQueued: number | null;
}

/** Passing time, for tests to replace. */
export interface LoadClock {
  now(): number;
  sleep(delayMs: number, signal: AbortSignal): Promise<void>;
}

export const loadClock = (now: () => number): LoadClock => ({
  now,
  sleep: (delayMs, signal) => sleep(delayMs, undefined, { signal }),
});

/**
 * Role: an open loop: requests come when the trace says, whether the servers keep up or not. What finds no place waits its turn, on its own
 *   clock; what finds no room to wait is refused.
 * Ordering: all prompts are made before the first one arrives.
 * Errors: the first request that cannot be run ends the run.
 */
export class LoadRunner {
  readonly #target: LoadTarget;
  readonly #limits: LoadLimits;
  readonly #clock: LoadClock;
  readonly #onSample: (planned: PlannedRequest, sample: TtftSample) => void;
  readonly #waiting: { readonly request: PreparedRequest; readonly arrivedMs: number }[] = [];
  readonly #stop = new AbortController();
  readonly #running = new Set<Promise<void>>();
  #failure: Error | null = null;

  constructor(
    target: LoadTarget,
    limits: LoadLimits,
    clock: LoadClock,
    onSample: (planned: PlannedRequest, sample: TtftSample) => void,
  ) {
    this.#target = target;
    this.#limits = limits;
    this.#clock = clock;
    this.#onSample = onSample;
  }

  /** Resolves when every request has its outcome. */
  async run(requests: readonly PlannedRequest[]): Promise<void> {
    const prepared: PreparedRequest[] = [];
    for (let first = 0; first < requests.length; first += PREPARED_TOGETHER) {
      const some = requests.slice(first, first + PREPARED_TOGETHER);
      prepared.push(...(await Promise.all(some.map((planned) => this.#target.prepare(planned)))));
    }
    const startedMs = this.#clock.now();
    for (const request of prepared) {
      const arrivedMs = startedMs + (request.planned.arrivalMs ?? 0);
      await this.#until(arrivedMs);
      if (this.#failure !== null) break;
      this.#arrive(request, arrivedMs);
    }
    while (this.#running.size > 0 && this.#failure === null) await Promise.race(this.#running);
    if (this.#failure !== null) throw this.#failure;
  }

  async #until(atMs: number): Promise<void> {
    const leftMs = atMs - this.#clock.now();
    if (leftMs <= 0 || this.#failure !== null) return;
    try {
      await this.#clock.sleep(leftMs, this.#stop.signal);
    } catch (error) {
      if (this.#failure === null) throw error;
    }
  }

  #arrive(request: PreparedRequest, arrivedMs: number): void {
    const { concurrency, maxQueued } = this.#limits;
    if (this.#running.size < concurrency) {
      this.#start(request, arrivedMs);
    } else if (maxQueued === null || this.#waiting.length < maxQueued) {
      this.#waiting.push({ request, arrivedMs });
    } else {
      const reason = `the queue is full: ${concurrency} requests under way, ${maxQueued} waiting (--concurrency, --max-queued)`;
      this.#onSample(request.planned, this.#target.refuse(request, arrivedMs, reason));
    }
  }

  #start(request: PreparedRequest, arrivedMs: number): void {
    const run = this.#measure(request, arrivedMs).finally(() => {
      this.#running.delete(run);
      const next = this.#failure === null ? this.#waiting.shift() : undefined;
      if (next !== undefined) this.#start(next.request, next.arrivedMs);
    });
    this.#running.add(run);
  }

  async #measure(request: PreparedRequest, arrivedMs: number): Promise<void> {
    try {
      this.#onSample(request.planned, await this.#target.measure(request, arrivedMs));
    } catch (error) {
      this.#failure ??= error instanceof Error ? error : new Error(String(error));
      this.#stop.abort();
    }
  }
}
