import type { LayerGroup } from '../../../src/cache/kv-cache-manager.js';
import type { ServerEvents, ServerRequest, ServerResult } from '../../../src/coordinator/disagg-server.js';
import { LocalServer } from '../../../src/coordinator/local-server.js';
import { createRequest } from '../../../src/executor/create-request.js';
import { Executor } from '../../../src/executor/executor.js';
import type { LlmRequest } from '../../../src/executor/request.js';
import { flatRank, kvHeadShard, type RankInfo, type RankPlaceInDp } from '../../../src/mapping/index.js';
import { stageLayers, tensorParallel } from '../../../src/mapping/rank-place.js';
import type { LocalRankGroup } from '../../../src/rank-group/local-rank-group.js';
import { INTERNAL_ERROR_LINE } from '../../../src/session/callback-guard.js';
import { KvCacheTransceiver, type TransceiverCloseReport } from '../../../src/transceiver.js';
import type { Journal } from '../core/journal.js';
import { Random } from '../core/random.js';
import { type Scheduler, SimProcess } from '../core/scheduler.js';
import { Arena } from '../parts/arena.js';
import { ContextParallelView } from '../parts/context-parallel-view.js';
import { PageLayout } from '../parts/page-layout.js';
import { Pages } from '../parts/pages.js';
import { blockHashesOf, TOKENS_PER_BLOCK, tokenAt } from '../parts/prompts.js';
import type { SimAgent } from '../parts/sim-agent.js';
import { SimEngine } from '../parts/sim-engine.js';
import type { SimFabric } from '../parts/sim-fabric.js';
import type { SimMessenger, SimNetwork } from '../parts/sim-network.js';
import { SimRankGroup } from '../parts/sim-rank-group.js';
import { WatchedCache } from '../parts/watched-cache.js';
import { type SettleNote, WatchedTransceiver } from '../parts/watched-transceiver.js';
import { groupSize, type HostRef, rankCount, type Shape } from '../plan.js';
import type { BareContext } from './bare-context.js';

export interface SimServerOptions {
  readonly ref: HostRef;
  /** By flat rank. */
  readonly endpoints: readonly string[];
  readonly place: RankPlaceInDp;
  /** The ranks that act alike; null = this one alone. */
  readonly rankGroup: LocalRankGroup | null;
  /** Unique over all instances of the run. */
  readonly incarnation: number;
  /** Tells processes of one rank of one instance apart. */
  readonly generation: number;
  readonly shape: Shape;
  readonly seed: number;
  readonly scheduler: Scheduler;
  readonly network: SimNetwork;
  readonly fabric: SimFabric;
  readonly journal: Journal;
  readonly forwardFailure: () => 'enqueue' | 'device' | null;
  readonly newTicket: () => bigint;
  readonly onSettled: (note: SettleNote) => void;
}

/** Role: one process, which is one rank: everything a real one runs, on simulated wires, memory and time. */
export class SimServer {
  readonly name: string;
  readonly endpoint: string;
  readonly ref: HostRef;
  readonly process: SimProcess;
  readonly messenger: SimMessenger;
  readonly agent: SimAgent;
  readonly cache: WatchedCache;
  readonly pages: Pages;
  readonly transceiver: KvCacheTransceiver;
  readonly watched: WatchedTransceiver;
  readonly executor: Executor;
  readonly local: LocalServer;
  readonly warnings: string[] = [];
  readonly rank: number;
  readonly dpRank: number;
  /** How each request ended here, by its id: alike on all ranks. */
  readonly outcomes = new Map<number, string>();
  /** Set when the ranks act alike no more. */
  parted = false;
  /** Requests that another engine drives. */
  readonly bare = new Map<LlmRequest, BareContext>();
  readonly #o: SimServerOptions;
  readonly #finished = new WeakSet<LlmRequest>();
  /** Set by `shutDown`. */
  closing = false;
  closed: TransceiverCloseReport | null = null;

