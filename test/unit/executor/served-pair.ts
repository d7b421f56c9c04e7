import type { ContentJob, PageContent } from '../../../src/agent/page-content.js';
import { GrowingCacheManager } from '../../../src/cache/growing-cache-manager.js';
import type { LayerGroup } from '../../../src/cache/kv-cache-manager.js';
import type { PagedCacheManager } from '../../../src/cache/paged-cache-manager.js';
import { DisaggCoordinator } from '../../../src/coordinator/disagg-coordinator.js';
import { LocalServer } from '../../../src/coordinator/local-server.js';
import { DEFAULT_EPOCH_MS, SnowflakeIds } from '../../../src/coordinator/snowflake-ids.js';
import { PaceCurve } from '../../../src/executor/engines/pace-curve.js';
import { PacedEngine } from '../../../src/executor/engines/paced-engine.js';
import { Executor } from '../../../src/executor/executor.js';
import type { StepSchedule } from '../../../src/executor/executor-options.js';
import type { LlmRequest, ScheduleStyle } from '../../../src/executor/request.js';
import type { SchedulerLimits } from '../../../src/executor/scheduler.js';
import { staleBlockEnd } from '../../../src/geometry/stale-block-end.js';
import { buildPageTable, type PageTable, type RankInfo, rebasePageTable, withAux } from '../../../src/mapping/index.js';
import { AUX_SLOT_BYTES, AuxBuffer } from '../../../src/session/aux-buffer.js';
import { KvCacheTransceiver } from '../../../src/transceiver.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { FakeNetwork } from '../../sim-lite/fake-messenger.js';
import { type SimAgent, SimFabric } from '../../sim-lite/sim-agent.js';
import { PIPELINED } from './harness.js';

export const TPB = 4;
const HEAD_DIM = 4;
const TOKEN_BYTES = HEAD_DIM * 2;
const AUX_SLOTS = 8;
const MASK_64 = (1n << 64n) - 1n;

export interface ServedServer {
  readonly name: string;
  readonly agent: SimAgent;
  readonly cache: PagedCacheManager;
  readonly table: PageTable;
  readonly transceiver: KvCacheTransceiver;
  readonly executor: Executor;
  readonly engine: PacedEngine;
  readonly content: SimContent;
}

/** Bytes are a function of the token's seed, the layer and the role; written halfway through the chunk, so that an early read is seen. */
export class SimContent implements PageContent {
  readonly #agent: SimAgent;
  readonly #clock: FakeClock;
  readonly #writeMs: number;
  failure: Error | null = null;

  constructor(agent: SimAgent, clock: FakeClock, writeMs: number) {
    this.#agent = agent;
    this.#clock = clock;
    this.#writeMs = writeMs;
  }

  chainTokenSeeds(tokens: Uint32Array): BigUint64Array {
    let seed = 1n;
    return BigUint64Array.from(tokens, (token) => {
      seed = (seed * 6364136223846793005n + BigInt(token) + 1n) & MASK_64;
      return seed;
    });
  }

  async fill(job: ContentJob): Promise<{ readonly bytesWritten: number }> {
    await new Promise<void>((resolve) => void this.#clock.setTimer(this.#writeMs, resolve));
    if (this.failure !== null) throw this.failure;
    let bytesWritten = 0;
    this.#eachToken(job, (address, expected) => {
      this.#agent.writeBytes(address, expected);
      bytesWritten += expected.length;
    });
    return { bytesWritten };
  }

  wrongTokens(job: ContentJob): number {
    let wrong = 0;
    this.#eachToken(job, (address, expected) => {
      if (!Buffer.from(this.#agent.readBytes(address, expected.length)).equals(expected)) wrong += 1;
    });
    return wrong;
  }

  verify(): never {
    throw new Error('not used');
  }

  #eachToken(job: ContentJob, visit: (address: number, expected: Uint8Array) => void): void {
    const group = job.table.layerGroups[job.group];
    for (let token = job.tokenBegin; token < job.tokenEnd; token++) {
      const slot = job.run.slots[Math.floor(token / TPB) - job.run.begin] as number;
      for (const [role, view] of (group?.views ?? []).entries()) {
        for (const { layer, pool, offset } of view.layers) {
          const { base, slotStride } = job.table.pools[pool] as PageTable['pools'][number];
          const seed = Number((job.tokenSeeds[token] as bigint) >> 32n);
          const expected = Uint8Array.from(
            { length: TOKEN_BYTES },
            (_, i) => (seed >>> (i % 4)) + 31 * layer + 7 * role + i,
          );
          visit(base + slot * slotStride + offset + (token % TPB) * TOKEN_BYTES, expected);
        }
      }
    }
  }
}

