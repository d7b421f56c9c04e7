import { chainBlockHashes } from '../../../src/cache/block-hash.js';
import { GrowingCacheManager } from '../../../src/cache/growing-cache-manager.js';
import type { LayerGroup } from '../../../src/cache/kv-cache-manager.js';
import type { PageMove, PageMover } from '../../../src/cache/page-mover.js';
import type { PagedCacheManager } from '../../../src/cache/paged-cache-manager.js';
import { PoolPageMover } from '../../../src/cache/pool-page-mover.js';
import { ReservingCacheManager } from '../../../src/cache/reserving-cache-manager.js';
import {
  LocalTensorGroup,
  type Sampling,
  TinyEngine,
  type TinyModel,
  tinyLayerGroups,
} from '../../../src/executor/engines/tiny/index.js';
import { Executor } from '../../../src/executor/executor.js';
import type { RequestEvents } from '../../../src/executor/executor-events.js';
import type { StepSchedule } from '../../../src/executor/executor-options.js';
import type { ModelEngine } from '../../../src/executor/model-engine.js';
import type { LlmRequest } from '../../../src/executor/request.js';
import { buildPageTable, kvHeadShard, type PageTable, rebasePageTable, withAux } from '../../../src/mapping/index.js';
import { LocalRankGroup } from '../../../src/rank-group/local-rank-group.js';
import { AUX_SLOT_BYTES, AuxBuffer } from '../../../src/session/aux-buffer.js';
import { KvCacheTransceiver } from '../../../src/transceiver.js';
import type { FakeClock } from '../../sim-lite/fake-clock.js';
import type { FakeNetwork } from '../../sim-lite/fake-messenger.js';
import { seededRandom } from '../../sim-lite/seeded-random.js';
import type { SimAgent, SimFabric } from '../../sim-lite/sim-agent.js';
import { SimPageCopier } from '../../sim-lite/sim-page-copier.js';

const AUX_SLOTS = 8;

/** How one server splits and keeps its cache. */
export interface TinySide {
  readonly tpSize: number;
  readonly tokensPerBlock: number;
  readonly manager: 'growing' | 'reserving';
  readonly partialReuse: boolean;
  /** Cached content is found again. */
  readonly reuse: boolean;
  readonly slotCount: number;
  readonly chunkTokens: number;
  readonly tokenBudget: number;
  readonly schedule: StepSchedule;
  readonly blockLayout: 'HND' | 'NHD';
  readonly poolLayout: 'per-layer' | 'per-block';
  /** Pages of each layer group kept in host memory; one rank only. */
  readonly hostSlotCount: number;
  /** Block size of the servers that this one receives from; null = unknown. */
  readonly senderTokensPerBlock: number | null;
  readonly seed: number;
}

/** What the servers of one case share. */
export interface TinyWorldParts {
  readonly clock: FakeClock;
  readonly network: FakeNetwork;
  readonly fabric: SimFabric;
  readonly model: TinyModel;
  readonly dtype: 'float32' | 'bfloat16';
  readonly sampling: Sampling;
  /** Stands between executor and engine. */
  readonly wrapEngine?: (engine: ModelEngine, rank: TinyRankMemory) => ModelEngine;
}

export interface TinyRankMemory {
  readonly name: string;
  readonly rank: number;
  readonly agent: SimAgent;
  readonly cache: PagedCacheManager;
  readonly table: PageTable;
  /** Address and size of the memory that holds all pages. */
  readonly base: number;
  readonly sizeBytes: number;
}

export interface TinyRank extends TinyRankMemory {
  readonly transceiver: KvCacheTransceiver;
  readonly executor: Executor;
}

let nextIncarnation = 1n;
let nextTicket = 1n;

/** A server of one or several tensor parallel ranks, each with memory, cache, transceiver, engine and executor of its own. */
export class TinyInstance {
  readonly ranks: TinyRank[] = [];
  /** Chunks and decode steps that its executors ran, and tokens found in the cache. */
  prepopulated = 0;
  readonly copiers: SimPageCopier[] = [];

