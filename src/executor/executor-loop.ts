import { type KvTransceiverError, ResourceError, StateError } from '../errors.js';
import type { CallbackGuard } from '../session/callback-guard.js';
import type { TurnBudget } from '../turn-budget.js';
import type { CacheAdmission } from './cache-admission.js';
import type { ContextTransfer } from './context-transfer.js';
import type { EventSink } from './executor-events.js';
import type { GenerationTransfer } from './generation-transfer.js';
import type { RankConsensus } from './rank-consensus.js';
import type { LlmRequest } from './request.js';
import type { RequestEndings } from './request-endings.js';
import type { Entry, RequestTable } from './request-table.js';
import { planStep, type SchedulerLimits, type StepPlan } from './scheduler.js';
import type { StepPipeline } from './step-pipeline.js';
import type { TransferOutcomes } from './transfer-outcomes.js';
import type { WakeSignal } from './wake-signal.js';

export interface ExecutorLoopOptions {
  /** Shared by all stages. */
  readonly turns: TurnBudget;
  readonly limits: SchedulerLimits;
  readonly table: RequestTable;
  readonly admission: CacheAdmission;
  readonly endings: RequestEndings;
  readonly context: ContextTransfer;
  readonly generation: GenerationTransfer;
  readonly outcomes: TransferOutcomes;
  readonly pipeline: StepPipeline;
  readonly events: EventSink;
  readonly wake: WakeSignal;
  readonly guard: CallbackGuard;
  /** Null on a server of one rank. */
  readonly ranks: RankConsensus | null;
  readonly housekeepingIntervalMs: number;
}

/** `draining`: live requests end by themselves; `aborting`: what is left fails now. */
export type LoopPhase = 'open' | 'draining' | 'aborting' | 'closed';

/**
 * Role: what happens in each turn, and when there is a next one: outcomes, cancels -> prepare -> schedule -> launch (early prefix, forward)
 *   -> send -> read and retire the oldest step.
 * Threading: gives the event loop a turn after every step and sleeps when nothing can be done.
 * Ordering: whatever the schedule, the oldest step is read when no further one may, or can, be launched; several ranks exchange how it went
 *   before any of it counts. A turn launches at most one step and retires at most one.
 */
export class ExecutorLoop {
  readonly #o: ExecutorLoopOptions;
  #phase: LoopPhase = 'open';
  #turns = 0;
  #failedAtClose = 0;
  #parted: KvTransceiverError | null = null;
  /** Who was stuck at the end of a turn, and of which. */
  #suspect: { readonly request: LlmRequest | null; readonly turn: number } = { request: null, turn: 0 };

  constructor(options: ExecutorLoopOptions) {
    this.#o = options;
  }

  get phase(): LoopPhase {
    return this.#phase;
  }

  get turns(): number {
    return this.#turns;
  }

  get liveCount(): number {
    return this.#o.table.size + (this.#o.ranks?.waitingCount ?? 0);
  }

