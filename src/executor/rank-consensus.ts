import type { KvCacheManager, RequestId } from '../cache/kv-cache-manager.js';
import type { Clock } from '../clock.js';
import {
  ArgumentError,
  ConfigError,
  type KvTransceiverError,
  StateError,
  TransferCancelledError,
  TransferTimeoutError,
} from '../errors.js';
import type { RankGroup } from '../rank-group/rank-group.js';
import type { RankEnding, RankError, RankReport } from '../rank-group/rank-report.js';
import { RankSet } from '../rank-group/rank-set.js';
import { remoteError } from '../rank-group/remote-error.js';
import type { CacheTransceiver, Settled } from '../session/cache-transceiver.js';
import type { TransferLedger } from '../session/transfer-ledger.js';
import type { TurnBudget } from '../turn-budget.js';
import { POLLS_PER_TURN } from './context-transfer.js';
import type { RequestEvents } from './executor-events.js';
import type { Meanwhile } from './forward-stage.js';
import { RankOffers, type TakenOffer } from './rank-offers.js';
import { RankOutbox } from './rank-outbox.js';
import type { LlmRequest } from './request.js';
import { requestDigest } from './request-digest.js';
import type { RequestEndings } from './request-endings.js';
import type { Entry, RequestTable } from './request-table.js';
import { ScheduleCheck } from './schedule-check.js';
import { typedError } from './typed-error.js';

/** How often waits for other ranks are looked at. */
const SWEEP_INTERVAL_MS = 100;

/** What several ranks have counted; all zero on a server of one. */
export interface RankGroupStats {
  readonly exchanges: number;
  /** Requests that some rank never got, given up by this one. */
  readonly requestsNotShared: number;
  /** Transfers that were done here and never on some other rank. */
  readonly transfersNotShared: number;
}

export interface RankConsensusOptions {
  readonly group: RankGroup;
  readonly clock: Clock;
  readonly cache: KvCacheManager;
  readonly table: RequestTable;
  readonly endings: RequestEndings;
  readonly turns: TurnBudget;
  readonly transceiver: CacheTransceiver;
  /** A rank that never learns of something holds the others for twice this. */
  readonly transferTimeoutMs: number;
  /** The other ranks may not come to an exchange. */
  readonly meanwhile: Meanwhile;
  /**
   * Every rank has ended its last forward: before anything else of this exchange takes effect. With an error it failed on some rank, and
   * counts on none. Null: there was none, or it takes no time.
   */
  readonly onForwardAgreed: (error: KvTransceiverError | null) => Promise<void> | null;
  /** A transfer completed on every rank; the tokens that came with it are the same on all. */
  readonly onArrived: (entry: Entry, firstTokens: readonly number[]) => void;
  /** Called when there is something to tell. */
  readonly onNews: () => void;
  readonly onWarning: (message: string) => void;
  /** The ranks do not act alike any more; every request has ended. Null: a rank left because its server closes. */
  readonly onParted: (error: KvTransceiverError) => void;
}

/** What the ranks said of one request that all have taken. */
interface Verdicts {
  readonly ready: RankSet;
  readonly completed: RankSet;
  readonly drained: RankSet;
  firstTokens: readonly number[];
  userCancelled: boolean;
  failure: { readonly rank: number; readonly ending: RankEnding } | null;
  /** This rank's own word, which it gives once. */
  saidEnded: boolean;
  saidDrained: boolean;
  ownError: KvTransceiverError | null;
  /** When this rank said that its transfer is complete. */
  completedAtMs: number | null;
  hasEnded: boolean;
}

/**
 * Role: makes the ranks of an instance act alike: what one rank sees (requests, cancels, outcomes, drained pages) changes nothing until
 *   all ranks have it, and then on all of them at the same step.
 * Why: free pages, and with them schedules and page tables, stay identical on all ranks only if every change of them has one place in the
 *   order of steps.
 * Ownership: pages of a request are shared in the ledger from before its first transfer until every rank has drained.
 * Ordering: `look` collects; `cross` exchanges and applies in rank order; nothing else decides. A request is cancelled or failed when any
 *   rank says so; completed, schedulable, released when all do. What a forward computed counts when it went well on all.
 */