  static async create(parts: TinyWorldParts, name: string, side: TinySide): Promise<TinyInstance> {
    const instance = new TinyInstance();
    const rankGroups = LocalRankGroup.of(side.tpSize);
    const tensorGroups = LocalTensorGroup.of(side.tpSize);
    for (let rank = 0; rank < side.tpSize; rank++) {
      const groups = { rankGroup: rankGroups[rank], tensorGroup: tensorGroups[rank] };
      instance.ranks.push(await instance.#rank(parts, name, side, rank, groups as Groups));
    }
    const endpoints = instance.ranks.map(({ transceiver }) => transceiver.endpoint);
    if (side.tpSize > 1) for (const { transceiver } of instance.ranks) transceiver.joinInstance(endpoints);
    return instance;
  }

  get endpoint(): string {
    return (this.ranks[0] as TinyRank).transceiver.endpoint;
  }

  /** One request at every rank; events come from the first. */
  submit(make: () => LlmRequest, events: RequestEvents): void {
    this.ranks.forEach(({ executor }, rank) => {
      executor.submit(make(), rank === 0 ? events : {});
    });
  }

  /** What nobody may hold once everything ended. */
  leftovers(): unknown {
    return this.ranks.map(({ cache, transceiver, executor }) => ({
      pinned: cache.stats().reduce((sum, group) => sum + group.pinned, 0),
      owned: cache.stats().reduce((sum, { slotCount, free, reusable }) => sum + slotCount - free - reusable, 0),
      held: transceiver.stats().held,
      sessions: transceiver.stats().sendSessions + transceiver.stats().receiveSessions,
      live: executor.stats().live,
    }));
  }

  async #rank(
    parts: TinyWorldParts,
    name: string,
    side: TinySide,
    tpRank: number,
    { rankGroup, tensorGroup }: Groups,
  ): Promise<TinyRank> {
    const { clock, network, fabric, model, dtype, sampling } = parts;
    const { tokensPerBlock, slotCount, tpSize, blockLayout, poolLayout } = side;
    const { kvHeads, headDim } = model.config;
    const hostSlotCount = tpSize === 1 ? side.hostSlotCount : 0;
    const groups = tinyLayerGroups(model.config, { tokensPerBlock, slotCount }).map((group) => ({
      ...group,
      hostSlotCount,
    }));
    const headsPerRank = kvHeadShard(kvHeads, tpSize, tpRank).headsPerRank;
    const built = buildPageTable({ groups, kvHeads: headsPerRank, headDim, dtype, poolLayout, blockLayout });
    const messenger = network.bind();
    const incarnation = nextIncarnation++;
    const agent = fabric.createAgent(`${name}-${incarnation}`);
    const pool = await agent.allocatePool({ sizeBytes: built.sizeBytes });
    const auxPool = await agent.allocatePool({ sizeBytes: AUX_SLOTS * AUX_SLOT_BYTES });
    const aux = { base: auxPool.base, slotBytes: AUX_SLOT_BYTES, slotCount: AUX_SLOTS };
    const table = withAux(rebasePageTable(built.table, pool.base), aux);
    // Ranks that act alike move at once: when moves are over decides what the next prompt finds.
    const mover = tpSize === 1 ? new PoolPageMover() : new InstantMover(agent, table);
    const cache = createCache(side, groups, mover);
    const random = seededRandom(side.seed);
    const copier = new SimPageCopier(agent, clock, () => Math.floor(random() * 4));
    if (mover instanceof PoolPageMover) await mover.open({ agent, copier, pageTable: table, layerGroups: groups });
    this.copiers.push(copier);
    const memory: TinyRankMemory = {
      name,
      rank: tpRank,
      agent,
      cache,
      table,
      base: pool.base,
      sizeBytes: pool.sizeBytes,
    };
    const place = {
      tpSize,
      tpRank,
      ppSize: 1,
      ppRank: 0,
      cpSize: 1,
      cpRank: 0,
      dpSize: 1,
      dpRank: 0,
      attentionDp: false,
    };
    const transceiver = new KvCacheTransceiver({
      agent,
      messenger,
      cache,
      aux: new AuxBuffer(agent, auxPool.base, AUX_SLOTS),
      clock,
      limits: { transferQueueTimeoutMs: 60_000, noProgressTimeoutMs: 20_000, kvTransferTimeoutMs: 30_000 },
      rankInfo: {
        packageVersion: '0.0.0',
        instanceName: name,
        incarnation,
        rank: tpRank,
        ...place,
        layersPerStage: [model.config.layers.length],
        endpoint: messenger.endpoint,
        rankEndpoints: tpSize === 1 ? [messenger.endpoint] : [],
        agent: 'sim',
        agentMetadata: await agent.metadata(),
        pageTable: table,
      },
      newTicket: () => nextTicket++,
      log: { warn: () => {}, info: () => {} },
    });
    const engine = new TinyEngine({
      clock,
      agent,
      cache,
      pageTable: table,
      model,
      tensorGroup,
      samplingOf: () => sampling,
    });
    const executor = new Executor({
      clock,
      cache,
      transceiver,
      engine: parts.wrapEngine?.(engine, memory) ?? engine,
      schedule: side.schedule,
      limits: { chunkTokens: side.chunkTokens, tokenBudget: side.tokenBudget, maxTokensInBuffer: null },
      identity: { endpoint: messenger.endpoint, dpRank: 0 },
      ...(tpSize === 1 ? {} : { rankGroup }),
      ...(side.reuse ? {} : { blockHashesOf: (request) => uniqueHashes(request, tokensPerBlock) }),
      events: {
        onPrefillStarted: (request) => {
          if (tpRank === 0) this.prepopulated += request.prepopulatedLen;
        },
        onHandlerError: (error) => {
          throw error;
        },
      },
    });
    return { ...memory, transceiver, executor };
  }
}

