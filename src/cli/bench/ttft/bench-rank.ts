import type { PageContent } from '../../../agent/page-content.js';
import type { TransferAgent } from '../../../agent/transfer-agent.js';
import { GrowingCacheManager } from '../../../cache/growing-cache-manager.js';
import type { KvCacheManager } from '../../../cache/kv-cache-manager.js';
import { StageCache } from '../../../cache/stage-cache.js';
import type { Clock } from '../../../clock.js';
import { resolveCacheTransceiverConfig } from '../../../config/index.js';
import { InternalError } from '../../../errors.js';
import { GemmEngine, type GemmEngineOptions } from '../../../executor/engines/gemm-engine.js';
import type { PaceCurve } from '../../../executor/engines/pace-curve.js';
import { PacedEngine } from '../../../executor/engines/paced-engine.js';
import { Executor } from '../../../executor/executor.js';
import type { LlmRequest } from '../../../executor/request.js';
import type { PageTable } from '../../../mapping/page-table.js';
import { flatRank, type RankPlaceInDp, stageLayers } from '../../../mapping/rank-place.js';
import { type OpenedTransceiver, openTransceiver } from '../../../open-transceiver.js';
import type { RankGroup } from '../../../rank-group/rank-group.js';
import type { Settled } from '../../../session/cache-transceiver.js';
import type { KvCacheTransceiver, TransceiverLog } from '../../../transceiver.js';
import type { Messenger } from '../../../wire/messenger.js';
import { presetNamed } from '../presets/index.js';
import { ContextParallelCache } from '../shape/context-parallel-cache.js';
import { type ContentPlace, type RankLayout, rankLayout } from '../shape/rank-layout.js';
import { ChunkClock } from './chunk-clock.js';
import { MeteredTransceiver } from './metered-transceiver.js';
import type { PathNotes } from './path-notes.js';
import { PinCountingCache } from './pin-counting-cache.js';
import type { ReportedPath, WorkerSettings } from './worker-messages.js';

/** A bench request waits for the prefill of those before it; a minute more than a slow one takes. */
const TIMEOUTS = { transferQueueTimeoutMs: 600_000, noProgressTimeoutMs: 30_000, kvTransferTimeoutMs: 60_000 };

/** Aux slots beyond the requests in flight: a slot returns only when its request has drained. */
const SPARE_AUX_SLOTS = 8;

/** What all ranks of a side share. */
export interface RankSurroundings {
  readonly settings: WorkerSettings;
  readonly clock: Clock;
  readonly content: PageContent;
  readonly curve: PaceCurve;
  /** Null: the prefill is paced. */
  readonly products: GemmEngineOptions['products'] | null;
  readonly blockHashesOf: (request: LlmRequest) => readonly string[];
  readonly log: TransceiverLog;
}

/**
 * Role: one rank of a server of the bench: pools, agent, cache manager, transceiver, executor and the paced engine, as an engine would
 *   wire them.
 * Ownership: owns all of them from `open` on; `close` ends them in order.
 * Ordering: `start` makes the executor, when all ranks of the side are open.
 */
export class BenchRank {
  readonly rank: number;
  readonly owner: RankPlaceInDp;
  readonly cache: StageCache;
  readonly content: PageContent;
  readonly contentPlace: ContentPlace;
  readonly pageTable: PageTable;
  readonly peerTokensPerBlock: number;
  readonly endpoint: string;
  readonly #surroundings: RankSurroundings;
  readonly #agent: TransferAgent;
  readonly #paths: PathNotes;
  readonly #transceiver: KvCacheTransceiver;
  readonly #settled = new Map<LlmRequest, Settled>();
  #running: { readonly executor: Executor; readonly chunkClock: ChunkClock } | null = null;

  private constructor(
    surroundings: RankSurroundings,
    paths: PathNotes,
    endpoint: string,
    cache: StageCache,
    layout: RankLayout,
    opened: OpenedTransceiver,
  ) {
    this.#surroundings = surroundings;
    this.#agent = paths.agent;
    this.#paths = paths;
    this.#transceiver = opened.transceiver;
    this.rank = flatRank(layout.place);
    this.owner = layout.place;
    this.cache = cache;
    this.content = surroundings.content;
    this.contentPlace = layout.content;
    this.pageTable = opened.pageTable;
    this.peerTokensPerBlock = surroundings.settings.peerTokensPerBlock;
    this.endpoint = endpoint;
  }

