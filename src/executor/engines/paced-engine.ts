import type { ContentJob, PageContent } from '../../agent/page-content.js';
import type { ReadyEvent, TransferAgent } from '../../agent/transfer-agent.js';
import type { KvCacheManager } from '../../cache/kv-cache-manager.js';
import type { Clock } from '../../clock.js';
import type { PageTable } from '../../mapping/page-table.js';
import type { ForwardResult, ModelEngine, ScheduledBatch, ScheduledWork } from '../model-engine.js';
import type { LlmRequest } from '../request.js';
import { type BlockOwner, ownedRun } from './owned-run.js';
import type { PaceCurve } from './pace-curve.js';

const DEFAULT_VOCABULARY_SIZE = 128_000;
const MASK_64 = (1n << 64n) - 1n;
const ALL_BLOCKS: BlockOwner = { cpSize: 1, cpRank: 0 };

/** Parts of a paced engine; all stay their owner's. */
export interface PacedEngineOptions {
  readonly clock: Clock;
  readonly agent: Pick<TransferAgent, 'createEvent'>;
  readonly content: PageContent;
  readonly cache: KvCacheManager;
  readonly pageTable: PageTable;
  readonly curve: PaceCurve;
  /** Global index of this rank's first KV head. Default 0. */
  readonly firstHead?: number;
  /** Needed for layer groups of recurrent state; see `ContentJob`. */
  readonly firstUnits?: ContentJob['firstUnits'];
  /** Of a context parallel rank, which writes only the blocks it owns. Default: all. */
  readonly owner?: BlockOwner;
  /** Default 128000. */
  readonly vocabularySize?: number;
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
  readonly #o: PacedEngineOptions;
  readonly #vocabularySize: bigint;
  readonly #seeds = new WeakMap<LlmRequest, BigUint64Array>();
  /** When the device is free again; settles, never rejects. */
  #stream: Promise<void> = Promise.resolve();
  #stats = { forwards: 0, bytesWritten: 0, modelledMs: 0, overruns: 0, overrunMs: 0 };

  constructor(options: PacedEngineOptions) {
    this.#o = options;
    this.#vocabularySize = BigInt(options.vocabularySize ?? DEFAULT_VOCABULARY_SIZE);
  }

  stats(): PacedEngineStats {
    return { ...this.#stats };
  }

  async forward(batch: ScheduledBatch): Promise<ForwardResult> {
    // Where to write is read now: by the time the stream gets here, the cache may have moved on.
    const jobs = batch.context.flatMap((work) => this.#jobsOf(work));
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
    const tokens = this.#sample(batch);
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

  #jobsOf({ request, chunkStart, chunkEnd }: ScheduledWork): ContentJob[] {
    const { cache, pageTable, firstHead = 0, firstUnits, owner = ALL_BLOCKS } = this.#o;
    const { tokensPerBlock } = cache;
    const begin = Math.floor(chunkStart / tokensPerBlock);
    const end = Math.ceil(chunkEnd / tokensPerBlock);
    const tokenSeeds = this.#seedsOf(request);
    const place = { firstHead, ...(firstUnits === undefined ? {} : { firstUnits }) };
    return cache.layerGroups.flatMap(({ kind }, group) => {
      // A windowed group's run may start later: what left the window has no page to write.
      const run = ownedRun(cache, request.id, group, begin, end, owner);
      // A state is overwritten by every chunk.
      const tokenBegin = kind === 'state' ? chunkStart : Math.max(chunkStart, run.begin * tokensPerBlock);
      if (run.slots.length === 0 || tokenBegin >= chunkEnd) return [];
      return [{ table: pageTable, group, run, tokenBegin, tokenEnd: chunkEnd, tokenSeeds, ...place }];
    });
  }

  /** A function of prompt and position alone, so that a generation server continues what an aggregate server would say. */
  #sample(batch: ScheduledBatch): ReadonlyMap<LlmRequest, number> {
    const tokens = new Map<LlmRequest, number>();
    for (const { request, chunkEnd } of batch.context) {
      if (chunkEnd === request.promptTokens.length) tokens.set(request, this.#tokenAt(request, 0));
    }
    for (const { request } of batch.generation)
      tokens.set(request, this.#tokenAt(request, request.outputTokens.length));
    return tokens;
  }

  #tokenAt(request: LlmRequest, index: number): number {
    const seeds = this.#seedsOf(request);
    const last = seeds[seeds.length - 1] as bigint;
    return Number(mix64(last + BigInt(index)) % this.#vocabularySize);
  }

  #seedsOf(request: LlmRequest): BigUint64Array {
    let seeds = this.#seeds.get(request);
    if (seeds === undefined) {
      seeds = this.#o.content.chainTokenSeeds(request.promptTokens);
      this.#seeds.set(request, seeds);
    }
    return seeds;
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

/** Settles when no page of the batch is moved any more; rejects with the first failure. */
async function movesOver(batch: ScheduledBatch): Promise<void> {
  const moves = [...batch.context, ...batch.generation].flatMap(({ pagesReady }) => pagesReady?.done ?? []);
  const outcomes = await Promise.allSettled(moves);
  const failed = outcomes.find((outcome) => outcome.status === 'rejected');
  if (failed !== undefined) throw failed.reason;
}

/** The output function of splitmix64 (Steele, Lea, Flood 2014). */
function mix64(value: bigint): bigint {
  let z = (value + 0x9e3779b97f4a7c15n) & MASK_64;
  z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK_64;
  z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & MASK_64;
  return z ^ (z >> 31n);
}
