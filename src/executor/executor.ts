import { chainBlockHashes } from '../cache/block-hash.js';
import type { CachePrompt, KvCacheManager, RequestId } from '../cache/kv-cache-manager.js';
import type { Clock } from '../clock.js';
import { InternalError, type KvTransceiverError, ResourceError, StateError } from '../errors.js';
import type { RankGroup } from '../rank-group/rank-group.js';
import type { CacheTransceiver, Settled } from '../session/cache-transceiver.js';
import { CacheAdmission } from './cache-admission.js';
import { ContextTransfer } from './context-transfer.js';
import { validateRequest } from './create-request.js';
import { type ExecutorDump, executorDump } from './executor-dump.js';
import { EventSink, type ExecutorEvents, type ExecutorObserver, type RequestEvents } from './executor-events.js';
import { type ContextIdentity, ForwardStage, type StepInFlight, type StepResult } from './forward-stage.js';
import { GenerationTransfer } from './generation-transfer.js';
import type { ModelEngine } from './model-engine.js';
import { RankConsensus, type RankGroupStats } from './rank-consensus.js';
import type { LlmRequest, RequestState } from './request.js';
import { hasTransfer, RequestEndings } from './request-endings.js';
import { type Entry, RequestTable } from './request-table.js';
import { checkLimits, planStep, type SchedulerLimits, type StepPlan } from './scheduler.js';
import { TokenDelivery } from './token-delivery.js';
import { TurnBudget } from './turn-budget.js';
import { typedError } from './typed-error.js';
import { WakeSignal } from './wake-signal.js';

const HOUSEKEEPING_INTERVAL_MS = 100;
/** The default of the setting kvTransferTimeoutMs. */
const TRANSFER_TIMEOUT_MS = 60_000;

/** Parts and limits of one executor. */
export interface ExecutorOptions {
  readonly clock: Clock;
  readonly cache: KvCacheManager;
  readonly transceiver: CacheTransceiver;
  readonly engine: ModelEngine;
  readonly limits: SchedulerLimits;
  readonly events?: ExecutorEvents;
  /** Told to generation servers by context-first answers. */
  readonly identity?: ContextIdentity;
  /** Names the content of each full block of a prompt. Default: chained SHA-256 of its tokens. */
  readonly blockHashesOf?: (request: LlmRequest) => CachePrompt['blockHashes'];
  /** How often a loop that waits looks again by itself. Default 100. */
  readonly housekeepingIntervalMs?: number;
  /**
   * The other ranks of this instance, which run the same requests under the same ids. Stays the caller's. Default: there are none.
   * Every rank's engine must sample the same tokens.
   */
  readonly rankGroup?: RankGroup;
  /** Several ranks: what some rank never learns of holds the others for twice this. Default 60000, as the setting. */
  readonly kvTransferTimeoutMs?: number;
}

/** Counters since the executor started. */
export interface ExecutorStats {
  /** Turns of the loop, those that found nothing to do included. */
  readonly turns: number;
  /** Forwards that were launched. */
  readonly steps: number;
  readonly live: number;
  readonly requestsByState: Readonly<Record<RequestState, number>>;
  /** Null on a server of one rank. */
  readonly rankGroup: RankGroupStats | null;
}

/** What `Executor.close` left. */
export interface ExecutorCloseReport {
  /** False: requests were failed at the deadline, or a forward still ran. */
  readonly drained: boolean;
  readonly failed: number;
}

/**
 * Role: the loop of one rank of a server: check transfers, cancels -> prepare -> schedule -> early prefix -> forward -> send -> results.
 * Why: one plain schedule whose stages are separate calls, so that a schedule that overlaps steps needs no second code path.
 * Ownership: a request belongs to the executor from `submit` to `onFinished`. The engine and the transceiver stay the caller's.
 * Threading: never blocks; gives the event loop a turn after every step and sleeps when nothing can be done.
 * Several ranks: the loop of each does the same at the same step; `RankConsensus` stands between what a rank sees and what the loop does.
 * Ordering: `forward` resolves when the work is enqueued; its slices are submitted behind its event at once; its results are awaited before
 *   the next step is scheduled; several ranks exchange how it went before any of it counts.
 */
export class Executor {
  readonly #clock: Clock;
  readonly #transceiver: CacheTransceiver;
  readonly #limits: SchedulerLimits;
  readonly #housekeepingIntervalMs: number;
  readonly #table: RequestTable;
  readonly #events: EventSink;
  readonly #admission: CacheAdmission;
  readonly #endings: RequestEndings;
  readonly #context: ContextTransfer;
  readonly #generation: GenerationTransfer;
  readonly #forward: ForwardStage;
  readonly #wake: WakeSignal;
  readonly #ranks: RankConsensus | null;
  readonly #loop: Promise<void>;
  #phase: 'open' | 'draining' | 'aborting' | 'closed' = 'open';
  #turns = 0;
  #steps = 0;
  #failedAtClose = 0;
  #parted: KvTransceiverError | null = null;
  /** Several ranks: a forward that has ended here, and that the others have not agreed on. */
  #agreeing: { readonly step: StepInFlight; readonly result: StepResult } | null = null;

