import type { LayerGroup } from '../../src/cache/kv-cache-manager.js';
import type { LlmRequest } from '../../src/executor/request.js';
import {
  buildPageTable,
  flatRank,
  kvHeadShard,
  type LayerView,
  type PageTable,
  type RankPlaceInDp,
  rebasePageTable,
  withAux,
} from '../../src/mapping/index.js';
import { AUX_SLOT_BYTES, AuxBuffer } from '../../src/session/aux-buffer.js';
import type { Settled } from '../../src/session/cache-transceiver.js';
import { KvCacheTransceiver } from '../../src/transceiver.js';
import { FakeClock } from './fake-clock.js';
import { type FakeMessenger, FakeNetwork } from './fake-messenger.js';
import { type SimAgent, SimFabric } from './sim-agent.js';
import { TableCache } from './table-cache.js';
import { makeRequest } from './transfer-pair.js';

export const RANK_LIMITS = { transferQueueTimeoutMs: 20_000, noProgressTimeoutMs: 4_000, kvTransferTimeoutMs: 10_000 };
const SLOT_COUNT = 24;
const HEAD_DIM = 2;
const WORD_BYTES = 2;

/** How an instance splits its model. */
export interface InstanceShape {
  readonly tpSize?: number;
  readonly layersPerStage?: readonly number[];
  readonly cpSize?: number;
  /** More than 1 means attention DP. */
  readonly dpSize?: number;
  readonly kvHeads?: number;
  readonly tokensPerBlock?: number;
  readonly auxSlots?: number;
  readonly blockLayout?: 'HND' | 'NHD';
}

export interface Rank {
  readonly place: RankPlaceInDp;
  readonly incarnation: bigint;
  readonly transceiver: KvCacheTransceiver;
  readonly messenger: FakeMessenger;
  readonly agent: SimAgent;
  readonly cache: TableCache;
  readonly table: PageTable;
  readonly tokensPerBlock: number;
  readonly kvHeads: number;
  readonly warnings: string[];
  /** What it logged that is no warning. */
  readonly notes: string[];
  readonly settled: Settled[];
}

/** One request at one rank. */
export interface RankRequest {
  readonly rank: Rank;
  readonly request: LlmRequest;
  readonly slots: readonly number[];
}

let nextIncarnation = 0x100n;
let nextTicket = 0x9000n;
let nextId = 1;

/**
 * Instances of several ranks on one fake network. Content is 16-bit words that say which request, layer, K or V, head, token and element
 * they are, so that a swapped head, stage or block is seen.
 */
export class RankWorld {
  readonly clock = new FakeClock();
  readonly network: FakeNetwork;
  readonly fabric = new SimFabric(this.clock);
  readonly ranks: Rank[] = [];

  constructor(options: ConstructorParameters<typeof FakeNetwork>[1] = {}) {
    this.network = new FakeNetwork(this.clock, options);
  }

