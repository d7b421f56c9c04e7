import type { GemmStep } from '../../agent/gemm-workload.js';
import type { ContentJob } from '../../agent/page-content.js';
import type { ForwardResult, ModelEngine, ScheduledBatch } from '../model-engine.js';
import { movesOver, PromptPages, type PromptPagesOptions } from './prompt-pages.js';

/** Parts of a gemm engine; all stay their owner's. */
export interface GemmEngineOptions extends PromptPagesOptions {
  /** A `GemmWorkload`, or what stands before one. */
  readonly products: {
    forward(chunkTokens: number, contextTokens: number, jobs: readonly ContentJob[]): Promise<GemmStep>;
  };
}

/**
 * Role: a model on a GPU as far as its prefill's matrix products go. Each forward runs those of its chunks and then writes their pages, all on
 *   one stream, and is enqueued, not over, when it resolves: its slices are queued on the GPU behind its event.
 * Ordering: forwards are enqueued one after another. Tokens settle when the GPU has passed the event.
 * Decode steps take no time and write nothing: no reader of those pages exists.
 */
export class GemmEngine implements ModelEngine {
  readonly feedsItself = true;
  readonly #products: GemmEngineOptions['products'];
  readonly #pages: PromptPages;
  /** The forward before is enqueued; settles, never rejects. */
  #queue: Promise<unknown> = Promise.resolve();

  constructor(options: GemmEngineOptions) {
    this.#products = options.products;
    this.#pages = new PromptPages(options);
  }

  forward(batch: ScheduledBatch): Promise<ForwardResult> {
    // Where to write is read now: by the time the queue gets here, the cache may have moved on.
    const jobs = batch.context.map((work) => this.#pages.jobsOf(work));
    const enqueued = this.#queue.then(() => this.#enqueue(batch, jobs));
    this.#queue = enqueued.catch(() => {});
    return enqueued;
  }

  async #enqueue(batch: ScheduledBatch, jobs: readonly (readonly ContentJob[])[]): Promise<ForwardResult> {
    await movesOver(batch);
    const steps: GemmStep[] = [];
    try {
      for (const [index, { chunkStart, chunkEnd }] of batch.context.entries()) {
        steps.push(await this.#products.forward(chunkEnd - chunkStart, chunkStart, jobs[index] ?? []));
      }
    } catch (error) {
      // A rejection says that nothing of this forward writes pages.
      await Promise.allSettled(steps.map(({ done }) => done));
      throw error;
    }
    const tokens = Promise.allSettled(steps.map(({ done }) => done)).then((ends) => {
      const failed = ends.find((end) => end.status === 'rejected');
      if (failed !== undefined) throw failed.reason;
      return this.#pages.sample(batch);
    });
    return { event: steps.at(-1)?.event ?? null, tokens };
  }
}
