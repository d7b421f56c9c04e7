import type { Clock } from '../clock.js';
import type { KvTransceiverError } from '../errors.js';
import type { EventSink } from './executor-events.js';
import type { ForwardStage, Meanwhile, StepInFlight, StepResult } from './forward-stage.js';
import type { StepPlan } from './scheduler.js';

interface PipelinedStep {
  readonly number: number;
  readonly startedAtMs: number;
  readonly flight: StepInFlight;
  isSent: boolean;
  /** Null until it was read. */
  result: StepResult | null;
}

/**
 * Role: the steps that were launched and are not retired: one with the plain schedule, two with the overlap schedule, which is all that
 *   the two differ in.
 * Ordering: steps are read and retired in the order of their launch. A step's slices are submitted when it is the oldest: at its launch when
 *   nothing else is under way, else when the step before it was retired. With two steps at most, its requests have not been given another
 *   chunk by then.
 */
export class StepPipeline {
  readonly #clock: Clock;
  readonly #forward: ForwardStage;
  readonly #events: EventSink;
  readonly #depth: number;
  readonly #meanwhile: Meanwhile;
  readonly #steps: PipelinedStep[] = [];
  #launched = 0;

  constructor(options: {
    readonly clock: Clock;
    readonly forward: ForwardStage;
    readonly events: EventSink;
    readonly depth: number;
    readonly meanwhile: Meanwhile;
  }) {
    this.#clock = options.clock;
    this.#forward = options.forward;
    this.#events = options.events;
    this.#depth = options.depth;
    this.#meanwhile = options.meanwhile;
  }

  /** Forwards that were launched so far. */
  get launched(): number {
    return this.#launched;
  }

  get isEmpty(): boolean {
    return this.#steps.length === 0;
  }

  /** No step may be launched before the oldest is retired. */
  get isFull(): boolean {
    return this.#steps.length >= this.#depth;
  }

  /** The newest step could not be enqueued: what the next one would compute for the same requests rests on nothing. */
  get hasStumbled(): boolean {
    return this.#steps.at(-1)?.flight.forward === null;
  }

  /** What ended meanwhile is left out; when that is all of it, there is no step. */
  async launch(plan: StepPlan): Promise<void> {
    const startedAtMs = this.#clock.now();
    const flight = await this.#forward.launch(plan);
    if (flight === null) return;
    this.#launched += 1;
    this.#steps.push({ number: this.#launched, startedAtMs, flight, isSent: false, result: null });
    if (this.hasUnsent) await this.sendOldest();
  }

  /** The oldest step has prompts, and their slices were not submitted. */
  get hasUnsent(): boolean {
    const oldest = this.#steps[0];
    return oldest !== undefined && !oldest.isSent && oldest.flight.context.length > 0;
  }

  /** Submits the slices of the oldest step, once. */
  sendOldest(): Promise<void> {
    const oldest = this.#steps[0];
    if (oldest === undefined || oldest.isSent) return Promise.resolve();
    oldest.isSent = true;
    return this.#forward.send(oldest.flight);
  }

  /** The oldest step was read, so that it can be retired. */
  get hasRead(): boolean {
    return (this.#steps[0]?.result ?? null) !== null;
  }

  /** Waits for the oldest step's forward. @returns why it failed */
  async read(): Promise<KvTransceiverError | null> {
    const oldest = this.#steps[0];
    if (oldest === undefined) return null;
    const result = await this.#meanwhile(oldest.flight.result);
    if (!(result instanceof Error) && result.refused.size > 0) await this.#forward.judge(result.refused);
    oldest.result = result;
    return result instanceof Error ? result : null;
  }

  /**
   * Retires the oldest step if it was read.
   * @param error why it does not count, although it may have gone well here
   */
  async retire(error: KvTransceiverError | null): Promise<void> {
    const oldest = this.#steps[0];
    if (oldest === undefined || oldest.result === null) return;
    // Out of the line first: whatever a stage throws, no step is retired twice.
    this.#steps.shift();
    const { number, startedAtMs, flight, result } = oldest;
    await this.#forward.retire(flight, error ?? result);
    this.#events.step({
      step: number,
      startedAtMs,
      endedAtMs: this.#clock.now(),
      contextTokens: flight.context.reduce((sum, { scheduled: s }) => sum + s.chunkEnd - s.chunkStart, 0),
      contextRequests: flight.context.length,
      generationRequests: flight.generation.length,
    });
  }

  /** Retires everything, each step when its forward has ended; none of it counts. */
  async abandon(error: KvTransceiverError): Promise<void> {
    while (!this.isEmpty) {
      await this.read();
      await this.retire(error);
    }
  }
}
