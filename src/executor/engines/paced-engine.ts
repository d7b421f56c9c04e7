import type { ContentJob, PageContent } from '../../agent/page-content.js';
import type { ReadyEvent, TransferAgent } from '../../agent/transfer-agent.js';
import type { Clock } from '../../clock.js';
import type { ForwardResult, ModelEngine, ScheduledBatch } from '../model-engine.js';
import type { LlmRequest } from '../request.js';
import type { PaceCurve } from './pace-curve.js';
import { movesOver, PromptPages, type PromptPagesOptions } from './prompt-pages.js';

/** Parts of a paced engine; all stay their owner's. */
export interface PacedEngineOptions extends PromptPagesOptions {
  readonly clock: Clock;
  readonly agent: Pick<TransferAgent, 'createEvent'>;
  readonly content: PageContent;
  readonly curve: PaceCurve;
}

/** How honest the pacing was: a forward whose pages took longer to write than its modelled time overran. */
export interface PacedEngineStats {
  readonly forwards: number;
  readonly bytesWritten: number;
  readonly modelledMs: number;
  readonly overruns: number;
  readonly overrunMs: number;
}

/**
 * Role: a model without a GPU. Each forward really writes the pages of its chunks, natively, and ends when its modelled time has passed.
 * Why: transfers compete with pages that are being written and with a device that is busy as long as a real one.
 * Ordering: forwards run one after another, as on one stream: the time of a forward starts when the one before it ended. The event is
 *   signalled before the tokens settle; tokens settle only when no page of the forward is written any more.
 * Decode steps take their modelled time and write nothing: content is a function of the prompt alone, and no reader of those pages exists.
 */
export class PacedEngine implements ModelEngine {
  readonly feedsItself = true;
  readonly #o: PacedEngineOptions;
  readonly #pages: PromptPages;
  /** When the device is free again; settles, never rejects. */
  #stream: Promise<void> = Promise.resolve();
  #stats = { forwards: 0, bytesWritten: 0, modelledMs: 0, overruns: 0, overrunMs: 0 };

  constructor(options: PacedEngineOptions) {
    this.#o = options;
    this.#pages = new PromptPages(options);
  }

  stats(): PacedEngineStats {
    return { ...this.#stats };
  }

  async forward(batch: ScheduledBatch): Promise<ForwardResult> {
    // Where to write is read now: by the time the stream gets here, the cache may have moved on.
    const jobs = batch.context.flatMap((work) => this.#pages.jobsOf(work));
    const event = this.#o.agent.createEvent();
    const tokens = this.#stream.then(() => this.#execute(batch, jobs, event));
    this.#stream = tokens.then(
      () => {},
      // The rejection belongs to whoever awaits the tokens; the stream only has to go on.
      () => {},
    );
    return { event, tokens };
  }

  async #execute(
    batch: ScheduledBatch,
    jobs: readonly ContentJob[],
    event: ReadyEvent,
  ): Promise<ReadonlyMap<LlmRequest, number>> {
    const { clock, curve } = this.#o;
    let beganAtMs: number;
    let modelledMs = curve.decodeMs(batch.generation.map((work) => work.chunkStart));
    for (const { chunkStart, chunkEnd } of batch.context) modelledMs += curve.chunkMs(chunkStart, chunkEnd);
    try {
      await movesOver(batch);
      beganAtMs = clock.now();
      await this.#write(jobs);
    } catch (error) {
      event.fail(error instanceof Error ? error.message : String(error));
      throw error;
    }
    const endsAtMs = beganAtMs + modelledMs;
    this.#note(modelledMs, endsAtMs - clock.now());
    // More than once: a real timer counts whole milliseconds and may be early by a part of one.
    while (clock.now() < endsAtMs) await this.#sleep(endsAtMs - clock.now());
    const tokens = this.#pages.sample(batch);
    event.signal();
    return tokens;
  }

  /** Rejects with the first failure, after every write ended. */
  async #write(jobs: readonly ContentJob[]): Promise<void> {
    const outcomes = await Promise.allSettled(jobs.map((job) => this.#o.content.fill(job)));
    for (const outcome of outcomes) {
      if (outcome.status === 'fulfilled') this.#stats.bytesWritten += outcome.value.bytesWritten;
    }
    const failed = outcomes.find((outcome) => outcome.status === 'rejected');
    if (failed !== undefined) throw failed.reason;
  }

  #sleep(delayMs: number): Promise<void> {
    return new Promise((resolve) => {
      this.#o.clock.setTimer(delayMs, resolve, { keepAlive: true });
    });
  }

  #note(modelledMs: number, leftMs: number): void {
    this.#stats.forwards += 1;
    this.#stats.modelledMs += modelledMs;
    if (leftMs >= 0) return;
    this.#stats.overruns += 1;
    this.#stats.overrunMs -= leftMs;
  }
}
