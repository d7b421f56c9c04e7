import { Executor } from '../../../executor/executor.js';
import type { RequestOutcome } from '../../../executor/executor-events.js';
import type { StepSchedule } from '../../../executor/executor-options.js';
import type { ForwardResult, ModelEngine, ScheduledBatch } from '../../../executor/model-engine.js';
import type { LlmRequest } from '../../../executor/request.js';
import { blockHashesOf, PROMPT_TOKENS, type SessionServer } from './session-server.js';

/** Computes nothing and needs no time, so that what is left is the loop. */
export class ZeroTimeEngine implements ModelEngine {
  readonly feedsItself = true;

  forward({ context, generation }: ScheduledBatch): Promise<ForwardResult> {
    const tokens = new Map<LlmRequest, number>();
    for (const { request, chunkEnd } of context) if (chunkEnd === request.promptTokens.length) tokens.set(request, 1);
    for (const { request } of generation) tokens.set(request, 1);
    return Promise.resolve({ event: null, tokens: Promise.resolve(tokens) });
  }
}

export interface ExecutorLoadOptions {
  readonly chunkTokens: number;
  readonly concurrency: number;
  readonly schedule: StepSchedule;
}

/** Role: both executors of a pair in one event loop, kept busy by a fixed number of requests in flight. */
export class ExecutorLoad {
  readonly #context: SessionServer;
  readonly #generation: SessionServer;
  readonly #executors: readonly [Executor, Executor];
  #nextNumber = 1;
  #completed = 0;
  #failed = 0;
  #goesOn = true;

  constructor(
    context: SessionServer,
    generation: SessionServer,
    { chunkTokens, concurrency, schedule }: ExecutorLoadOptions,
  ) {
    this.#context = context;
    this.#generation = generation;
    const executor = ({ clock, cache, transceiver }: SessionServer): Executor =>
      new Executor({
        clock,
        cache,
        transceiver,
        engine: new ZeroTimeEngine(),
        schedule,
        limits: { chunkTokens, tokenBudget: concurrency * PROMPT_TOKENS, maxTokensInBuffer: null },
        blockHashesOf: (request) => blockHashesOf(request.id),
      });
    this.#executors = [executor(context), executor(generation)];
  }

  get completed(): number {
    return this.#completed;
  }

  get failed(): number {
    return this.#failed;
  }

  start(concurrency: number): void {
    for (let i = 0; i < concurrency; i++) this.#startNext();
  }

  /** Lets what runs end. @returns requests that never ended */
  async close(deadlineMs: number): Promise<number> {
    this.#goesOn = false;
    await Promise.all(this.#executors.map((executor) => executor.close({ deadlineMs })));
    return this.#nextNumber - 1 - this.#completed - this.#failed;
  }

  #startNext(): void {
    const number = this.#nextNumber++;
    let open = 2;
    let failed = false;
    const onFinished = (_request: LlmRequest, outcome: RequestOutcome): void => {
      if (outcome !== 'completed') failed = true;
      open -= 1;
      if (open > 0) return;
      if (failed) this.#failed += 1;
      else this.#completed += 1;
      if (this.#goesOn) this.#startNext();
    };
    const [context, generation] = this.#executors;
    context.submit(this.#context.makeRequest(number, null), { onFinished });
    generation.submit(this.#generation.makeRequest(number, this.#context.endpoint), { onFinished });
  }
}