  /** All ranks by flat rank; joined unless told otherwise. */
  async instance(name: string, shape: InstanceShape = {}, join = true): Promise<Rank[]> {
    const { tpSize = 1, layersPerStage = [4], cpSize = 1 } = shape;
    const ranks: Rank[] = [];
    for (let ppRank = 0; ppRank < layersPerStage.length; ppRank += 1)
      for (let tpRank = 0; tpRank < tpSize; tpRank += 1)
        for (let cpRank = 0; cpRank < cpSize; cpRank += 1)
          ranks.push(await this.#rank(name, shape, { ppRank, tpRank, cpRank }));
    if (join) this.join(ranks);
    return ranks;
  }

  join(ranks: readonly Rank[]): void {
    const endpoints = ranks.map(({ transceiver }) => transceiver.endpoint);
    for (const { transceiver } of ranks) transceiver.joinInstance(endpoints);
  }

  /** Another process at the place and endpoint of `old`, which is gone. */
  async restart(name: string, shape: InstanceShape, old: Rank, instance: Rank[]): Promise<Rank> {
    this.kill(old);
    const fresh = await this.#rank(name, shape, old.place, old.transceiver.endpoint);
    instance[flatRank(old.place)] = fresh;
    fresh.transceiver.joinInstance(instance.map(({ transceiver }) => transceiver.endpoint));
    return fresh;
  }

  kill(rank: Rank): void {
    this.network.kill(rank.transceiver.endpoint);
    this.fabric.kill(rank.agent.name);
    this.ranks.splice(this.ranks.indexOf(rank), 1);
  }

  async run(ms: number, stepMs = 10): Promise<void> {
    for (let passed = 0; passed < ms; passed += stepMs) {
      await this.clock.run(stepMs);
      for (const { agent } of this.ranks) agent.run();
      await this.clock.turn();
      for (const rank of this.ranks) rank.settled.push(...rank.transceiver.takeSettled());
    }
  }

  /** The request at each of `ranks`, with slots of its own. Context ranks get their content. */
  place(
    ranks: readonly Rank[],
    side: 'context' | 'generation',
    options: Parameters<typeof makeRequest>[2] & {
      readonly ctxDpRank?: number | null;
      readonly style?: 'context_first';
      readonly firstSlot?: number;
      readonly prepopulatedLen?: number;
      /** What the context server answered; with it, the prompt is computed. */
      readonly firstGenTokens?: readonly number[];
    } = {},
  ): RankRequest[] {
    const { firstSlot = 0, promptLen = 16 } = options;
    const id = nextId++;
    return ranks.map((rank) => {
      const base = makeRequest(id, side, options);
      const { disagg } = base;
      if (disagg === null) throw new Error('a request without parameters');
      const scheduleStyle = options.style ?? 'generation_first';
      const request: LlmRequest = {
        ...base,
        prepopulatedLen: options.prepopulatedLen ?? 0,
        disagg: {
          ...disagg,
          scheduleStyle,
          ctxDpRank: options.ctxDpRank ?? null,
          firstGenTokens: options.firstGenTokens ?? [],
        },
      };
      const owned = this.ordinals(rank, promptLen).length;
      const slots = Array.from(
        { length: owned },
        (_, i) => (firstSlot + i * 5 + 3 * flatRank(rank.place)) % SLOT_COUNT,
      );
      rank.cache.place(id, slots);
      const placed = { rank, request, slots };
      if (side === 'context') this.fill(placed);
      return placed;
    });
  }

  ask(requests: readonly RankRequest[]): void {
    for (const { rank, request } of requests) rank.transceiver.requestAndReceiveAsync(request);
  }

  chunk(requests: readonly RankRequest[], start: number, end: number): void {
    for (const { rank, request } of requests) {
      request.chunkStart = start;
      request.chunkEnd = end;
      if (end === request.promptTokens.length) request.outputTokens.push(Number(rid(request) & 0xffffn));
      rank.transceiver.respondAndSendAsync(request, { after: null });
    }
  }

  /** Ordinals of the prompt that the rank owns, in its own count. */
  ordinals({ place, tokensPerBlock }: Rank, promptLen: number): number[] {
    const blocks = Math.ceil(promptLen / tokensPerBlock);
    return Array.from({ length: blocks }, (_, ordinal) => ordinal).filter((o) => o % place.cpSize === place.cpRank);
  }

  fill(placed: RankRequest): void {
    this.#visit(placed, (address, word) => placed.rank.agent.writeBytes(address, Uint8Array.of(word & 255, word >> 8)));
  }

  /** Words of the request that are not what the context computed. */
  wrongWords(placed: RankRequest, firstToken = 0, endToken = Number.POSITIVE_INFINITY): number {
    let wrong = 0;
    this.#visit(placed, (address, word, token) => {
      if (token < firstToken || token >= endToken) return;
      const [low = 0, high = 0] = placed.rank.agent.readBytes(address, WORD_BYTES);
      if (low + high * 256 !== word) wrong += 1;
    });
    return wrong;
  }

  /** Nothing is held by anybody any more. */
  leftovers(): string[] {
    return this.ranks.flatMap(({ transceiver, cache, place }) => {
      const { held, sendSessions, receiveSessions } = transceiver.stats();
      const left = { held, sendSessions, receiveSessions, pins: cache.pins.size };
      return Object.values(left).every((count) => count === 0)
        ? []
        : [`rank ${flatRank(place)} at ${transceiver.endpoint}: ${JSON.stringify(left)}`];
    });
  }

  #visit({ rank, request, slots }: RankRequest, visit: (address: number, word: number, token: number) => void): void {
    const { table, tokensPerBlock, place, kvHeads } = rank;
    const promptLen = request.promptTokens.length;
    const tpSize = place.attentionDp ? place.tpSize / place.dpSize : place.tpSize;
    const { firstHead, headsPerRank } = kvHeadShard(kvHeads, tpSize, place.tpRank % tpSize);
    const at = (view: LayerView, slot: number, entry: LayerView['layers'][number], head: number, token: number) => {
      const pool = table.pools[entry.pool] as PageTable['pools'][number];
      const cell = view.layout === 'HND' ? head * tokensPerBlock + token : token * headsPerRank + head;
      return pool.base + slot * pool.slotStride + entry.offset + cell * HEAD_DIM * WORD_BYTES;
    };
    this.ordinals(rank, promptLen).forEach((ordinal, index) => {
      for (const group of table.layerGroups)
        for (const view of group.views)
          for (const entry of view.layers)
            for (let head = 0; head < headsPerRank; head += 1)
              for (let offset = 0; offset < tokensPerBlock; offset += 1) {
                const token = ordinal * tokensPerBlock + offset;
                if (token >= promptLen) continue;
                const address = at(view, slots[index] as number, entry, head, offset);
                for (let element = 0; element < HEAD_DIM; element += 1)
                  visit(
                    address + element * WORD_BYTES,
                    wordOf(rid(request), entry.layer, view.role, firstHead + head, token, element),
                    token,
                  );
              }
    });
  }

  async #rank(
    name: string,
    shape: InstanceShape,
    { ppRank, tpRank, cpRank }: Pick<RankPlaceInDp, 'ppRank' | 'tpRank' | 'cpRank'>,
    endpoint?: string,
  ): Promise<Rank> {
    const { tpSize = 1, layersPerStage = [4], cpSize = 1, dpSize = 1, kvHeads = 8, tokensPerBlock = 4 } = shape;
    const attentionDp = dpSize > 1;
    const perGroup = tpSize / dpSize;
    const place: RankPlaceInDp = {
      tpSize,
      tpRank,
      ppSize: layersPerStage.length,
      ppRank,
      cpSize,
      cpRank,
      dpSize,
      dpRank: Math.floor(tpRank / perGroup),
      attentionDp,
      layersPerStage,
    };
    const firstLayer = layersPerStage.slice(0, ppRank).reduce((sum, layers) => sum + layers, 0);
    const layers = Array.from({ length: layersPerStage[ppRank] ?? 0 }, (_, index) => firstLayer + index);
    const groups: readonly LayerGroup[] = [
      { kind: 'attention', windowSize: null, tokensPerBlock, layers, slotCount: SLOT_COUNT },
    ];
    const built = buildPageTable({
      groups,
      kvHeads: kvHeadShard(kvHeads, perGroup, tpRank % perGroup).headsPerRank,
      headDim: HEAD_DIM,
      dtype: 'bfloat16',
      poolLayout: 'per-layer',
      blockLayout: shape.blockLayout ?? 'HND',
    });
    const incarnation = nextIncarnation++;
    const auxSlots = shape.auxSlots ?? 4;
    const messenger = this.network.bind(endpoint);
    const agent = this.fabric.createAgent(`${name}-${incarnation}`);
    const pool = await agent.allocatePool({ sizeBytes: built.sizeBytes });
    const auxPool = await agent.allocatePool({ sizeBytes: Math.max(1, auxSlots) * AUX_SLOT_BYTES });
    const aux = { base: auxPool.base, slotBytes: AUX_SLOT_BYTES, slotCount: auxSlots };
    const rebased = rebasePageTable(built.table, pool.base);
    const table = auxSlots === 0 ? rebased : withAux(rebased, aux);
    const cache = new TableCache(groups, tokensPerBlock);
    const warnings: string[] = [];
    const notes: string[] = [];
    const isAlone = tpSize * layersPerStage.length * cpSize === 1;
    const transceiver = new KvCacheTransceiver({
      agent,
      messenger,
      cache,
      aux: new AuxBuffer(agent, auxPool.base, auxSlots),
      clock: this.clock,
      limits: RANK_LIMITS,
      rankInfo: {
        packageVersion: '0.0.0',
        instanceName: name,
        incarnation,
        rank: flatRank(place),
        ...place,
        endpoint: messenger.endpoint,
        rankEndpoints: isAlone ? [messenger.endpoint] : [],
        agent: 'sim',
        agentMetadata: await agent.metadata(),
        pageTable: table,
      },
      newTicket: () => nextTicket++,
      log: { warn: (message) => void warnings.push(message), info: (message) => void notes.push(message) },
    });
    const rank = {
      place,
      incarnation,
      transceiver,
      messenger,
      agent,
      cache,
      table,
      tokensPerBlock,
      kvHeads,
      warnings,
      notes,
      settled: [],
    };
    this.ranks.push(rank);
    return rank;
  }
}

function rid(request: LlmRequest): bigint {
  return request.disagg?.disaggRequestId ?? 0n;
}

function wordOf(request: bigint, layer: number, role: string, head: number, token: number, element: number): number {
  const seed = Number(request & 0xffffn) * 31 + layer * 7 + (role === 'value' ? 3 : 0);
  return (Math.imul(seed + 1, 0x9e3b) + Math.imul(head * 64 + token + 1, 0x2f51) * 2 + element * 0x1111) & 0xffff;
}
