import type { KvCacheManager, RequestId } from '../cache/kv-cache-manager.js';
import type { Clock } from '../clock.js';
import { checkDeadline } from '../deadline.js';
import { ArgumentError, StateError } from '../errors.js';
import { CallbackGuard, INTERNAL_ERRORS } from '../session/callback-guard.js';
import { Counters } from '../session/counters.js';
import { GuardedClock } from '../session/guarded-clock.js';
import { TurnBudget } from '../turn-budget.js';
import { CacheAdmission } from './cache-admission.js';
import { ContextTransfer } from './context-transfer.js';
import { validateRequest } from './create-request.js';
import { type ExecutorDump, executorDump } from './executor-dump.js';
import { EventSink, type ExecutorObserver, type RequestEvents } from './executor-events.js';
import { ExecutorLoop } from './executor-loop.js';
import {
  checkExecutorOptions,
  type ExecutorCloseReport,
  type ExecutorOptions,
  type ExecutorStats,
  STEPS_IN_FLIGHT,
} from './executor-options.js';
import { ForwardStage, type Meanwhile } from './forward-stage.js';
import { GenerationTransfer } from './generation-transfer.js';
import { PageMoves } from './page-moves.js';
import { PromptContents } from './prompt-contents.js';
import { RankConsensus } from './rank-consensus.js';
import { type LlmRequest, requestKey } from './request.js';
import { RequestEndings } from './request-endings.js';
import { RequestTable } from './request-table.js';
import { StepPipeline } from './step-pipeline.js';
import { TokenDelivery } from './token-delivery.js';
import { TransferOutcomes } from './transfer-outcomes.js';
import { WakeSignal } from './wake-signal.js';

const HOUSEKEEPING_INTERVAL_MS = 100;
/** The default of the setting kvTransferTimeoutMs. */
const TRANSFER_TIMEOUT_MS = 60_000;

/**
 * Role: one rank of a server: takes requests, puts together the parts that run them, and ends in order.
 * Ownership: a request belongs to the executor from `submit` to `onFinished`. The engine and the transceiver stay the caller's.
 * Threading: never blocks; gives the event loop a turn after every step and sleeps when nothing can be done.
 * Several ranks: the loop of each does the same at the same step; `RankConsensus` stands between what a rank sees and what the loop does.
 * Ordering: `ExecutorLoop` has the order of a turn, `StepPipeline` that of the steps.
 */
export class Executor {
  readonly #clock: Clock;
  readonly #cache: KvCacheManager;
  readonly #events: EventSink;
  readonly #counters = new Counters();
  readonly #table: RequestTable;
  readonly #admission: CacheAdmission;
  readonly #context: ContextTransfer;
  readonly #generation: GenerationTransfer;
  readonly #pipeline: StepPipeline;
  readonly #wake: WakeSignal;
  readonly #ranks: RankConsensus | null;
  readonly #loop: ExecutorLoop;
  readonly #ended: Promise<void>;

