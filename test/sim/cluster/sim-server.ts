import type { LayerGroup } from '../../../src/cache/kv-cache-manager.js';
import { LocalServer } from '../../../src/coordinator/local-server.js';
import { Executor } from '../../../src/executor/executor.js';
import type { LlmRequest } from '../../../src/executor/request.js';
import type { RankInfo } from '../../../src/mapping/index.js';
import { KvCacheTransceiver, type TransceiverCloseReport } from '../../../src/transceiver.js';
import type { Journal } from '../core/journal.js';
import { Random } from '../core/random.js';
import { type Scheduler, SimProcess } from '../core/scheduler.js';
import { Pages } from '../parts/pages.js';
import { blockHashesOf, TOKENS_PER_BLOCK, tokenAt } from '../parts/prompts.js';
import type { SimAgent } from '../parts/sim-agent.js';
import { SimEngine } from '../parts/sim-engine.js';
import type { SimFabric } from '../parts/sim-fabric.js';
import type { SimMessenger, SimNetwork } from '../parts/sim-network.js';
import { WatchedCache } from '../parts/watched-cache.js';
import { type SettleNote, WatchedTransceiver } from '../parts/watched-transceiver.js';
import type { HostRef, Shape } from '../plan.js';
import type { BareContext } from './bare-context.js';

export interface SimServerOptions {
  readonly ref: HostRef;
  readonly endpoint: string;
  /** Unique over all servers of the run. */
  readonly incarnation: number;
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

/** Role: one process: everything a real server runs, on simulated wires, memory and time. */
export class SimServer {
  readonly name: string;
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
  /** Requests that another engine drives. */
  readonly bare = new Map<LlmRequest, BareContext>();
  readonly #o: SimServerOptions;
  readonly #finished = new WeakSet<LlmRequest>();
  /** Set by `shutDown`. */
  closing = false;
  closed: TransceiverCloseReport | null = null;

  constructor(options: SimServerOptions) {
    this.#o = options;
    const { ref, endpoint, incarnation, shape, seed, scheduler, network, fabric, journal } = options;
    const violation = (rule: string, text: string): void => journal.violation(rule, `${this.name}: ${text}`);
    this.ref = ref;
    this.name = `${ref.side}${ref.index}#${incarnation}`;
    // Clocks of different machines have nothing to do with each other.
    this.process = new SimProcess(this.name, scheduler, 1000 * incarnation);
    this.messenger = network.bind(endpoint, this.process);
    this.agent = fabric.createAgent(this.name, this.process);
    const groups = layerGroups(shape);
    this.cache = new WatchedCache(groups, seed + incarnation, violation);
    this.pages = new Pages({
      agent: this.agent,
      cache: this.cache,
      groups,
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
      rankInfo: this.#rankInfo(endpoint, groups),
      newTicket: options.newTicket,
      log: {
        warn: (message) => {
          this.warnings.push(message);
          journal.note(10, message.length, 0, () => `${this.name} warns: ${message}`);
        },
        info: (message) => journal.note(11, message.length, 0, () => `${this.name}: ${message}`),
      },
    });
    this.watched = new WatchedTransceiver({
      inner: this.transceiver,
      name: this.name,
      process: this.process,
      cache: this.cache,
      bounds: shape.limits,
      journal,
      onSettled: (note) => {
        options.onSettled(note);
        this.bare.get(note.settled.request)?.settled(note.settled);
      },
    });
    const engine = new SimEngine({
      scheduler,
      process: this.process,
      agent: this.agent,
      cache: this.cache,
      pages: this.pages,
      random: new Random(seed, 4, incarnation),
      msPerToken: shape.msPerToken,
      failure: options.forwardFailure,
    });
    this.executor = new Executor({
      clock: this.process,
      cache: this.cache,
      transceiver: this.watched,
      engine,
      limits: {
        chunkTokens: shape.chunkTokens,
        tokenBudget: shape.tokenBudget,
        maxTokensInBuffer: shape.maxTokensInBuffer,
      },
      identity: { endpoint, dpRank: null },
      blockHashesOf,
      events: {
        onFirstToken: (request, token) => this.#checkArrival(request, token),
        onToken: (request, token, index) => {
          if (token !== tokenAt(request.promptTokens, index)) violation('I3 token', `request ${request.id}: ${token}`);
        },
        onFinished: (request, outcome) => {
          if (this.#finished.has(request)) violation('I2 twice', `request ${request.id} finished again, ${outcome}`);
          this.#finished.add(request);
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

  /** Executor and transceiver end in order, as a served process does on SIGTERM. */
  async shutDown(deadlineMs: number): Promise<void> {
    this.closing = true;
    await this.executor.close({ deadlineMs });
    this.closed = await this.transceiver.close(deadlineMs);
    this.process.state = 'dead';
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

  #rankInfo(endpoint: string, groups: readonly LayerGroup[]): RankInfo {
    return {
      packageVersion: '0.0.0',
      instanceName: `${this.ref.side}${this.ref.index}`,
      incarnation: BigInt(0x1000 + this.#o.incarnation),
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
      layersPerStage: [groups.reduce((sum, group) => sum + group.layers.length, 0)],
      endpoint,
      rankEndpoints: [endpoint],
      agent: 'sim',
      agentMetadata: new TextEncoder().encode(this.name),
      pageTable: this.pages.table,
    };
  }
}

function layerGroups({ windowSize, slotCount }: Shape): LayerGroup[] {
  const common = { kind: 'attention', tokensPerBlock: TOKENS_PER_BLOCK, slotCount } as const;
  if (windowSize === null) return [{ ...common, windowSize: null, layers: [0] }];
  return [
    { ...common, windowSize: null, layers: [0, 2] },
    { ...common, windowSize, layers: [1] },
  ];
}
