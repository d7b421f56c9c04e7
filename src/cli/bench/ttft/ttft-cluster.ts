import type { Clock } from '../../../clock.js';
import { SystemClock } from '../../../clock.js';
import type { TtftSample } from '../output-contract.js';
import type { ExpectedTransfer } from '../shape/expected-transfer.js';
import { InterruptedError } from './interrupted-error.js';
import { RequestMeasurement } from './request-measurement.js';
import { policyOf } from './variants.js';
import type { WorkerEvent, WorkerSettings } from './worker-messages.js';
import { WorkerProcess } from './worker-process.js';
import type { PlannedRequest } from './workload.js';

export interface PreparedRequest {
  readonly key: number;
  readonly planned: PlannedRequest;
}

/** Ids of requests that cross servers start here; smaller ones are local to a server. */
const FIRST_GLOBAL_ID = 1n << 40n;

/** How long the survivor may take to notice that its peer died: the transceiver notices within 3 s. */
const PEER_LOSS_GRACE_MS = 4500;

/** A request without an outcome after this long is lost. */
const REQUEST_DEADLINE_MS = 180_000;

/**
 * Role: the coordinator of the bench: a context and a generation server in two processes, and the requests in flight between them.
 * Ownership: owns both processes; `stop` ends them in every case.
 */
export class TtftCluster {
  readonly #clock: Clock = new SystemClock();
  readonly #context = new WorkerProcess('context');
  readonly #generation = new WorkerProcess('generation');
  readonly #inFlight = new Map<number, RequestMeasurement>();
  #contextEndpoint = '';
  #nextKey = 1;
  #failure: Error | null = null;
  #fail: (error: Error) => void = () => {};
  readonly #failed: Promise<never>;

  readonly #expected: ExpectedTransfer;

  constructor(expected: ExpectedTransfer) {
    this.#expected = expected;
    this.#failed = new Promise((_, reject) => {
      this.#fail = (error) => {
        this.#failure ??= error;
        reject(this.#failure);
      };
    });
    // Awaited only while something is in flight; a failure in between is seen by the next call.
    this.#failed.catch(() => {});
    for (const worker of [this.#context, this.#generation]) {
      worker.onEvent((event) => this.#route(worker.role, event));
      worker.onLoss((error) => void this.#onLoss(worker, error));
    }
  }

  get pids(): { readonly context: number | undefined; readonly generation: number | undefined } {
    return { context: this.#context.pid, generation: this.#generation.pid };
  }

  /** @returns what moves the pages, as the context server explains it */
  async start(context: WorkerSettings, generation: WorkerSettings): Promise<string> {
    const [ready] = await this.#orFailure(
      Promise.all([this.#context.start(context), this.#generation.start(generation)]),
    );
    this.#contextEndpoint = ready.endpoint;
    return ready.path;
  }

  /** Lets both servers make the prompt, and cache what the plan says, before the clock runs. */
  async prepare(planned: PlannedRequest): Promise<PreparedRequest> {
    const key = this.#nextKey++;
    const { prompt } = planned;
    await this.#orFailure(
      Promise.all([
        this.#context.prepare({ kind: 'prepare', key, prompt, warmTokens: planned.contextWarmTokens }),
        this.#generation.prepare({ kind: 'prepare', key, prompt, warmTokens: planned.generationWarmTokens }),
      ]),
    );
    return { key, planned };
  }

  /** Runs one request from submission to verified pages. `arrivedMs`: when it came, if that was before this call. */
  async measure({ key, planned }: PreparedRequest, arrivedMs: number | null = null): Promise<TtftSample> {
    const measurement = new RequestMeasurement(planned, arrivedMs ?? this.#clock.now(), this.#expected);
    this.#inFlight.set(key, measurement);
    const submit = {
      kind: 'submit' as const,
      key,
      disaggRequestId: FIRST_GLOBAL_ID + BigInt(key),
      contextEndpoint: this.#contextEndpoint,
      policy: policyOf(planned.variant),
    };
    const deadline = new Deadline(REQUEST_DEADLINE_MS);
    try {
      this.#generation.send(submit);
      this.#context.send(submit);
      await this.#orFailure(Promise.race([measurement.complete, deadline.passed]));
    } finally {
      deadline.clear();
      this.#inFlight.delete(key);
    }
    return measurement.sample(`no outcome within ${REQUEST_DEADLINE_MS / 1000} s`);
  }

  /** Makes every call under way end with InterruptedError. */
  interrupt(): void {
    this.#fail(new InterruptedError());
  }

  async stop(deadlineMs: number): Promise<void> {
    await Promise.all([this.#context.stop(deadlineMs), this.#generation.stop(deadlineMs)]);
  }

  #route(role: string, event: WorkerEvent): void {
    if ('key' in event) this.#inFlight.get(event.key)?.accept(role, event);
  }

  /** One process is gone: the other one is given the time to say, with a typed error, whom it lost. */
  async #onLoss(lost: WorkerProcess, error: Error): Promise<void> {
    const grace = new Deadline(this.#inFlight.size === 0 ? 0 : PEER_LOSS_GRACE_MS);
    const survivorSpoke = [...this.#inFlight.values()].map((measurement) => measurement.heardFromOtherThan(lost.role));
    await Promise.race([grace.passed, Promise.all(survivorSpoke)]);
    grace.clear();
    const said = [...this.#inFlight.values()]
      .map((measurement) => measurement.describeFailures())
      .find((text) => text !== '');
    if (said !== undefined) error.message += `; ${said}`;
    this.#fail(error);
  }

  #orFailure<T>(work: Promise<T>): Promise<T> {
    if (this.#failure !== null) return Promise.reject(this.#failure);
    return Promise.race([work, this.#failed]);
  }
}

class Deadline {
  readonly passed: Promise<void>;
  #timer: NodeJS.Timeout | undefined;

  constructor(afterMs: number) {
    this.passed = new Promise((resolve) => {
      this.#timer = setTimeout(resolve, afterMs);
    });
  }

  clear(): void {
    clearTimeout(this.#timer);
  }
}
