import { InternalError } from '../errors.js';
import type { CacheTransceiver, Settled } from '../session/cache-transceiver.js';
import type { TurnBudget } from '../turn-budget.js';
import type { CacheAdmission } from './cache-admission.js';
import type { GenerationTransfer } from './generation-transfer.js';
import { isAwaited, type RequestEndings } from './request-endings.js';
import type { Entry, RequestTable } from './request-table.js';
import { typedError } from './typed-error.js';

export interface TransferOutcomesOptions {
  readonly turns: TurnBudget;
  readonly table: RequestTable;
  readonly admission: CacheAdmission;
  readonly transceiver: CacheTransceiver;
  readonly endings: RequestEndings;
  readonly generation: GenerationTransfer;
}

/** Role: on a server of one rank, what settled transfers and users' cancels do to requests. Several ranks agree on it: `RankConsensus`. */
export class TransferOutcomes {
  readonly #o: TransferOutcomesOptions;
  #settled: readonly Settled[] = [];

  constructor(options: TransferOutcomesOptions) {
    this.#o = options;
  }

  /** Collects what settled. @returns false when there is nothing to do for `apply` and `cancelPending` */
  look(): boolean {
    const settled = this.#o.transceiver.takeSettled();
    this.#settled = this.#settled.length === 0 ? settled : [...this.#settled, ...settled];
    return this.#settled.length > 0 || this.hasCancels;
  }

  /**
   * In portions: thousands that end at once must not hold up the event loop.
   * @param isMeant the others are left for the next call
   */
  async apply(isMeant: (entry: Entry) => boolean = () => true): Promise<void> {
    const { turns, table, endings } = this.#o;
    const news = this.#settled;
    this.#settled = [];
    const left: Settled[] = [];
    for (const settled of news) {
      if (turns.isSpentBySmall()) await turns.nextTurn();
      const entry = table.find(settled.request);
      // An ended request: its outcome was decided here, and the ledger alone says when its pages are free.
      if (entry === undefined || entry.outcome !== null) continue;
      if (!isMeant(entry)) {
        left.push(settled);
        continue;
      }
      try {
        this.#settle(entry, settled);
      } catch (error) {
        endings.fail(entry, typedError(error, `transfer of request ${settled.request.id}`));
      }
    }
    this.#settled = left;
  }

  /** There are cancels that could not take effect yet. */
  get hasCancels(): boolean {
    return this.#o.table.cancelling.size > 0;
  }

  /** Asks again for each of them that is meant; in portions, too. */
  async cancelPending(isMeant: (entry: Entry) => boolean = () => true): Promise<void> {
    const { turns, table, admission, transceiver, endings } = this.#o;
    for (const entry of table.cancelling) {
      if (turns.isSpentBySmall()) await turns.nextTurn();
      if (entry.outcome !== null || !isMeant(entry)) continue;
      admission.leaveLine(entry.request);
      try {
        const ended = !isAwaited(entry) || transceiver.cancelRequest(entry.request, 'cancelled by its user');
        if (ended) endings.cancel(entry);
      } catch (error) {
        endings.fail(entry, typedError(error, 'cancelRequest failed'));
      }
    }
  }

  #settle(entry: Entry, settled: Settled): void {
    const { endings, generation } = this.#o;
    const byUser = entry.request.cancelRequested;
    if (settled.outcome === 'completed') {
      if (settled.side === 'context') endings.complete(entry);
      else if (byUser) endings.cancel(entry);
      else generation.arrived(entry, settled.firstTokens);
    } else if (settled.outcome === 'cancelled' && byUser) {
      endings.cancel(entry);
    } else {
      // A cancel that is not ours is the peer's, and that is an error.
      const error = settled.error ?? new InternalError(`transfer ${settled.outcome} without a reason`);
      endings.fail(entry, error);
    }
  }
}