  /** Live requests that have no outcome; the others wait for a forward to end. */
  get openCount(): number {
    let open = this.#o.ranks?.waitingCount ?? 0;
    for (const { outcome } of this.#o.table.all()) if (outcome === null) open += 1;
    return open;
  }

  /** Live requests whose callers have not heard of their end. */
  get untoldCount(): number {
    let untold = this.#o.ranks?.waitingCount ?? 0;
    for (const { isTold } of this.#o.table.all()) if (!isTold) untold += 1;
    return untold;
  }

  /** Requests that were failed because the executor closed. */
  get failedAtClose(): number {
    return this.#failedAtClose;
  }

  /** Why the ranks do not act together any more; null: they do, or there is one. */
  get parted(): KvTransceiverError | null {
    return this.#parted;
  }

  /**
   * Runs until the loop was told to end and every request has. Never rejects.
   * Most turns find nothing in most stages, which costs some comparisons: only a stage that has something to do is awaited.
   */
  async run(): Promise<void> {
    const { turns, ranks, pipeline, wake, context } = this.#o;
    // Whoever made the executor goes on before the first turn.
    await turns.nextTurn();
    // The first exchange is entered when some rank has a request: the other ranks may start a while later.
    if (ranks !== null) await this.#restTogether(ranks);
    while (!this.#ended()) {
      this.#turns += 1;
      let acted = false;
      try {
        const isOver = this.#mustSettle() && (await this.#settle());
        acted = isOver || (this.#mayPlan() && (await this.#plan()));
      } catch (cause) {
        await this.#recover(cause);
      }
      // What is left to look at of thousands of prompts that wait, or to tell of thousands of news, has the next turn.
      const hasMore = ranks === null ? context.hasUnseen : ranks.hasMore;
      if (acted || !pipeline.isEmpty || hasMore) await turns.nextTurn();
      else if (this.#ended()) break;
      else if (ranks !== null) await this.#restTogether(ranks);
      else {
        await this.#sleep();
        wake.clear();
      }
    }
    // The others must not wait for a rank that is gone.
    if (ranks?.hasParted === false)
      await ranks.cross({ leaving: true }).catch((cause: unknown) => this.#recover(cause));
    this.#phase = 'closed';
  }

  /** A stage must not throw; if one does, every request still gets its one outcome and the loop lives on. */
  async #recover(cause: unknown): Promise<void> {
    await this.#abandonAll(this.#o.guard.caught('the executor loop failed', cause));
    // Also when it fails at once each time: others must have their turn.
    await this.#o.turns.nextTurn();
  }

  /** No new requests come; the loop ends with the last live one. */
  drain(): void {
    if (this.#phase === 'open') this.#phase = 'draining';
    this.#o.wake.raise();
  }

  abort(): void {
    if (this.#phase === 'draining') this.#phase = 'aborting';
    this.#o.wake.raise();
  }

  /** The other ranks are gone, or ran something else: from now on this rank's requests only end. */
  part(error: KvTransceiverError): void {
    const wasOpen = this.#phase === 'open';
    this.#parted = error;
    if (!wasOpen) return;
    this.#phase = 'draining';
    this.#o.events.rankGroupLost(error);
  }

  #ended(): boolean {
    return this.#phase !== 'open' && this.liveCount === 0 && this.#o.pipeline.isEmpty;
  }

  /** Until there may be something to do; before the next look at everything, `wake` is to be cleared. Undefined: now. Never rejects. */
  #sleep(): Promise<void> | undefined {
    const { wake, context, housekeepingIntervalMs } = this.#o;
    try {
      context.activity();
      return wake.isRaised ? undefined : wake.wait(this.liveCount > 0 ? housekeepingIntervalMs : null);
    } catch (cause) {
      return this.#recover(cause);
    }
  }

  /** Several ranks: until there is something to tell or to hear. Never rejects. */
  async #restTogether(ranks: RankConsensus): Promise<void> {
    const { wake, generation, turns } = this.#o;
    try {
      ranks.rest();
      do {
        await this.#sleep();
        wake.clear();
        ranks.look();
        generation.postDelayed();
        if (ranks.hasMore) {
          await turns.nextTurn();
          wake.raise();
        }
      } while (!ranks.mustCross && !this.#ended() && this.#phase !== 'aborting');
    } catch (cause) {
      await this.#recover(cause);
    }
  }

  /** Something has ended or arrived, or is to be ended. Several ranks agree on that in each turn. */
  #mustSettle(): boolean {
    const { ranks, outcomes, generation } = this.#o;
    return ranks !== null || outcomes.look() || generation.hasArrivals || this.#phase === 'aborting';
  }

  /** @returns true when every request has ended: the loop aborts, or the ranks parted */
  async #settle(): Promise<boolean> {
    const { ranks, outcomes, generation, pipeline } = this.#o;
    if (ranks === null) await outcomes.apply();
    else {
      ranks.look();
      if (this.#phase !== 'aborting') await ranks.cross({ leaving: false });
      if (ranks.hasParted) {
        if (this.#parted !== null) await pipeline.abandon(this.#parted);
        return true;
      }
      // Not while the exchange is being applied: a slice that cannot be sent on this rank alone is for the next one.
      if (pipeline.hasUnsent) await pipeline.sendOldest();
    }
    if (generation.hasArrivals) await generation.finishArrivals();
    if (ranks === null && outcomes.hasCancels) await outcomes.cancelPending();
    if (this.#phase !== 'aborting') return false;
    await this.#abort(ranks);
    return true;
  }

  /** There is something to post, to launch or to read. Several ranks plan in each turn, also that there is nothing. */
  #mayPlan(): boolean {
    const { ranks, context, generation, pipeline } = this.#o;
    if (ranks !== null) return true;
    context.prepare();
    return generation.hasWaiting || this.#hasSchedulable || !pipeline.isEmpty;
  }

  /** @returns true when something was launched or ended, so that another turn may find work at once */
  async #plan(): Promise<boolean> {
    const { ranks, pipeline, generation } = this.#o;
    const morePosts = generation.mayPost() && (await generation.postReceives());
    const launched = this.#mayLaunch() && (await this.#launch());
    if (pipeline.isEmpty) return launched || morePosts || this.#failIfStuck();
    if (!pipeline.isFull && launched && (ranks !== null || !pipeline.hasStumbled)) return true;
    const error = await pipeline.read();
    // Several ranks: it is retired by the next turn, when all of them know how it went.
    if (ranks !== null) ranks.computed(error);
    else {
      await pipeline.retire(null);
      if (pipeline.hasUnsent) await pipeline.sendOldest();
    }
    return true;
  }

  /** Every request ends, and its caller hears it. */
  async #failAll(ranks: RankConsensus | null): Promise<KvTransceiverError> {
    this.#failedAtClose += this.openCount;
    const error = new StateError('the executor was closed before the request ended');
    if (ranks?.hasParted === false) await ranks.leave(error);
    await this.#abandonAll(error, { tell: true });
    return error;
  }

  async #abort(ranks: RankConsensus | null): Promise<void> {
    await this.#o.pipeline.abandon(await this.#failAll(ranks));
  }

  /**
   * Waits for what is not in the loop's hands: the engine, or the other ranks, which may never answer. Meanwhile the requests end that no forward
   * touches, if the transceiver or their users say so (several ranks agree on that, and have to wait), and all of them once the loop aborts.
   */
  async meanwhile<T>(work: Promise<T>): Promise<T> {
    const { wake, outcomes, turns, housekeepingIntervalMs } = this.#o;
    let isOver = false;
    const end = (): void => {
      isOver = true;
    };
    const over = work.then(end, end);
    let wasRaised = false;
    while (!isOver) {
      if (!wake.isRaised) {
        // What cannot be cancelled yet is asked again, as by a loop that sleeps.
        await Promise.race([over, wake.wait(outcomes.hasCancels ? housekeepingIntervalMs : null)]);
        wake.stopWaiting();
        if (isOver) break;
      }
      wasRaised ||= wake.isRaised;
      wake.clear();
      await this.#endUntouched();
      if (wake.isRaised) await Promise.race([over, turns.nextTurn()]);
    }
    // Whatever else it was raised for is looked at by the loop.
    if (wasRaised) wake.raise();
    return work;
  }

  async #endUntouched(): Promise<void> {
    const { ranks, outcomes, generation } = this.#o;
    try {
      if (this.#phase === 'aborting') {
        if (this.untoldCount > 0) await this.#failAll(ranks);
      } else if (ranks === null && outcomes.look()) {
        await outcomes.apply(isUntouched);
        if (generation.hasArrivals) await generation.finishArrivals();
        await outcomes.cancelPending(isUntouched);
      }
    } catch (cause) {
      await this.#recover(cause);
    }
  }

