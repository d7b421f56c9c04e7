import type { RequestId } from '../cache/kv-cache-manager.js';
import {
  MAX_FIRST_TOKENS,
  newsLimit,
  type OfferedRequest,
  type RankEnding,
  type RankReport,
  type StepCheck,
} from '../rank-group/rank-report.js';

/** Of each kind in one report: what is agreed on in an exchange takes effect in one turn of the event loop. */
const NEWS_PER_STEP = 64;

/** Role: what this rank has to tell the others, each once, in the order it happened. */
export class RankOutbox {
  readonly #offered: OfferedRequest[] = [];
  readonly #cancelled: RequestId[] = [];
  readonly #ready: RequestId[] = [];
  readonly #ended: RankEnding[] = [];
  readonly #drained: RequestId[] = [];
  readonly #limit: number;
  #step = 0;

  constructor(size: number) {
    this.#limit = Math.min(NEWS_PER_STEP, newsLimit(size));
  }

  get isEmpty(): boolean {
    const { length } = this.#offered;
    return length + this.#cancelled.length + this.#ready.length + this.#ended.length + this.#drained.length === 0;
  }

  offer(request: OfferedRequest): void {
    this.#offered.push(request);
  }

  cancel(id: RequestId): void {
    this.#cancelled.push(id);
  }

  ready(id: RequestId): void {
    this.#ready.push(id);
  }

  completed(id: RequestId, firstTokens: readonly number[]): void {
    this.#ended.push({
      id,
      outcome: 'completed',
      firstTokens: firstTokens.slice(0, MAX_FIRST_TOKENS),
      code: '',
      message: '',
    });
  }

  ended(
    id: RequestId,
    outcome: 'failed' | 'cancelled',
    error: { readonly code: string; readonly message: string },
  ): void {
    this.#ended.push({ id, outcome, firstTokens: [], code: error.code, message: error.message });
  }

  drained(id: RequestId): void {
    this.#drained.push(id);
  }

  /** The next report. What exceeds its bounds stays for the one after. */
  take(
    check: StepCheck,
    { afterRest, leaving, forwardError }: Pick<RankReport, 'afterRest' | 'leaving' | 'forwardError'>,
  ): RankReport {
    this.#step += 1;
    return {
      step: this.#step,
      afterRest,
      leaving,
      forwardError,
      check,
      offered: oldest(this.#offered, this.#limit),
      cancelled: oldest(this.#cancelled, this.#limit),
      ready: oldest(this.#ready, this.#limit),
      ended: oldest(this.#ended, this.#limit),
      drained: oldest(this.#drained, this.#limit),
    };
  }
}

/** Takes them out of the list. Most reports have nothing to tell, and share one list that says so. */
function oldest<T>(list: T[], limit: number): readonly T[] {
  return list.length === 0 ? NONE : list.splice(0, limit);
}

const NONE: readonly never[] = Object.freeze([]);