interface Groups {
  readonly rankGroup: LocalRankGroup;
  readonly tensorGroup: LocalTensorGroup;
}

/** No two requests share a prefix. */
function uniqueHashes({ id, promptTokens }: LlmRequest, tokensPerBlock: number): readonly string[] {
  return chainBlockHashes(promptTokens, tokensPerBlock).map((hash) => `${id} ${hash}`);
}

function createCache(side: TinySide, layerGroups: readonly LayerGroup[], mover: PageMover): PagedCacheManager {
  const { tokensPerBlock, manager, partialReuse, seed, senderTokensPerBlock } = side;
  const Manager = manager === 'growing' ? GrowingCacheManager : ReservingCacheManager;
  return new Manager({
    tokensPerBlock,
    layerGroups,
    seed,
    mover,
    partialReuse,
    ...(senderTokensPerBlock === null ? {} : { senderTokensPerBlock }),
  });
}

/** Copies pages at once, for parts of blocks that are reused. */
class InstantMover implements PageMover {
  readonly #agent: SimAgent;
  readonly #table: PageTable;

  constructor(agent: SimAgent, table: PageTable) {
    this.#agent = agent;
    this.#table = table;
  }

  move(moves: readonly PageMove[]): null {
    for (const move of moves) {
      if (move.kind !== 'copy') throw new Error(`a ${move.kind} without a host tier`);
      for (const { base, slotStride, slotBytes } of groupPools(this.#table, move.group)) {
        const from = this.#agent.readBytes(base + move.fromSlot * slotStride, slotBytes);
        this.#agent.writeBytes(base + move.toSlot * slotStride, from);
      }
    }
    return null;
  }
}

/** The pools that hold pages of a layer group. */
export function groupPools(table: PageTable, group: number): readonly PageTable['pools'][number][] {
  const views = table.layerGroups[group]?.views ?? [];
  const indexes = new Set(views.flatMap(({ layers }) => layers.map(({ pool }) => pool)));
  return [...indexes].map((index) => table.pools[index] as PageTable['pools'][number]);
}
