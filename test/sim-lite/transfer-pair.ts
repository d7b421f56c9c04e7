import type { ReadyEvent } from '../../src/agent/transfer-agent.js';
import type { LayerGroup } from '../../src/cache/kv-cache-manager.js';
import type { LlmRequest } from '../../src/executor/request.js';
import type { PageTable, RankInfo } from '../../src/mapping/index.js';
import { buildPageTable, rebasePageTable, withAux } from '../../src/mapping/index.js';
import { AUX_SLOT_BYTES, AuxBuffer } from '../../src/session/aux-buffer.js';
import type { Settled } from '../../src/session/cache-transceiver.js';
import { KvCacheTransceiver } from '../../src/transceiver.js';
import { FakeClock } from './fake-clock.js';
import { type FakeMessenger, FakeNetwork } from './fake-messenger.js';
import { type SimAgent, SimFabric } from './sim-agent.js';
import { TableCache } from './table-cache.js';

export const TOKENS_PER_BLOCK = 4;
export const SLOT_COUNT = 32;
const AUX_SLOTS = 4;
const LIMITS = { transferQueueTimeoutMs: 20_000, noProgressTimeoutMs: 5_000, kvTransferTimeoutMs: 10_000 };

/** How one side lays out its pages. */
export interface Shape {
  readonly headDim?: number;
  readonly tokensPerBlock?: number;
  readonly blockLayout?: 'HND' | 'NHD';
}

/** One server: a transceiver with its own memory, cache and agent. */
export interface Server {
  readonly transceiver: KvCacheTransceiver;
  readonly messenger: FakeMessenger;
  /** A test that brings its own agents may use what every agent has, and `run`. */
  readonly agent: SimAgent;
  readonly cache: TableCache;
  readonly table: PageTable;
  readonly warnings: string[];
  readonly settled: Settled[];
}

let nextTicket = 0x1000n;
let nextIncarnation = 1n;

/** A context and a generation server on a fake network under a fake clock. */
export class TransferPair {
  readonly clock = new FakeClock();
  readonly network = new FakeNetwork(this.clock);
  readonly fabric = new SimFabric(this.clock);
  context!: Server;
  generation!: Server;
  /** Further servers that `run` drives. */
  readonly others: Server[] = [];

  readonly #openAgent: (name: string) => Promise<Server['agent']>;

  constructor(openAgent?: (name: string) => Promise<Server['agent']>) {
    this.#openAgent = openAgent ?? (async (name) => this.fabric.createAgent(name));
  }

  static async create(
    shapes: { readonly context?: Shape; readonly generation?: Shape } = {},
    openAgent?: (name: string) => Promise<Server['agent']>,
  ): Promise<TransferPair> {
    const pair = new TransferPair(openAgent);
    pair.context = await pair.start('context', shapes.context);
    pair.generation = await pair.start('generation', shapes.generation);
    return pair;
  }

  async start(instanceName: string, shape: Shape = {}, endpoint?: string): Promise<Server> {
    const { headDim = 4, tokensPerBlock = TOKENS_PER_BLOCK, blockLayout = 'HND' } = shape;
    const groups: readonly LayerGroup[] = [
      { kind: 'attention', windowSize: null, tokensPerBlock, layers: [0, 1], slotCount: SLOT_COUNT },
    ];
    const incarnation = nextIncarnation++;
    const messenger = this.network.bind(endpoint);
    const agent = await this.#openAgent(`${instanceName}-${incarnation}`);
    const built = buildPageTable({
      groups,
      kvHeads: 2,
      headDim,
      dtype: 'bfloat16',
      poolLayout: 'per-layer',
      blockLayout,
    });
    const pool = await agent.allocatePool({ sizeBytes: built.sizeBytes });
    const auxPool = await agent.allocatePool({ sizeBytes: AUX_SLOTS * AUX_SLOT_BYTES });
    const table = withAux(rebasePageTable(built.table, pool.base), {
      base: auxPool.base,
      slotBytes: AUX_SLOT_BYTES,
      slotCount: AUX_SLOTS,
    });
    const cache = new TableCache(groups, tokensPerBlock);
    const warnings: string[] = [];
    const rankInfo: RankInfo = {
      packageVersion: '0.0.0',
      instanceName,
      incarnation,
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
      layersPerStage: [2],
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
      limits: LIMITS,
      rankInfo,
      newTicket: () => nextTicket++,
      log: { warn: (message) => void warnings.push(message), info: () => {} },
    });
    return { transceiver, messenger, agent, cache, table, warnings, settled: [] };
  }

  /** Lets `ms` pass in small steps; the agents move what they can at each, and outcomes are collected. */
  async run(ms: number, stepMs = 10): Promise<void> {
    for (let passed = 0; passed < ms; passed += stepMs) {
      await this.clock.run(stepMs);
      for (const server of this.#servers) server.agent.run();
      await this.clock.turn();
      this.collect();
    }
  }

  get #servers(): readonly Server[] {
    return [this.context, this.generation, ...this.others];
  }

  collect(): void {
    for (const server of this.#servers) server.settled.push(...server.transceiver.takeSettled());
  }

  kill(server: Server): void {
    this.network.kill(server.transceiver.endpoint);
    this.fabric.kill(server.agent.name);
  }

  /** Distinct bytes in every page of `slots`, and the same request on both sides. */
  fill(server: Server, slots: readonly number[]): void {
    for (const pool of server.table.pools.slice(0, 2))
      for (const slot of slots) {
        const address = pool.base + slot * pool.slotStride;
        const bytes = Uint8Array.from({ length: pool.slotBytes }, (_, i) => (address / 8 + i * 7 + slot * 13) & 0xff);
        server.agent.writeBytes(address, bytes);
      }
  }

  page(server: Server, pool: number, slot: number): Uint8Array {
    const { base, slotStride, slotBytes } = server.table.pools[pool] as PageTable['pools'][number];
    return server.agent.readBytes(base + slot * slotStride, slotBytes);
  }

  event(server: Server): ReadyEvent {
    return server.agent.createEvent();
  }
}

export function makeRequest(
  id: number,
  side: 'context' | 'generation',
  options: {
    readonly promptLen?: number;
    readonly endpoint?: string;
    readonly pipelined?: boolean;
    readonly rid?: bigint;
    /** Who may ask for it. */
    readonly generation?: string;
  } = {},
): LlmRequest {
  const { promptLen = 16, endpoint = null, pipelined = true, rid = 1n << 41n, generation = null } = options;
  return {
    id,
    promptTokens: Uint32Array.from({ length: promptLen }, (_, i) => i + id * 1000),
    maxTokens: 4,
    beamWidth: 1,
    disagg: {
      requestType: side === 'context' ? 'context_only' : 'generation_only',
      scheduleStyle: 'generation_first',
      ctxRequestId: null,
      disaggRequestId: rid,
      ctxDpRank: null,
      ctxInfoEndpoint: endpoint,
      genInfoEndpoint: generation,
      firstGenTokens: [],
      draftTokens: [],
      traceparent: '',
    },
    transferPolicy: { pipelined, earlyPrefix: pipelined },
    state: side === 'context' ? 'CONTEXT_INIT' : 'DISAGG_GENERATION_INIT',
    prepopulatedLen: 0,
    chunkStart: 0,
    chunkEnd: 0,
    outputTokens: [],
    cancelRequested: false,
    error: null,
    stopTokens: [],
    tokensInFlight: 0,
  };
}