  get #hasSchedulable(): boolean {
    const { table } = this.#o;
    return table.in('GENERATION_IN_PROGRESS').size + table.in('CONTEXT_INIT').size > 0;
  }

  #mayLaunch(): boolean {
    const { ranks, pipeline } = this.#o;
    // Several ranks do not know of each other's until they exchange how the step went, and must go on alike.
    if (pipeline.isFull || (ranks === null && pipeline.hasStumbled)) return false;
    if (this.#hasSchedulable) return true;
    ranks?.planned(NOTHING_PLANNED);
    return false;
  }

  /** @returns true when a step was launched, or came to nothing because what it had ended */
  async #launch(): Promise<boolean> {
    const { turns, limits, table, admission, ranks, pipeline, context } = this.#o;
    const [decode, prefill] = [table.in('GENERATION_IN_PROGRESS'), table.in('CONTEXT_INIT')];
    const plan = await planStep(limits, requestsOf(decode), requestsOf(prefill), admission, turns);
    ranks?.planned(plan);
    for (const request of plan.held) {
      const entry = table.find(request);
      // Before its first forward, and before the pages that it waits for are there.
      if (entry !== undefined && request.chunkEnd === request.prepopulatedLen) context.sendEarlyPrefix(entry);
    }
    if (plan.context.length + plan.generation.length === 0) return false;
    await pipeline.launch(plan);
    return true;
  }

  /**
   * Somebody lacks blocks and nobody is left who could give any back: waiting would never end. It asks once more before it fails: what held the
   * blocks may have ended in this turn, after it had asked.
   * @returns true when another turn may change something
   */
  #failIfStuck(): boolean {
    const { admission, table, endings } = this.#o;
    const request = admission.stuck;
    const suspect = this.#suspect;
    this.#suspect = { request, turn: this.#turns };
    const entry = request === null ? undefined : table.find(request);
    if (entry === undefined || entry.outcome !== null) return false;
    if (suspect.request !== request || suspect.turn !== this.#turns - 1) return true;
    endings.abandon(entry, lacksBlocks(entry.request));
    return true;
  }

  /** In portions: thousands that end at once must not hold up the event loop. */
  async #abandonAll(error: KvTransceiverError, { tell = false } = {}): Promise<void> {
    const { table, endings, guard } = this.#o;
    const turns = this.#o.turns.begun();
    // Whoever comes while a portion waits is not meant.
    for (const entry of [...table.all()]) {
      if (turns.isSpent()) await turns.nextTurn();
      const { id } = entry.request;
      const refused = guard.run(`the end of request ${id}`, () => endings.abandon(entry, error));
      // The transceiver refused to cancel; the outcome must come all the same.
      if (refused !== null) guard.run(`the failure of request ${id}`, () => endings.fail(entry, refused));
      // Not once its forward has ended: it may never.
      if (tell) endings.tell(entry);
    }
  }
}

function lacksBlocks({ id, state, promptTokens, outputTokens }: LlmRequest): ResourceError {
  const isDecode = state === 'GENERATION_IN_PROGRESS';
  const what = isDecode ? `token ${outputTokens.length + 1}` : `its prompt of ${promptTokens.length} tokens`;
  return new ResourceError(
    `request ${id}: no blocks for ${what} although no request is left that could give any back; enlarge the pool, or shorten the prompt or maxTokens`,
  );
}

function isUntouched({ stepsInFlight }: Entry): boolean {
  return stepsInFlight === 0;
}

const NOTHING_PLANNED: StepPlan = { context: [], generation: [], held: [] };

const NO_REQUESTS: readonly LlmRequest[] = [];

/** Most steps have prompts or decodes, not both. */
function requestsOf(entries: ReadonlySet<Entry>): Iterable<LlmRequest> {
  return entries.size === 0 ? NO_REQUESTS : wanted(entries);
}

function* wanted(entries: ReadonlySet<Entry>): Iterable<LlmRequest> {
  for (const entry of entries) if (!entry.request.cancelRequested) yield entry.request;
}