  /** Starts the loop. @throws ConfigError for limits out of range */
  constructor(options: ExecutorOptions) {
    checkLimits(options.limits);
    const { clock, cache, transceiver, engine, limits } = options;
    const table = new RequestTable(cache.tokensPerBlock);
    this.#table = table;
    this.#clock = clock;
    this.#transceiver = transceiver;
    this.#limits = limits;
    this.#housekeepingIntervalMs = options.housekeepingIntervalMs ?? HOUSEKEEPING_INTERVAL_MS;
    this.#wake = new WakeSignal(clock);
    const events = new EventSink(options.events ?? {});
    const admission = new CacheAdmission({
      cache,
      chunkTokens: limits.chunkTokens,
      contentOf: (request) => {
        const tokens = request.promptTokens;
        // Hashes of the caller's may cover more than the tokens, so that tokens alone do not name the content.
        if (options.blockHashesOf !== undefined) return { blockHashes: options.blockHashesOf(request) };
        return { blockHashes: chainBlockHashes(tokens, cache.tokensPerBlock), tokens };
      },
      orderOf: (request) => table.find(request)?.order ?? Infinity,
      onRefused: (request, error) => {
        const entry = table.find(request);
        if (entry !== undefined) this.#endings.abandon(entry, error);
      },
    });
    const endings = new RequestEndings({ clock, table, admission, transceiver, events });
    const tokens = new TokenDelivery(clock, events);
    const transfer = new ContextTransfer({ table, transceiver, endings });
    const identity = options.identity ?? { endpoint: null, dpRank: null };
    this.#events = events;
    this.#admission = admission;
    this.#endings = endings;
    this.#context = transfer;
    const ranks = this.#joinRanks(options, table, endings);
    this.#ranks = ranks;
    this.#generation = new GenerationTransfer({
      table,
      cache,
      admission,
      limits,
      transceiver,
      endings,
      tokens,
      onPagesReady: () => this.#wake.raise(),
      ranks,
    });
    const onPagesLent = (request: LlmRequest): void => ranks?.share(request);
    const stage = { clock, cache, engine, table, transfer, endings, events, tokens, identity, onPagesLent };
    this.#forward = new ForwardStage(stage);
    transceiver.onActivity(() => {
      transfer.activity();
      this.#wake.raise();
    });
    this.#loop = this.#run();
  }

  /**
   * Accepts a request (made by `createRequest`); `events.onFinished` comes exactly once.
   * @throws ArgumentError for a request no executor can run, or an id in use
   * @throws RequestTooLargeError when it can never fit the pool
   * @throws StateError once `close` was called
   */
  submit(request: LlmRequest, events: RequestEvents = {}): void {
    if (this.#parted !== null) {
      const text = `the ranks of this server do not act together any more (${this.#parted.message}); restart all of them`;
      throw new StateError(text, { cause: this.#parted });
    }
    if (this.#phase !== 'open') throw new StateError('the executor is closing; submit to another server');
    validateRequest(request);
    this.#admission.assertFits(request);
    if (this.#ranks !== null) this.#ranks.submit(request, events);
    else this.#context.added(this.#table.add(request, events, this.#clock.now()));
    this.#wake.raise();
    this.#events.submitted(request, this.#clock);
  }

  /** Lets an observer hear what happens from now on. @returns takes it away again; idempotent */
  observe(observer: ExecutorObserver): () => void {
    return this.#events.observe(observer);
  }

  /** Ends a request for its user. False: nothing to cancel (unknown, finished, or cancelled before). */
  cancel(id: RequestId): boolean {
    if (this.#ranks !== null) {
      const isNews = this.#ranks.cancel(id);
      if (isNews) this.#wake.raise();
      return isNews;
    }
    const entry = this.#table.byId(id);
    if (entry === undefined || entry.outcome !== null || entry.request.cancelRequested) return false;
    entry.request.cancelRequested = true;
    this.#table.markCancelling(entry);
    this.#wake.raise();
    return true;
  }

  stats(): ExecutorStats {
    return {
      turns: this.#turns,
      steps: this.#steps,
      live: this.#liveCount,
      requestsByState: this.#table.countStates(),
      rankGroup: this.#ranks?.stats() ?? null,
    };
  }

  /**
   * Every live request and its state, for an operator who asks what the loop waits for; JSON-serialisable. No tokens.
   * @param options.maxEntries what is left out is counted. Default 100
   */
  dump(options: { readonly maxEntries?: number } = {}): ExecutorDump {
    return executorDump(this.#phase, this.stats(), this.#table, this.#clock.now(), options.maxEntries);
  }

  /**
   * Takes no new requests and lets the live ones end. At the deadline the rest fails with a StateError; a forward that never returns is not
   * waited for. Idempotent.
   * @param options.deadlineMs time from now; default: no limit
   */
  async close(options: { readonly deadlineMs?: number } = {}): Promise<ExecutorCloseReport> {
    if (this.#phase === 'open') this.#phase = 'draining';
    this.#wake.raise();
    let expire = (): void => {};
    const expired = new Promise<void>((resolve) => {
      expire = resolve;
    });
    const timer =
      options.deadlineMs === undefined
        ? null
        : this.#clock.setTimer(
            options.deadlineMs,
            () => {
              if (this.#phase === 'draining') this.#phase = 'aborting';
              this.#wake.raise();
              // One turn for a loop that can still act; one that hangs in a forward is left behind.
              void this.#clock.nextTurn().then(() => this.#clock.nextTurn().then(expire));
            },
            { keepAlive: true },
          );
    await Promise.race([this.#loop, expired]);
    timer?.cancel();
    return {
      drained: this.#liveCount === 0 && this.#failedAtClose === 0,
      failed: this.#failedAtClose + this.#liveCount,
    };
  }

  async #run(): Promise<void> {
    // The constructor returns before the first turn.
    await this.#clock.nextTurn();
    // The first exchange is entered when some rank has a request: the other ranks may start a while later.
    if (this.#ranks !== null) await this.#rest();
    while (!this.#ended()) {
      this.#turns += 1;
      let acted = false;
      try {
        acted = await this.#step();
      } catch (error) {
        // A stage must not throw; if one does, every request still gets its one outcome and the loop lives on.
        this.#abandonAll(typedError(error, 'the executor loop failed'));
      }
      if (acted) await this.#clock.nextTurn();
      else if (!this.#ended()) await this.#rest();
    }
    // The others must not wait for a rank that is gone.
    if (this.#ranks?.hasParted === false) await this.#ranks.cross({ leaving: true });
    this.#phase = 'closed';
  }

  get #liveCount(): number {
    return this.#table.size + (this.#ranks?.waitingCount ?? 0);
  }

  #ended(): boolean {
    return this.#phase !== 'open' && this.#liveCount === 0;
  }

  /** Sleeps until there may be something to do; with several ranks, until there is something to tell or to hear. */
  async #rest(): Promise<void> {
    const ranks = this.#ranks;
    ranks?.rest();
    do {
      await this.#wake.wait(this.#liveCount > 0 ? this.#housekeepingIntervalMs : null);
      this.#context.activity();
      ranks?.look();
      this.#generation.postDelayed();
    } while (ranks !== null && !ranks.mustCross && !this.#ended() && this.#phase !== 'aborting');
  }

  #joinRanks(options: ExecutorOptions, table: RequestTable, endings: RequestEndings): RankConsensus | null {
    const { rankGroup: group, clock, cache, transceiver, kvTransferTimeoutMs = TRANSFER_TIMEOUT_MS } = options;
    if (group === undefined || group.size === 1) return null;
    const ranks = new RankConsensus({
      group,
      clock,
      cache,
      table,
      endings,
      transceiver,
      transferTimeoutMs: kvTransferTimeoutMs,
      onForwardAgreed: (error) => this.#retireAgreed(error),
      onArrived: (entry, firstTokens) => this.#generation.arrived(entry, firstTokens),
      onNews: () => this.#wake.raise(),
      onWarning: (message) => this.#events.warning(message),
      onParted: (error) => this.#onParted(error),
    });
    endings.shareWith(ranks);
    return ranks;
  }

  #onParted(error: KvTransceiverError): void {
    const wasOpen = this.#phase === 'open';
    this.#parted = error;
    if (wasOpen) {
      this.#phase = 'draining';
      this.#events.rankGroupLost(error);
    }
  }

  /** @returns true when something was launched or ended, so that another step may find work at once */
  async #step(): Promise<boolean> {
    if (this.#ranks === null) {
      await this.#checkTransfers();
      this.#cancelPending();
    } else {
      this.#ranks.look();
      if (this.#phase !== 'aborting') await this.#ranks.cross({ leaving: false });
      if (this.#ranks.hasParted) {
        await this.#retireAgreed(this.#parted);
        return true;
      }
    }
    if (this.#phase === 'aborting') {
      this.#failedAtClose += this.#liveCount;
      const error = new StateError('the executor was closed before the request ended');
      if (this.#ranks === null) this.#abandonAll(error);
      else {
        await this.#ranks.leave(error);
        await this.#retireAgreed(error);
      }
      return true;
    }
    // What is left to look at has the next turn.
    if (this.#ranks === null && this.#context.prepare()) this.#wake.raise();
    const morePosts = this.#generation.postReceives();
    const plan = planStep(
      this.#limits,
      requestsOf(this.#table.in('GENERATION_IN_PROGRESS')),
      requestsOf(this.#table.in('CONTEXT_INIT')),
      this.#admission,
    );
    this.#ranks?.planned(plan);
    const ran = await this.#runForward(plan);
    return ran || morePosts || this.#failIfStuck();
  }

  async #runForward(plan: StepPlan): Promise<boolean> {
    if (plan.context.length + plan.generation.length === 0) return false;
    const startedAtMs = this.#clock.now();
    const inFlight = await this.#forward.launch(plan);
    if (inFlight === null) return true;
    this.#steps += 1;
    const result = await inFlight.result;
    if (this.#ranks === null) await this.#forward.retire(inFlight, result);
    else {
      this.#agreeing = { step: inFlight, result };
      this.#ranks.computed(result instanceof Error ? result : null);
    }
    this.#events.step({
      step: this.#steps,
      startedAtMs,
      endedAtMs: this.#clock.now(),
      contextTokens: inFlight.context.reduce((sum, { scheduled: s }) => sum + s.chunkEnd - s.chunkStart, 0),
      contextRequests: inFlight.context.length,
      generationRequests: inFlight.generation.length,
    });
    return true;
  }

  /** @param error why the step does not count, although it may have gone well here */
  async #retireAgreed(error: KvTransceiverError | null): Promise<void> {
    const agreeing = this.#agreeing;
    this.#agreeing = null;
    if (agreeing !== null) await this.#forward.retire(agreeing.step, error ?? agreeing.result);
  }

  /** In portions: thousands that end at once must not hold up the event loop. */
  async #checkTransfers(): Promise<void> {
    const outcomes = this.#transceiver.takeSettled();
    const budget = new TurnBudget(this.#clock);
    for (const settled of outcomes) {
      if (budget.isSpent()) await budget.nextTurn();
      const entry = this.#table.find(settled.request);
      // An ended request: its outcome was decided here, and the ledger alone says when its pages are free.
      if (entry === undefined || entry.outcome !== null) continue;
      try {
        this.#settle(entry, settled);
      } catch (error) {
        this.#endings.fail(entry, typedError(error, `transfer of request ${settled.request.id}`));
      }
    }
  }

  #settle(entry: Entry, settled: Settled): void {
    const byUser = entry.request.cancelRequested;
    if (settled.outcome === 'completed') {
      if (settled.side === 'context') this.#endings.complete(entry);
      else if (byUser) this.#endings.cancel(entry);
      else this.#generation.arrived(entry, settled.firstTokens);
    } else if (settled.outcome === 'cancelled' && byUser) {
      this.#endings.cancel(entry);
    } else {
      // A cancel that is not ours is the peer's, and that is an error.
      const error = settled.error ?? new InternalError(`transfer ${settled.outcome} without a reason`);
      this.#endings.fail(entry, error);
    }
  }

  /** Asks again for every cancel that could not take effect yet. */
  #cancelPending(): void {
    for (const entry of this.#table.cancelling) {
      if (entry.outcome !== null) continue;
      this.#admission.leaveLine(entry.request);
      try {
        const ended = !hasTransfer(entry) || this.#transceiver.cancelRequest(entry.request, 'cancelled by its user');
        if (ended) this.#endings.cancel(entry);
      } catch (error) {
        this.#endings.fail(entry, typedError(error, 'cancelRequest failed'));
      }
    }
  }

  /** The head of the line lacks blocks and nobody is left who could give any back: waiting would never end. */
  #failIfStuck(): boolean {
    const { blocked } = this.#admission;
    const entry = blocked === null ? undefined : this.#table.find(blocked);
    if (entry === undefined || entry.outcome !== null || this.#admission.othersHoldBlocks(entry.request)) return false;
    const { id, promptTokens } = entry.request;
    this.#endings.abandon(
      entry,
      new ResourceError(
        `request ${id}: no blocks for its prompt of ${promptTokens.length} tokens although no other request holds any; enlarge the pool, or lower chunkTokens if a windowed layer group is the small one (a pipelined transfer keeps all its blocks until it is done)`,
      ),
    );
    return true;
  }

  #abandonAll(error: KvTransceiverError): void {
    for (const entry of this.#table.all()) {
      try {
        this.#endings.abandon(entry, error);
      } catch (cause) {
        // The transceiver refused to cancel; the outcome must come all the same.
        this.#endings.fail(entry, typedError(cause, error.message));
      }
    }
  }
}

function* requestsOf(entries: Iterable<Entry>): Iterable<LlmRequest> {
  for (const entry of entries) if (!entry.request.cancelRequested) yield entry.request;
}