export interface ServedPairOptions {
  readonly limits?: Partial<SchedulerLimits>;
  readonly slotCount?: number;
  readonly scheduleStyle?: ScheduleStyle;
  /** Of both servers. Default: plain. */
  readonly schedule?: StepSchedule;
  /** Default: a growing manager that moves nothing. */
  readonly createCache?: (parts: CacheParts) => PagedCacheManager;
}

export interface CacheParts {
  readonly layerGroups: readonly LayerGroup[];
  readonly seed: number;
  readonly agent: SimAgent;
  readonly table: PageTable;
  readonly clock: FakeClock;
}

/** A coordinator, two executors with real transceivers and caches, on a fake network and simulated agents, under a fake clock. */
export class ServedPair {
  readonly clock = new FakeClock();
  readonly network = new FakeNetwork(this.clock);
  readonly fabric = new SimFabric(this.clock);
  /** Tokens whose bytes were wrong when their request said its first token, and how many were looked at. */
  wrongTokens = 0;
  checkedTokens = 0;
  readonly prepopulated: number[] = [];
  context!: ServedServer;
  generation!: ServedServer;
  coordinator!: DisaggCoordinator;
  readonly #options: ServedPairOptions;
  #tickets = 1n;

  constructor(options: ServedPairOptions) {
    this.#options = options;
  }

  static async create(options: ServedPairOptions = {}): Promise<ServedPair> {
    const pair = new ServedPair(options);
    pair.context = await pair.#start('context');
    pair.generation = await pair.#start('generation');
    const [context, generation] = [pair.context, pair.generation].map(
      ({ name, executor, transceiver }) =>
        new LocalServer({
          name,
          executor,
          infoEndpoint: transceiver.endpoint,
          transferPolicy: PIPELINED,
          onNotice: () => {},
        }),
    ) as [LocalServer, LocalServer];
    const ids = new SnowflakeIds({
      clock: pair.clock,
      unixTimeAtOriginMs: DEFAULT_EPOCH_MS + 1e9,
      nodeId: 0,
      processId: 0,
    });
    pair.coordinator = new DisaggCoordinator({
      clock: pair.clock,
      ids,
      context,
      generation,
      scheduleStyle: options.scheduleStyle ?? 'generation_first',
    });
    return pair;
  }

  /** Until `done`, or a bounded time; the agents move what they can every millisecond. */
  async run(done: () => boolean, limitMs = 60_000): Promise<void> {
    for (let ms = 0; ms < limitMs && !done(); ms++) {
      await this.clock.run(1);
      this.context.agent.run();
      this.generation.agent.run();
      await this.clock.turn();
    }
  }

  /** What nobody may hold once everything ended. */
  leftovers(): unknown {
    return [this.context, this.generation].map(({ cache, transceiver, executor }) => ({
      pinned: cache.stats().map((group) => group.pinned),
      owned: cache.stats().map((group) => group.slotCount - group.free - group.reusable),
      held: transceiver.stats().held,
      sessions: transceiver.stats().sendSessions + transceiver.stats().receiveSessions,
      freeAuxSlots: transceiver.stats().freeAuxSlots,
      live: executor.stats().live,
    }));
  }