  /** Starts the loop. @throws ConfigError for limits out of range, or a schedule that the engine cannot run */
  constructor(options: ExecutorOptions) {
    checkExecutorOptions(options);
    const { cache, transceiver, engine, limits, schedule = 'plain' } = options;
    const events = new EventSink(options.events ?? {});
    const warn = (message: string): void => events.warning(message);
    const guard = new CallbackGuard({ clock: options.clock, counters: this.#counters, warn });
    const clock = new GuardedClock(options.clock, guard);
    const table = new RequestTable(cache.tokensPerBlock);
    const wake = new WakeSignal(clock);
    const turns = new TurnBudget(clock);
    const stepsInFlight = STEPS_IN_FLIGHT[schedule];
    const admission: CacheAdmission = new CacheAdmission({
      cache,
      chunkTokens: limits.chunkTokens,
      stepsInFlight,
      turns,
      contents: new PromptContents({
        tokensPerBlock: cache.tokensPerBlock,
        turns,
        blockHashesOf: options.blockHashesOf ?? null,
      }),
      // Ranks that act alike must plan alike, and when pages are there differs from rank to rank.
      ...(isAlone(options)
        ? {
            holdBack: (request: LlmRequest) => {
              const entry = table.find(request);
              return entry !== undefined && moves.holdBack(entry);
            },
          }
        : {}),
      orderOf: (request) => table.find(request)?.order ?? Infinity,
      onRefused: (request, error) => {
        const entry = table.find(request);
        if (entry !== undefined) endings.abandon(entry, error);
      },
    });
    const endings: RequestEndings = new RequestEndings({ clock, guard, table, admission, transceiver, events });
    const tokens = new TokenDelivery(clock, events);
    const moves: PageMoves = new PageMoves({ cache, endings, onOver: () => wake.raise() });
    const context = new ContextTransfer({ table, transceiver, endings, moves });
    const identity = options.identity ?? { endpoint: null, dpRank: null };
    const ranks = this.#joinRanks({ ...options, clock }, { table, endings, events, turns });
    const generation = new GenerationTransfer({
      turns,
      table,
      cache,
      admission,
      limits,
      transceiver,
      endings,
      tokens,
      moves,
      ranks,
    });
    const meanwhile: Meanwhile = (work) => this.#loop.meanwhile(work);
    const onPagesLent = (request: LlmRequest): void => ranks?.share(request);
    const transfer = context;
    const forward = new ForwardStage({
      clock,
      turns,
      cache,
      engine,
      table,
      transfer,
      moves,
      endings,
      events,
      tokens,
      identity,
      onPagesLent,
      meanwhile,
    });
    const pipeline = new StepPipeline({ clock, forward, events, depth: stepsInFlight, meanwhile });
    this.#clock = clock;
    this.#cache = cache;
    this.#events = events;
    this.#generation = generation;
    this.#table = table;
    this.#admission = admission;
    this.#context = context;
    this.#pipeline = pipeline;
    this.#wake = wake;
    this.#ranks = ranks;
    this.#loop = new ExecutorLoop({
      turns,
      limits,
      table,
      admission,
      endings,
      context,
      generation,
      outcomes: new TransferOutcomes({ turns, table, admission, transceiver, endings, generation }),
      pipeline,
      events,
      wake,
      guard,
      ranks,
      housekeepingIntervalMs: options.housekeepingIntervalMs ?? HOUSEKEEPING_INTERVAL_MS,
    });
    const onActivity = (): void => {
      context.activity();
      ranks?.activity();
      wake.raise();
    };
    transceiver.onActivity(() => void guard.run('activity', onActivity));
    this.#ended = this.#loop.run();
  }

  /**
   * Accepts a request (made by `createRequest`); `events.onFinished` comes exactly once.
   * @throws ArgumentError for a request no executor can run, or an id in use, its own or the one that both servers know it by. Its own is in use as
   *   long as a transfer may touch the pages of a request that had it, also when that has ended
   * @throws RequestTooLargeError when it can never fit the pool, or its draft tokens the slot that travels with the pages
   * @throws StateError once `close` was called
   */
  submit(request: LlmRequest, events: RequestEvents = {}): void {
    const { phase } = this.#loop;
    const parted = this.#loop.parted ?? this.#ranks?.partedBy ?? null;
    if (parted !== null) {
      const text = `the ranks of this server do not act together any more (${parted.message}); restart all of them`;
      throw new StateError(text, { cause: parted });
    }
    if (phase !== 'open') throw new StateError('the executor is closing; submit to another server');
    validateRequest(request);
    this.#admission.assertFits(request);
    const other = this.#table.transferOf(request)?.request ?? this.#ranks?.offeredAs(request);
    if (other !== undefined)
      throw new ArgumentError(
        `request ${request.id}: its disaggregated id ${requestKey(request)} is that of request ${other.id}; ids are unique among live requests of a server`,
      );
    if (this.#ranks !== null) this.#ranks.submit(request, events);
    else {
      this.#assertReleased(request.id);
      this.#context.added(this.#table.add(request, events, this.#clock.now()));
    }
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
      turns: this.#loop.turns,
      steps: this.#pipeline.launched,
      live: this.#loop.liveCount,
      requestsByState: this.#table.countStates(),
      internalErrors: this.#counters.get(INTERNAL_ERRORS),
      rankGroup: this.#ranks?.stats() ?? null,
    };
  }