export class RankConsensus {
  readonly #o: RankConsensusOptions;
  readonly #ledger: TransferLedger;
  readonly #outbox: RankOutbox;
  readonly #offers: RankOffers;
  readonly #verdicts = new Map<RequestId, Verdicts>();
  readonly #check: ScheduleCheck;
  /** Generation first: receivers have not all asked this rank. */
  readonly #unready = new Set<Entry>();
  #cursor: Iterator<Entry> | null = null;
  #isCut = false;
  #isDue = false;
  readonly #awaitingOthers = new Set<RequestId>();
  readonly #cancelled = new Set<RequestId>();
  #state: 'together' | 'applying' | 'parted' = 'together';
  #partedBy: KvTransceiverError | null = null;
  #rested = false;
  #isCrossing = false;
  /** What this rank has to tell the others once the exchange is over in which it left. */
  #farewell: RankReport | null = null;
  /** Why the last forward of this rank failed. */
  #forwardError: KvTransceiverError | null = null;
  #nextSweepMs = 0;
  #exchanges = 0;
  #requestsNotShared = 0;
  #transfersNotShared = 0;

  /** @throws ConfigError when the transceiver does not let its ledger be shared, or the cache manager has a host tier */
  constructor(options: RankConsensusOptions) {
    this.#o = options;
    const { group, transceiver, cache } = options;
    if (transceiver.ledger === undefined) {
      throw new ConfigError(
        `a rank group of ${group.size} ranks needs a transceiver with a ledger (KvCacheTransceiver has one): pages are freed when all ranks have drained`,
      );
    }
    if (cache.layerGroups.some(({ hostSlotCount = 0 }) => hostSlotCount > 0)) {
      throw new ConfigError(
        `a rank group of ${group.size} ranks cannot have a host tier: its pages are ready at another time on each rank, so that prefix hits would differ; set hostSlotCount to 0`,
      );
    }
    this.#ledger = transceiver.ledger;
    this.#outbox = new RankOutbox(group.size);
    this.#offers = new RankOffers(group.rank, group.size);
    this.#check = new ScheduleCheck(cache);
    this.#ledger.onDrained((id) => this.#onDrained(id));
    group.onAwaited(() => options.onNews());
  }

  /** Requests handed to this rank that are not taken by all. */
  get waitingCount(): number {
    return this.#offers.ownCount;
  }

  /** The exchange has to be entered: there is news here or on another rank. */
  get mustCross(): boolean {
    return this.#state !== 'parted' && (!this.#outbox.isEmpty || this.#o.group.isAwaited);
  }

  /** Why the ranks do not act together any more, from the moment on in which that is known. */
  get partedBy(): KvTransceiverError | null {
    return this.#partedBy;
  }

  get hasParted(): boolean {
    return this.#state === 'parted';
  }

  stats(): RankGroupStats {
    return {
      exchanges: this.#exchanges,
      requestsNotShared: this.#requestsNotShared,
      transfersNotShared: this.#transfersNotShared,
    };
  }

  /** The request that waits here for the other ranks and has the same role and disaggregated id. */
  offeredAs(request: LlmRequest): LlmRequest | undefined {
    return this.#offers.ownAs(request);
  }

  /** @throws ArgumentError when the id is in use */
  submit(request: LlmRequest, events: RequestEvents): void {
    const { id } = request;
    if (this.#offers.hasOwn(id) || this.#o.table.byId(id) !== undefined) {
      throw new ArgumentError(`request id ${id} is in use; ids are unique among live requests of a server`);
    }
    this.#offers.own(id, { request, events, sinceMs: this.#o.clock.now() });
    this.#outbox.offer({ id, digest: requestDigest(request) });
  }