  #check(server: () => ServedServer, request: LlmRequest): void {
    const { cache, content, table } = server();
    const promptLen = request.promptTokens.length;
    const tokenSeeds = content.chainTokenSeeds(request.promptTokens);
    cache.layerGroups.forEach((group, index) => {
      const begin = staleBlockEnd(promptLen, group.windowSize, TPB);
      const run = cache.getBlockIdsRange(request.id, index, begin, Math.ceil(promptLen / TPB));
      const tokenBegin = run.begin * TPB;
      this.wrongTokens += content.wrongTokens({
        table,
        group: index,
        run,
        tokenBegin,
        tokenEnd: promptLen,
        tokenSeeds,
        firstHead: 0,
      });
      this.checkedTokens += promptLen - tokenBegin;
    });
  }

  async #start(name: string): Promise<ServedServer> {
    const { slotCount = 64, limits = {} } = this.#options;
    const groups: readonly LayerGroup[] = [
      { kind: 'attention', windowSize: null, tokensPerBlock: TPB, layers: [0, 2], slotCount },
      { kind: 'attention', windowSize: 10, tokensPerBlock: TPB, layers: [1], slotCount },
    ];
    const messenger = this.network.bind();
    const agent = this.fabric.createAgent(name);
    const built = buildPageTable({
      groups,
      kvHeads: 1,
      headDim: HEAD_DIM,
      dtype: 'bfloat16',
      poolLayout: 'per-layer',
      blockLayout: 'HND',
    });
    const pool = await agent.allocatePool({ sizeBytes: built.sizeBytes });
    const auxPool = await agent.allocatePool({ sizeBytes: AUX_SLOTS * AUX_SLOT_BYTES });
    const table = withAux(rebasePageTable(built.table, pool.base), {
      base: auxPool.base,
      slotBytes: AUX_SLOT_BYTES,
      slotCount: AUX_SLOTS,
    });
    const {
      createCache = ({ layerGroups, seed }) => new GrowingCacheManager({ tokensPerBlock: TPB, layerGroups, seed }),
    } = this.#options;
    const seed = name === 'context' ? 1 : 2;
    const cache = createCache({ layerGroups: groups, seed, agent, table, clock: this.clock });
    const rankInfo: RankInfo = {
      packageVersion: '0.0.0',
      instanceName: name,
      incarnation: name === 'context' ? 1n : 2n,
      rank: 0,
      tpSize: 1,
      tpRank: 0,
      ppSize: 1,
      ppRank: 0,
      cpSize: 1,
      cpRank: 0,
      dpSize: 1,
      dpRank: 0,
      attentionDp: false,
      layersPerStage: [3],
      endpoint: messenger.endpoint,
      rankEndpoints: [messenger.endpoint],
      agent: 'sim',
      agentMetadata: await agent.metadata(),
      pageTable: table,
    };
    const transceiver = new KvCacheTransceiver({
      agent,
      messenger,
      cache,
      aux: new AuxBuffer(agent, auxPool.base, AUX_SLOTS),
      clock: this.clock,
      limits: { transferQueueTimeoutMs: 20_000, noProgressTimeoutMs: 5_000, kvTransferTimeoutMs: 10_000 },
      rankInfo,
      newTicket: () => this.#tickets++,
      log: { warn: () => {}, info: () => {} },
    });
    const content = new SimContent(agent, this.clock, 2);
    // 1 ms per token.
    const curve = new PaceCurve(
      { activeParameters: 1e9, attentionHeads: 1, headDim: 1, layers: [], kvBytesPerTokenAndLayer: 1 },
      { effectiveFlops: 2e12, effectiveBytesPerSecond: 1e12 },
    );
    const engine = new PacedEngine({ clock: this.clock, agent, content, cache, pageTable: table, curve });
    const executor = new Executor({
      clock: this.clock,
      cache,
      transceiver,
      engine,
      schedule: this.#options.schedule ?? 'plain',
      limits: { chunkTokens: 6, tokenBudget: 64, maxTokensInBuffer: null, ...limits },
      identity: { endpoint: messenger.endpoint, dpRank: null },
      events: {
        onFirstToken: (request) => this.#check(() => this.generation, request),
        onPrefillStarted: (request) => this.prepopulated.push(request.prepopulatedLen),
      },
    });
    return { name, agent, cache, table, transceiver, executor, engine, content };
  }
}
