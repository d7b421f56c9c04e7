import { InternalError } from '../../../src/errors.js';
import type { ForwardResult, ModelEngine, ScheduledBatch } from '../../../src/executor/model-engine.js';
import type { LlmRequest } from '../../../src/executor/request.js';
import type { Random } from '../core/random.js';
import type { Scheduler, SimProcess } from '../core/scheduler.js';
import type { Pages } from './pages.js';
import { tokenAt } from './prompts.js';
import type { SimAgent } from './sim-agent.js';

export interface SimEngineOptions {
  readonly scheduler: Scheduler;
  readonly process: SimProcess;
  readonly agent: SimAgent;
  readonly pages: Pages;
  readonly random: Random;
  readonly msPerToken: number;
  /** Whether this forward fails, and how. */
  readonly failure: () => 'enqueue' | 'device' | null;
}

/**
 * Role: a model without arithmetic. A forward takes its time, writes the words of its chunks when it ends, then says its tokens.
 * Ordering: forwards run one after another; the event is signalled after the last word, the tokens come after the event.
 */
export class SimEngine implements ModelEngine {
  readonly feedsItself = true;
  readonly #o: SimEngineOptions;
  #freeAt = 0;

  constructor(options: SimEngineOptions) {
    this.#o = options;
  }

  forward({ context, generation }: ScheduledBatch): Promise<ForwardResult> {
    const { scheduler, process, agent, pages, random, msPerToken } = this.#o;
    const failure = this.#o.failure();
    if (failure === 'enqueue') return Promise.reject(new InternalError('the device took no work'));
    const jobs = context.map(({ request, chunkStart, chunkEnd }) => ({
      request,
      chunkStart,
      chunkEnd,
      runs: pages.runsOf(request, chunkStart, chunkEnd),
    }));
    const event = agent.createEvent();
    const tokenCount = jobs.reduce((sum, job) => sum + job.chunkEnd - job.chunkStart, generation.length);
    const startsAt = Math.max(scheduler.now, this.#freeAt);
    this.#freeAt = startsAt + tokenCount * msPerToken * random.real(0.5, 1.5);
    const tokens = new Promise<ReadonlyMap<LlmRequest, number>>((resolve, reject) => {
      const told = random.real(0.01, 1);
      scheduler.at(
        this.#freeAt - scheduler.now,
        process,
        () => {
          if (failure === 'device') {
            event.fail('the device failed');
            reject(new InternalError('the device failed'));
            return;
          }
          for (const { request, runs, chunkStart, chunkEnd } of jobs)
            pages.compute(request, runs, chunkStart, chunkEnd);
          event.signal();
        },
        'hardware',
      );
      scheduler.at(this.#freeAt - scheduler.now + told, process, () => {
        const sampled = new Map<LlmRequest, number>();
        for (const { request, chunkEnd } of jobs)
          if (chunkEnd === request.promptTokens.length) sampled.set(request, tokenAt(request.promptTokens, 0));
        for (const { request, chunkStart } of generation)
          sampled.set(request, tokenAt(request.promptTokens, chunkStart + 1 - request.promptTokens.length));
        resolve(sampled);
      });
    });
    return Promise.resolve({ event, tokens });
  }
}