  /** @returns false when there is nothing to cancel */
  cancel(id: RequestId): boolean {
    const entry = this.#o.table.byId(id);
    const isLive = this.#offers.hasOwn(id) || (entry !== undefined && entry.outcome === null);
    if (!isLive || this.#cancelled.has(id)) return false;
    this.#cancelled.add(id);
    this.#outbox.cancel(id);
    return true;
  }

  /**
   * This rank cannot go on with a request. The request goes on until all ranks know, at the next step: they must run the same batches.
   * @returns false when the failure is decided here and now
   */
  defersFailure(entry: Entry, error: KvTransceiverError): boolean {
    if (this.#state !== 'together') return false;
    this.#sayEnded(entry.request.id, 'failed', error);
    return true;
  }

  /** Before a transfer may touch the pages; at the same step on all ranks. */
  share(request: LlmRequest): void {
    if (this.#state !== 'parted') this.#ledger.share(request.id, request.promptTokens.length);
  }

  /** The request ended here. Where no transfer holds its pages, nothing is left to drain. */
  ended(entry: Entry): void {
    const { id } = entry.request;
    const verdicts = this.#verdicts.get(id);
    this.#unready.delete(entry);
    this.#awaitingOthers.delete(id);
    this.#cancelled.delete(id);
    if (verdicts === undefined) return;
    verdicts.hasEnded = true;
    if (!this.#ledger.isShared(id)) this.#verdicts.delete(id);
    else if (!this.#ledger.holds(id)) this.#onDrained(id);
  }

  planned(plan: Parameters<ScheduleCheck['planned']>[0]): void {
    this.#check.planned(plan);
  }

  receivesPlanned(requests: readonly LlmRequest[]): void {
    this.#check.receivesPlanned(requests);
  }

  /** The last forward of this rank has ended: the others hear how. */
  computed(error: KvTransceiverError | null): void {
    this.#forwardError = error;
  }

  /** The loop is about to sleep: whoever wakes it has to wake the others too. */
  rest(): void {
    this.#rested = true;
    this.#isDue = true;
  }

  /** Collects what happened here. Changes nothing that a schedule depends on. */
  look(): void {
    if (this.#state === 'parted') return;
    const { transceiver, table, clock } = this.#o;
    for (const settled of transceiver.takeSettled()) {
      const entry = table.find(settled.request);
      if (entry !== undefined && entry.outcome === null) this.#noteSettled(settled);
    }
    this.#pollUnready();
    if (clock.now() >= this.#nextSweepMs) this.#sweep();
  }

  /** Receivers may have asked since the last look. */
  activity(): void {
    this.#isDue = true;
  }

  /** The last look left prompts to look at, or the last report news to tell, so that others should come soon, but not in this turn. */
  get hasMore(): boolean {
    // Ranks that parted look at nothing and tell nothing any more.
    return this.#state !== 'parted' && (this.#cursor !== null || this.#isCut);
  }

  #pollUnready(): void {
    if (this.#cursor === null && this.#isDue) {
      this.#isDue = false;
      this.#cursor = this.#unready.values();
    }
    for (let polls = 0; this.#cursor !== null && polls < POLLS_PER_TURN; polls++) {
      const next = this.#cursor.next();
      if (next.done === true) this.#cursor = null;
      else if (this.#isReady(next.value)) this.#unready.delete(next.value);
    }
  }

  /** Or failed: it is not asked about any more. */
  #isReady(entry: Entry): boolean {
    try {
      if (!this.#o.transceiver.receiverReady(entry.request)) return false;
      this.#outbox.ready(entry.request.id);
    } catch (error) {
      this.defersFailure(entry, typedError(error, 'receiverReady failed'));
    }
    return true;
  }

  /** One exchange: what is agreed takes effect, in the same order on every rank. When the ranks part, every request has ended after it. */
  async cross(options: { readonly leaving: boolean }): Promise<void> {
    const report = this.#outbox.take(this.#check.snapshot(this.#o.table.size), {
      afterRest: this.#rested,
      leaving: options.leaving,
      forwardError: this.#forwardError,
    });
    this.#isCut = !this.#outbox.isEmpty;
    this.#rested = false;
    let reports: readonly RankReport[];
    this.#isCrossing = true;
    try {
      reports = await this.#o.meanwhile(this.#o.group.exchange(report));
    } catch (error) {
      await this.part(typedError(error, 'the exchange between the ranks failed'));
      return;
    } finally {
      this.#isCrossing = false;
    }
    if (this.#farewell !== null) {
      this.#sayFarewell(this.#farewell);
      return;
    }
    this.#exchanges += 1;
    try {
      const forwardError = this.#agreedError(reports);
      // A failure that all know of takes effect now; what goes wrong on this rank alone is for the next exchange.
      if (forwardError !== null) this.#state = 'applying';
      const retiring = this.#o.onForwardAgreed(forwardError);
      if (retiring !== null) await retiring;
      this.#state = 'applying';
      this.#apply(reports);
    } catch (error) {
      // What was applied of it is not known, so this rank may differ from the others now.
      const cause = typedError(error, 'what the ranks agreed on could not be applied');
      // This rank has nothing to do with the others any more, whatever comes of it.
      this.#o.group.close(cause.message).catch(() => {});
      await this.part(cause);
      return;
    }
    this.#state = 'together';
    if (reports.some(({ leaving }) => leaving)) {
      const left = reports.flatMap(({ leaving }, rank) => (leaving ? [rank] : []));
      await this.part(
        new StateError(`the executor of rank ${left.join(', ')} was closed, which ends the instance on all ranks`),
      );
    }
  }

  /** This rank closes before its requests ended: they end here now, on the others as soon as they hear of it. */
  async leave(error: KvTransceiverError): Promise<void> {
    const last = this.#outbox.take(this.#check.snapshot(this.#o.table.size), {
      afterRest: true,
      leaving: true,
      // Nor does a step count that the others have run: its requests have failed here.
      forwardError: error,
    });
    await this.part(error);
    // The exchange that it is in comes first.
    if (this.#isCrossing) this.#farewell = last;
    else this.#sayFarewell(last);
  }

  #sayFarewell(last: RankReport): void {
    // Not waited for: the others may hang, and this rank has nothing to do with them any more.
    this.#o.group.exchange(last).catch(() => {});
  }

  /** From now on this rank stands alone: its requests end, in portions, and its pages are freed as its own transfers drain. */
  async part(error: KvTransceiverError): Promise<void> {
    if (this.#state === 'parted') return;
    const { table, endings } = this.#o;
    const turns = this.#o.turns.begun();
    this.#state = 'parted';
    this.#partedBy = error;
    this.#ledger.onDrained(null);
    const entries = [...table.all()];
    const waiting = this.#offers.giveUp().map(({ request, events }) => table.add(request, events, 0));
    for (const entry of [...waiting, ...entries]) {
      if (turns.isSpent()) await turns.nextTurn();
      try {
        endings.abandon(entry, error);
      } catch (cause) {
        endings.fail(entry, typedError(cause, error.message));
      }
    }
    for (const id of this.#verdicts.keys()) {
      if (turns.isSpentBySmall()) await turns.nextTurn();
      this.#ledger.unshare(id);
    }
    this.#verdicts.clear();
    this.#o.onParted(error);
  }

  /** Of the first rank whose forward failed. */
  #agreedError(reports: readonly RankReport[]): KvTransceiverError | null {
    const own = this.#forwardError;
    this.#forwardError = null;
    const rank = reports.findIndex(({ forwardError }) => forwardError !== null);
    if (rank === -1) return null;
    return rank === this.#o.group.rank ? own : errorOn(rank, reports[rank]?.forwardError as RankError);
  }

  #apply(reports: readonly RankReport[]): void {
    const news: { readonly rank: number; readonly report: RankReport }[] = [];
    reports.forEach((report, rank) => {
      if (hasNews(report)) news.push({ rank, report });
    });
    if (news.length === 0) return;
    const changed = new Set<RequestId>();
    for (const { rank, report } of news) for (const offer of report.offered) this.#offers.offered(rank, offer);
    for (const { rank, report } of news) {
      for (const id of report.drained) this.#drainedOn(rank, id);
      for (const id of report.ready) this.#verdicts.get(id)?.ready.add(rank);
      for (const ending of report.ended) this.#endedOn(rank, ending, changed);
    }
    for (const { report } of news) {
      for (const id of report.cancelled) {
        const verdicts = this.#verdicts.get(id);
        if (verdicts === undefined) this.#offers.end(id, { error: null });
        else {
          verdicts.userCancelled = true;
          changed.add(id);
        }
      }
    }
    for (const id of changed) this.#decide(id);
    for (const { report } of news) for (const id of report.ready) this.#schedulable(id);
    for (const taken of this.#offers.take()) {
      if (taken.end === null) this.#take(taken);
      else this.#end(taken);
    }
  }

  #endedOn(rank: number, ending: RankEnding, changed: Set<RequestId>): void {
    const verdicts = this.#verdicts.get(ending.id);
    if (verdicts === undefined) {
      if (ending.outcome !== 'completed') this.#offers.end(ending.id, { error: errorOn(rank, ending) });
      return;
    }
    if (ending.outcome === 'completed') {
      verdicts.completed.add(rank);
      if (verdicts.firstTokens.length === 0) verdicts.firstTokens = ending.firstTokens;
    } else verdicts.failure ??= { rank, ending };
    changed.add(ending.id);
  }

  #decide(id: RequestId): void {
    const verdicts = this.#verdicts.get(id);
    const entry = this.#o.table.byId(id);
    if (verdicts === undefined || entry === undefined || entry.outcome !== null) return;
    const { endings } = this.#o;
    const { userCancelled, completed, failure } = verdicts;
    if (completed.isFull && entry.role === 'context') endings.complete(entry);
    else if (userCancelled) {
      entry.request.cancelRequested = true;
      if (entry.role !== 'aggregate') endings.tellOther(entry, 'cancelled by its user');
      endings.cancel(entry);
    } else if (failure !== null) {
      const isOwn = failure.rank === this.#o.group.rank && verdicts.ownError !== null;
      endings.abandon(entry, isOwn ? (verdicts.ownError as KvTransceiverError) : errorOn(failure.rank, failure.ending));
    } else if (completed.isFull) {
      this.#awaitingOthers.delete(id);
      try {
        this.#o.onArrived(entry, verdicts.firstTokens);
      } catch (error) {
        endings.fail(entry, typedError(error, `transfer of request ${id}`));
      }
    }
  }