  constructor(options: SimServerOptions) {
    this.#o = options;
    const { ref, endpoints, place, incarnation, shape, seed, scheduler, network, fabric, journal } = options;
    const ranks = endpoints.length;
    const rank = flatRank(place);
    const endpoint = endpoints[rank] as string;
    const serial = incarnation + 97 * rank + 1009 * options.generation;
    this.rank = rank;
    this.dpRank = place.dpRank;
    this.endpoint = endpoint;
    const violation = (rule: string, text: string): void => journal.violation(rule, `${this.name}: ${text}`);
    this.ref = ref;
    const again = options.generation > 0 ? `.${options.generation}` : '';
    this.name = `${ref.side}${ref.index}#${incarnation}${ranks > 1 ? `r${rank}` : ''}${again}`;
    // Clocks of different machines have nothing to do with each other.
    this.process = new SimProcess(this.name, scheduler, 1000 * serial);
    this.messenger = network.bind(endpoint, this.process);
    this.agent = fabric.createAgent(this.name, this.process);
    if (shape.arenaBytes !== null) this.agent.arena = new Arena(shape.arenaBytes);
    const groups = layerGroups(shape, place);
    const { size, rank: tpRank } = tensorParallel(place);
    const { headsPerRank, firstHead } = shape.latent
      ? { headsPerRank: 1, firstHead: 0 }
      : kvHeadShard(shape.kvHeads, size, tpRank);
    const { blockLayout } = shape[ref.side];
    this.cache = new WatchedCache(groups, seed + incarnation, violation, place.cpSize);
    const wholePrompts = place.cpSize === 1 ? this.cache : new ContextParallelView(this.cache, place.cpSize);
    this.pages = new Pages({
      agent: this.agent,
      cache: this.cache,
      groups,
      layouts: groups.map(
        ({ layers }) =>
          new PageLayout({
            layers,
            roles: shape.latent ? 1 : 2,
            heads: headsPerRank,
            firstHead,
            blockLayout: shape.latent ? 'NHD' : blockLayout,
          }),
      ),
      cpSize: place.cpSize,
      cpRank: place.cpRank,
      kvHeads: headsPerRank,
      blockLayout,
      auxSlots: shape.auxSlots,
      dtype: (ref.side === 'generation' ? shape.generationDtype : undefined) ?? 'bfloat16',
      now: () => this.process.now(),
      violation,
    });
    this.transceiver = new KvCacheTransceiver({
      agent: this.agent,
      messenger: this.messenger,
      cache: this.cache,
      aux: this.pages.aux,
      clock: this.process,
      limits: shape.limits,
      rankInfo: this.#rankInfo(endpoint),
      newTicket: options.newTicket,
      log: {
        warn: (message) => {
          this.warnings.push(message);
          const unproven = /^request (\d+): pages released without proof/.exec(message);
          if (unproven !== null) this.watched.releasedUnproven(unproven[1] as string);
          if (message.startsWith(INTERNAL_ERROR_LINE)) violation('threw', message);
          journal.note(10, message.length, 0, () => `${this.name} warns: ${message}`);
        },
        info: (message) => journal.note(11, message.length, 0, () => `${this.name}: ${message}`),
      },
    });
    this.watched = new WatchedTransceiver({
      inner: this.transceiver,
      name: this.name,
      place: { rank, ranks: groupSize(shape[ref.side]) },
      process: this.process,
      cache: this.cache,
      bounds: shape.limits,
      journal,
      onSettled: (note) => {
        options.onSettled(note);
        this.bare.get(note.settled.request)?.settled(note.settled);
      },
      wrongWords: (request, tokens) => this.pages.wrongWords(request, tokens),
    });
    const engine = new SimEngine({
      scheduler,
      process: this.process,
      agent: this.agent,
      pages: this.pages,
      random: new Random(seed, 4, serial),
      msPerToken: shape.msPerToken,
      failure: options.forwardFailure,
    });
    this.executor = new Executor({
      clock: this.process,
      cache: wholePrompts,
      transceiver: this.watched,
      engine,
      schedule: shape[ref.side].schedule ?? 'plain',
      limits: {
        chunkTokens: shape.chunkTokens,
        tokenBudget: shape.tokenBudget,
        maxTokensInBuffer: shape.maxTokensInBuffer,
      },
      identity: { endpoint, dpRank: place.attentionDp ? place.dpRank : null },
      kvTransferTimeoutMs: shape.limits.kvTransferTimeoutMs,
      ...(options.rankGroup === null
        ? {}
        : { rankGroup: new SimRankGroup(options.rankGroup, scheduler, this.process, new Random(seed, 8, serial)) }),
      blockHashesOf,
      events: {
        onFirstToken: (request, token) => this.#checkArrival(request, token),
        onToken: (request, token, index) => {
          if (token !== tokenAt(request.promptTokens, index)) violation('I3 token', `request ${request.id}: ${token}`);
        },
        onFinished: (request, outcome) => {
          if (this.#finished.has(request)) violation('I2 twice', `request ${request.id} finished again, ${outcome}`);
          this.#finished.add(request);
          this.outcomes.set(request.id, outcome);
        },
        onRankGroupLost: (error) => {
          this.parted = true;
          this.watched.takeItself();
          journal.note(13, 0, 0, () => `${this.name} acts alone: ${error.message}`);
        },
        onHandlerError: (error, handler) => violation('threw', `${handler}: ${String(error)}`),
      },
    });
    this.local = new LocalServer({
      name: this.name,
      executor: this.executor,
      infoEndpoint: endpoint,
      transferPolicy: { pipelined: true, earlyPrefix: true },
      onNotice: () => {},
    });
  }

  /** A rank of several: once the others are open. */
  join(): void {
    if (!this.closing) this.transceiver.joinInstance(this.#o.endpoints);
  }

  /** One rank's copy of a request. @throws what the executor throws */
  accept(id: number, request: ServerRequest, events: ServerEvents, onDone: (result: ServerResult) => void): void {
    const { promptTokens, maxTokens, params, transferPolicy } = request;
    this.executor.submit(
      createRequest({
        id,
        promptTokens,
        maxTokens,
        disagg: params,
        ...(transferPolicy == null ? {} : { transferPolicy }),
      }),
      {
        onContextAnswer: (_, answer) => events.onContextAnswer?.(answer),
        onToken: (_, token, index) => events.onToken?.(token, index),
        onFinished: ({ outputTokens, error }, outcome) => onDone({ outcome, outputTokens: [...outputTokens], error }),
      },
    );
  }

  /** Executor and transceiver end in order, as a served process does on SIGTERM. */
  async shutDown(deadlineMs: number): Promise<void> {
    this.closing = true;
    await this.executor.close({ deadlineMs });
    this.closed = await this.transceiver.close(deadlineMs);
    this.process.state = 'dead';
  }

  /** `leftovers` of nothing, found out as cheaply as it can be: it is looked at often, and seldom true. */
  get isIdle(): boolean {
    if (!this.cache.isEmpty || this.process.pendingTimers !== 1 || this.transceiver.ledger.heldCount > 0) return false;
    return this.leftovers() === null;
  }

  /** What nobody may hold once everything ended; null when nothing is held. */
  leftovers(): string | null {
    const { sendSessions, receiveSessions, held, freeAuxSlots } = this.transceiver.stats();
    const left: string[] = [];
    const expect = (what: string, value: number, right: number): void => {
      if (value !== right) left.push(`${what} ${value}`);
    };
    expect('pinned requests', this.cache.pinnedRequests.length, 0);
    expect('resident requests', this.cache.residentRequests.length, 0);
    expect('holds', held, 0);
    expect('send sessions', sendSessions, 0);
    expect('receive sessions', receiveSessions, 0);
    expect('free aux slots', freeAuxSlots, this.#o.shape.auxSlots);
    expect('live requests', this.executor.stats().live, 0);
    expect('arena bytes', this.agent.arena?.usedBytes ?? 0, 0);
    // The sweep of the transceiver is the one timer of an idle server: another one repeats something that has ended.
    expect('timers', this.process.pendingTimers, 1);
    return left.length === 0 ? null : left.join(', ');
  }

  #checkArrival(request: LlmRequest, token: number): void {
    if (this.ref.side !== 'generation') return;
    const wrong = this.pages.wrongWords(request);
    const { journal } = this.#o;
    if (wrong > 0)
      journal.violation('I3 content', `${this.name}: request ${request.id} decodes over ${wrong} wrong words`);
    journal.note(12, request.id, token, () => `${this.name}: request ${request.id} has its first token`);
  }

  #rankInfo(endpoint: string): RankInfo {
    const { endpoints, incarnation, generation, place } = this.#o;
    const rank = flatRank(place);
    return {
      packageVersion: '0.0.0',
      instanceName: `${this.ref.side}${this.ref.index}`,
      incarnation: BigInt(0x1000 + incarnation + 0x10_0000 * rank + 0x1000_0000 * generation),
      rank,
      ...place,
      endpoint,
      rankEndpoints: endpoints.length > 1 ? [] : [endpoint],
      agent: 'sim',
      agentMetadata: new TextEncoder().encode(this.name),
      pageTable: this.pages.table,
    };
  }
}

/** The places of an instance, by flat rank. */
export function placesOf(shape: Shape, side: HostRef['side']): RankPlaceInDp[] {
  const { tpSize, dpSize, cpSize, layersPerStage } = shape[side];
  const perGroup = tpSize / dpSize;
  return Array.from({ length: rankCount(shape[side]) }, (_, rank) => {
    const tpRank = Math.floor(rank / cpSize) % tpSize;
    return {
      tpSize,
      tpRank,
      ppSize: layersPerStage.length,
      ppRank: Math.floor(rank / (tpSize * cpSize)),
      cpSize,
      cpRank: rank % cpSize,
      dpSize,
      dpRank: dpSize > 1 ? Math.floor(tpRank / perGroup) : 0,
      attentionDp: dpSize > 1,
      layersPerStage,
    };
  });
}

/** With a window, every second layer has it. */
function layerGroups({ windowSize, slotCount, latent }: Shape, place: RankPlaceInDp): LayerGroup[] {
  const kind = latent ? 'latent' : 'attention';
  const common = { kind, tokensPerBlock: TOKENS_PER_BLOCK, slotCount } as const;
  const { begin, end } = stageLayers(place);
  const layers = Array.from({ length: end - begin }, (_, index) => begin + index);
  if (windowSize === null) return [{ ...common, windowSize: null, layers }];
  return [
    { ...common, windowSize: null, layers: layers.filter((layer) => layer % 2 === 0) },
    { ...common, windowSize, layers: layers.filter((layer) => layer % 2 === 1) },
  ];
}
