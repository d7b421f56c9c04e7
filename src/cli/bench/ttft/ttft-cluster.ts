import type { Clock } from '../../../clock.js';
import { SystemClock } from '../../../clock.js';
import type { TtftSample } from '../output-contract.js';
import type { ExpectedTransfer } from '../shape/expected-transfer.js';
import type { StandingPrompt } from '../trace/standing-prompts.js';
import { InterruptedError } from './interrupted-error.js';
import { RequestMeasurement } from './request-measurement.js';
import { policyOf } from './variants.js';
import type { ServerDescription, WorkerEvent, WorkerSettings } from './worker-messages.js';
import { WorkerProcess } from './worker-process.js';
import type { PlannedRequest, StandingPrompts } from './workload.js';

export interface PreparedRequest {
  readonly key: number;
  readonly planned: PlannedRequest;
}

/** Ids of requests that cross servers start here; smaller ones are local to a server. */
const FIRST_GLOBAL_ID = 1n << 40n;

/** How long the survivor may take to notice that its peer died, on a busy machine: the transceiver notices within 3 s. */
const PEER_LOSS_GRACE_MS = 10_000;

/** A request without an outcome after this long is lost. */
const REQUEST_DEADLINE_MS = 180_000;

/** How long a server may take to say what it did; one that is gone is not waited for. */
const DESCRIBE_DEADLINE_MS = 10_000;

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
  readonly #requestDeadlineMs: number;
  /** When the first request that counts arrived. */
  #runStartedMs: number | null = null;

  /** @param requestDeadlineMs from submission; under load most of it is waiting */
  constructor(expected: ExpectedTransfer, requestDeadlineMs = REQUEST_DEADLINE_MS) {
    this.#expected = expected;
    this.#requestDeadlineMs = requestDeadlineMs;
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

  /** Gives both caches prompts as requests before would have left them, before the clock runs. */
  async restore(standing: StandingPrompts): Promise<void> {
    const into = async (worker: WorkerProcess, prompts: readonly StandingPrompt[]): Promise<void> => {
      if (prompts.length > 0) await worker.restore({ kind: 'restore', key: this.#nextKey++, prompts });
    };
    await this.#orFailure(
      Promise.all([into(this.#context, standing.context), into(this.#generation, standing.generation)]),
    );
  }

  /** Runs one request from submission to verified pages. `arrivedMs`: when it came, if that was before this call. */
  async measure({ key, planned }: PreparedRequest, arrivedMs: number | null = null): Promise<TtftSample> {
    const submittedMs = this.#clock.now();
    const times = { submittedMs, arrivedMs: arrivedMs ?? submittedMs, runStartedMs: this.#runStartedMs ?? submittedMs };
    const measurement = new RequestMeasurement(planned, times, this.#expected);
    this.#inFlight.set(key, measurement);
    const submit = {
      kind: 'submit' as const,
      key,
      disaggRequestId: FIRST_GLOBAL_ID + BigInt(key),
      contextEndpoint: this.#contextEndpoint,
      policy: policyOf(planned.variant),
      maxTokens: planned.maxTokens,
    };
    const deadline = new Deadline(this.#requestDeadlineMs);
    try {
      this.#generation.send(submit);
      this.#context.send(submit);
      await this.#orFailure(Promise.race([measurement.complete, deadline.passed]));
    } finally {
      deadline.clear();
      this.#inFlight.delete(key);
    }
    return measurement.sample(`no outcome within ${this.#requestDeadlineMs / 1000} s`);
  }

  /** Times of later requests count from now on. */
  startRun(): void {
    this.#runStartedMs = this.#clock.now();
  }

  /** What both servers say of themselves; null for one that does not answer. */
  async describe(): Promise<Readonly<Record<WorkerSettings['role'], ServerDescription | null>>> {
    const ask = async (worker: WorkerProcess): Promise<ServerDescription | null> => {
      const deadline = new Deadline(DESCRIBE_DEADLINE_MS);
      try {
        return await Promise.race([worker.describe(), deadline.passed.then(() => null)]);
      } catch {
        // It is gone; that is reported where requests were lost.
        return null;
      } finally {
        deadline.clear();
      }
    };
    const [context, generation] = await Promise.all([ask(this.#context), ask(this.#generation)]);
    return { context, generation };
  }

  /** A request that is not sent on. */
  refuse({ key, planned }: PreparedRequest, arrivedMs: number, reason: string): TtftSample {
    for (const worker of [this.#context, this.#generation]) worker.trySend({ kind: 'cancel', key });
    const times = { submittedMs: this.#clock.now(), arrivedMs, runStartedMs: this.#runStartedMs ?? arrivedMs };
    return { ...new RequestMeasurement(planned, times, this.#expected).sample(reason), outcome: 'rejected' };
  }

  /** Makes every call under way end with InterruptedError. */
  interrupt(): void {
    this.#fail(new InterruptedError());
  }

  async stop(deadlineMs: number): Promise<void> {
    await Promise.all([this.#context.stop(deadlineMs), this.#generation.stop(deadlineMs)]);
  }

  #route(role: WorkerSettings['role'], event: WorkerEvent): void {
    if (!('key' in event)) return;
    const measurement = this.#inFlight.get(event.key);
    measurement?.accept(role, event);
    if (event.kind !== 'requestFailed' || measurement === undefined) return;
    // What one server will not do the other one must not wait for.
    const other = role === 'context' ? this.#generation : this.#context;
    if (!measurement.isOverFor(other.role)) other.trySend({ kind: 'cancel', key: event.key });
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