  #schedulable(id: RequestId): void {
    const entry = this.#o.table.byId(id);
    if (entry?.request.state !== 'DISAGG_CONTEXT_WAIT_SCHEDULER') return;
    if (this.#verdicts.get(id)?.ready.isFull === true) this.#o.table.advance(entry, 'receivers_ready');
  }

  #take({ own: { request, events, sinceMs } }: TakenOffer): void {
    const { table, endings, group } = this.#o;
    const entry = table.add(request, events, sinceMs);
    if (this.#verdicts.has(request.id)) {
      // Known to all ranks alike: the id's former request has pages that are not drained everywhere.
      endings.fail(
        entry,
        new ArgumentError(`request id ${request.id} was used again before its pages were drained on all ranks`),
      );
      return;
    }
    const { size } = group;
    this.#verdicts.set(request.id, {
      ready: new RankSet(size),
      completed: new RankSet(size),
      drained: new RankSet(size),
      firstTokens: [],
      userCancelled: false,
      failure: null,
      saidEnded: false,
      saidDrained: false,
      ownError: null,
      completedAtMs: null,
      hasEnded: false,
    });
    if (request.state !== 'DISAGG_CONTEXT_WAIT_SCHEDULER') return;
    this.#unready.add(entry);
    this.#isDue = true;
  }

  /** A request that ends without having been taken. */
  #end({ own: { request, events, sinceMs }, end }: TakenOffer): void {
    const { table, endings } = this.#o;
    const entry = table.add(request, events, sinceMs);
    this.#cancelled.delete(request.id);
    if (end === null || end.error === null) {
      request.cancelRequested = true;
      if (entry.role !== 'aggregate') endings.tellOther(entry, 'cancelled by its user');
      endings.cancel(entry);
    } else endings.abandon(entry, end.error);
  }

  #drainedOn(rank: number, id: RequestId): void {
    const verdicts = this.#verdicts.get(id);
    if (verdicts === undefined) return;
    verdicts.drained.add(rank);
    if (!verdicts.drained.isFull) return;
    this.#ledger.unshare(id);
    if (verdicts.hasEnded) this.#verdicts.delete(id);
  }

  #onDrained(id: RequestId): void {
    const verdicts = this.#verdicts.get(id);
    if (verdicts === undefined || verdicts.saidDrained) return;
    verdicts.saidDrained = true;
    this.#outbox.drained(id);
    this.#o.onNews();
  }

  #noteSettled({ request, outcome, error, firstTokens }: Settled): void {
    const { id } = request;
    const verdicts = this.#verdicts.get(id);
    if (verdicts === undefined || verdicts.saidEnded) return;
    if (outcome !== 'completed') {
      this.#sayEnded(id, outcome, error ?? new TransferCancelledError(`transfer ${outcome} without a reason`));
      return;
    }
    verdicts.saidEnded = true;
    verdicts.completedAtMs = this.#o.clock.now();
    this.#awaitingOthers.add(id);
    this.#outbox.completed(id, firstTokens);
  }

  #sayEnded(id: RequestId, outcome: 'failed' | 'cancelled', error: KvTransceiverError): void {
    const verdicts = this.#verdicts.get(id);
    if (verdicts === undefined || verdicts.ownError !== null) return;
    verdicts.saidEnded = true;
    verdicts.ownError = error;
    this.#outbox.ended(id, outcome, error);
    this.#o.onNews();
  }

  /** What other ranks never learn of must not be held for ever. */
  #sweep(): void {
    const { clock, transferTimeoutMs, onWarning } = this.#o;
    const now = clock.now();
    this.#nextSweepMs = now + SWEEP_INTERVAL_MS;
    const limitMs = 2 * transferTimeoutMs;
    for (const { id, missing } of this.#offers.overdue(now - limitMs)) {
      if (this.#cancelled.has(id)) continue;
      // Not asked again while the end is on its way.
      this.#cancelled.add(id);
      const text = `request ${id}: ${missing} did not get it within ${limitMs} ms (twice kvTransferTimeoutMs); submit every request to all ranks`;
      this.#requestsNotShared += 1;
      onWarning(text);
      this.#outbox.ended(id, 'failed', new TransferTimeoutError(text));
    }
    for (const id of this.#awaitingOthers) {
      const verdicts = this.#verdicts.get(id);
      if (verdicts === undefined || now - (verdicts.completedAtMs ?? now) < limitMs) continue;
      this.#awaitingOthers.delete(id);
      const missing = verdicts.completed.describeMissing();
      const text = `request ${id}: its transfer is complete here, and was not on ${missing} within ${limitMs} ms more (twice kvTransferTimeoutMs)`;
      this.#transfersNotShared += 1;
      onWarning(text);
      this.#sayEnded(id, 'failed', new TransferTimeoutError(text));
    }
  }
}

/** Most steps have none: what they computed is all there is to agree on. */
function hasNews({ offered, cancelled, ready, ended, drained }: RankReport): boolean {
  return offered.length + cancelled.length + ready.length + ended.length + drained.length > 0;
}

function errorOn(rank: number, { code, message }: RankError): KvTransceiverError {
  return remoteError(code, `rank ${rank}: ${message}`);
}