  /**
   * Every live request and its state, for an operator who asks what the loop waits for; JSON-serialisable. No tokens.
   * @param options.maxEntries what is left out is counted. Default 100
   */
  dump(options: { readonly maxEntries?: number } = {}): ExecutorDump {
    return executorDump(this.#loop.phase, this.stats(), this.#table, this.#clock.now(), options.maxEntries);
  }

  /**
   * Takes no new requests and lets the live ones end. At the deadline the rest fails with a StateError; a forward that never returns is not
   * waited for: `onFinished` of its requests comes, too, but it may still write their pages, which are given up when it has ended and not
   * before. Do not release the pools while `drained` is false unless the engine has stopped. Idempotent.
   * @param options.deadlineMs time from now; default: no limit
   * @throws ArgumentError, and nothing is closed, when it is no number of milliseconds
   */
  async close(options: { readonly deadlineMs?: number } = {}): Promise<ExecutorCloseReport> {
    if (options.deadlineMs !== undefined) checkDeadline(options.deadlineMs);
    this.#loop.drain();
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
              this.#loop.abort();
              void this.#acted().then(expire);
            },
            { keepAlive: true },
          );
    await Promise.race([this.#ended, expired]);
    timer?.cancel();
    const { liveCount, openCount, failedAtClose } = this.#loop;
    // Those that the loop has begun to fail are counted, whether or not it came to them.
    return { drained: liveCount === 0 && failedAtClose === 0, failed: failedAtClose === 0 ? openCount : failedAtClose };
  }

  /** Several ranks give pages back at different times; they find this out together, when all of them have the request. */
  #assertReleased(id: RequestId): void {
    if (this.#table.byId(id) !== undefined || !this.#cache.isPinned(id)) return;
    throw new ArgumentError(
      `request id ${id} is in use: its former request has ended, and a transfer may still touch its pages; give every request an id of its own`,
    );
  }

  /** The loop ends its requests, thousands in portions, also one that waits for a forward. */
  async #acted(): Promise<void> {
    let left = this.#loop.untoldCount;
    for (;;) {
      await this.#clock.nextTurn();
      await this.#clock.nextTurn();
      const untold = this.#loop.untoldCount;
      if (untold === 0 || untold >= left) return;
      left = untold;
    }
  }

  #joinRanks(
    options: ExecutorOptions,
    parts: {
      readonly table: RequestTable;
      readonly endings: RequestEndings;
      readonly events: EventSink;
      readonly turns: TurnBudget;
    },
  ): RankConsensus | null {
    const { rankGroup: group, clock, cache, transceiver, kvTransferTimeoutMs = TRANSFER_TIMEOUT_MS } = options;
    if (group === undefined || isAlone(options)) return null;
    const { table, endings, events, turns } = parts;
    const ranks = new RankConsensus({
      group,
      clock,
      cache,
      table,
      endings,
      turns,
      transceiver,
      transferTimeoutMs: kvTransferTimeoutMs,
      meanwhile: (work) => this.#loop.meanwhile(work),
      onForwardAgreed: (error) => (this.#pipeline.hasRead ? this.#pipeline.retire(error) : null),
      onArrived: (entry, firstTokens) => this.#generation.arrived(entry, firstTokens),
      onNews: () => this.#wake.raise(),
      onWarning: (message) => events.warning(message),
      onParted: (error) => this.#loop.part(error),
    });
    endings.shareWith(ranks);
    return ranks;
  }
}

function isAlone({ rankGroup }: ExecutorOptions): boolean {
  return rankGroup === undefined || rankGroup.size === 1;
}