  /** The agent of `paths` and `messenger` belong to the rank from now on, also when opening fails. */
  static async open(
    surroundings: RankSurroundings,
    place: RankPlaceInDp,
    paths: PathNotes,
    messenger: Messenger,
  ): Promise<BenchRank> {
    const { settings, log } = surroundings;
    const layout = rankLayout(presetNamed(settings.model), settings.shape, place, settings.slots);
    const cache = cacheOf(settings, layout);
    const opened = await openTransceiver({
      instanceName: settings.role,
      agent: paths.agent,
      messenger,
      cache,
      layout: layout.layout,
      place,
      memory: settings.device === undefined ? { kind: 'host' } : { kind: 'device', device: settings.device },
      config: resolveCacheTransceiverConfig(
        { ...TIMEOUTS, enablePipelinedTransfer: true, backend: settings.agent === 'host' ? 'HOST' : 'NIXL' },
        { role: settings.role, scheduleStyle: 'generation_first', chunkedPrefillEffective: true, beamWidth: 1 },
      ),
      auxSlotCount: settings.concurrency + SPARE_AUX_SLOTS,
      log,
    });
    return new BenchRank(surroundings, paths, messenger.endpoint, cache, layout, opened);
  }

  /**
   * @param endpoints of every rank of the side, by flat rank
   * @param rankGroup null on a server of one rank
   */
  start(endpoints: readonly string[], rankGroup: RankGroup | null): void {
    const { settings, clock, curve, products, blockHashesOf } = this.#surroundings;
    const { cache, content, contentPlace, pageTable, owner } = this;
    this.#transceiver.joinInstance(endpoints);
    const pages = { content, cache, pageTable, owner, ...contentPlace };
    const engine =
      products === null
        ? new PacedEngine({ ...pages, clock, agent: this.#agent, curve })
        : new GemmEngine({ ...pages, products });
    const chunkClock = new ChunkClock(engine, clock);
    const executor = new Executor({
      clock,
      cache: cache.whole,
      transceiver: new MeteredTransceiver(this.#transceiver, (one) => this.#settled.set(one.request, one)),
      engine: chunkClock,
      schedule: settings.schedule,
      limits: {
        chunkTokens: settings.chunkTokens,
        tokenBudget: settings.tokenBudget ?? Math.max(2, settings.chunkTokens),
        maxTokensInBuffer: settings.maxTokensInBuffer ?? null,
      },
      blockHashesOf,
      ...(rankGroup === null ? {} : { rankGroup, kvTransferTimeoutMs: TIMEOUTS.kvTransferTimeoutMs }),
    });
    this.#running = { executor, chunkClock };
  }

  get executor(): Executor {
    return this.#started().executor;
  }

  get chunkClock(): ChunkClock {
    return this.#started().chunkClock;
  }

  /** Which paths its slices took so far. */
  get paths(): readonly ReportedPath[] {
    return this.#paths.found.map((path) => ({ rank: this.rank, ...path }));
  }

  /** Requests whose pages a transfer may still touch. */
  get heldRequests(): number {
    return this.#transceiver.stats().held;
  }

  /** When a request's transfer ended; null before. */
  timingsOf(request: LlmRequest): Settled['timings'] | null {
    return this.#settled.get(request)?.timings ?? null;
  }

  /** How a request's transfer ended; the next call for it gives null. */
  takeSettled(request: LlmRequest): Settled | null {
    const settled = this.#settled.get(request) ?? null;
    this.#settled.delete(request);
    return settled;
  }

  /** @returns whether nothing can touch the pools any more */
  async close(deadlineMs: number): Promise<boolean> {
    const closing = this.#running?.executor.close({ deadlineMs: Math.floor(deadlineMs / 2) });
    const report = await this.#transceiver.close(deadlineMs);
    await closing;
    return report.drained;
  }

  #started(): { readonly executor: Executor; readonly chunkClock: ChunkClock } {
    if (this.#running === null) throw new InternalError(`rank ${this.rank} was not started`);
    return this.#running;
  }
}

function cacheOf(
  { role, seed, shape, peerTokensPerBlock }: WorkerSettings,
  { place, layerGroups }: RankLayout,
): StageCache {
  const options = {
    tokensPerBlock: shape.tokensPerBlock,
    layerGroups,
    // Two different orders, so that pages are scattered on both sides; the ranks of one side share one, so that they decide alike.
    seed: seed * 2 + (role === 'context' ? 0 : 1),
  };
  const whole: KvCacheManager =
    place.cpSize === 1
      ? new GrowingCacheManager({ ...options, senderTokensPerBlock: peerTokensPerBlock })
      : new ContextParallelCache({ ...options, cpSize: place.cpSize });
  return new StageCache(new PinCountingCache(whole), stageLayers(place));
}
