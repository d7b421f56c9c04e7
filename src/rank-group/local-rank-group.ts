import { type Clock, SystemClock, type Timer } from '../clock.js';
import { ArgumentError, type KvTransceiverError, PeerLostError, StateError, TransferTimeoutError } from '../errors.js';
import { CallbackGuard } from '../session/callback-guard.js';
import { Counters } from '../session/counters.js';
import { disagreement } from './disagreement.js';
import type { RankGroup } from './rank-group.js';
import type { RankReport } from './rank-report.js';
import { RankSet } from './rank-set.js';

/** Bounds of an in-process group. */
export interface LocalRankGroupOptions {
  /** With `exchangeTimeoutMs`: bounds how long a rank waits for the others. Default: no bound, for all ranks live and die together. */
  readonly clock?: Clock;
  /** Default 60000. Only with `clock`. */
  readonly exchangeTimeoutMs?: number;
  /** Something an operator should see. Default: a process warning. */
  readonly onWarning?: (message: string) => void;
}

/**
 * Several ranks in one process: benches and tests.
 *
 * @example
 * const ranks = LocalRankGroup.of(4)
 * const executors = ranks.map((rankGroup, rank) => new Executor({ ...partsOf(rank), rankGroup }))
 */
export class LocalRankGroup implements RankGroup {
  readonly rank: number;
  readonly #meeting: Meeting;

  /** @throws ArgumentError for a size that is no positive integer */
  static of(size: number, options: LocalRankGroupOptions = {}): readonly LocalRankGroup[] {
    if (!Number.isSafeInteger(size) || size < 1) {
      throw new ArgumentError(`a rank group has ${size} ranks; it must be an integer of at least 1`);
    }
    const meeting = new Meeting(size, options);
    return Array.from({ length: size }, (_, rank) => new LocalRankGroup(rank, meeting));
  }

  private constructor(rank: number, meeting: Meeting) {
    this.rank = rank;
    this.#meeting = meeting;
  }

  get size(): number {
    return this.#meeting.size;
  }

  get isAwaited(): boolean {
    return this.#meeting.awaits(this.rank);
  }

  /** What went wrong behind its timer, or in a rank's listener. */
  get counts(): Readonly<Record<string, number>> {
    return this.#meeting.counters.snapshot();
  }

  exchange(report: RankReport): Promise<readonly RankReport[]> {
    return this.#meeting.enter(this.rank, report);
  }

  onAwaited(listener: () => void): void {
    this.#meeting.listeners[this.rank] = listener;
  }

  async close(reason = 'it was closed'): Promise<void> {
    this.#meeting.fail(new PeerLostError(`rank ${this.rank} left the rank group: ${reason}`, { drained: false }));
  }
}

interface Waiting {
  readonly resolve: (reports: readonly RankReport[]) => void;
  readonly reject: (error: KvTransceiverError) => void;
}

/** Where the ranks of one process meet: one step at a time. */
class Meeting {
  readonly size: number;
  readonly listeners: (() => void)[] = [];
  readonly counters = new Counters();
  readonly #guard: CallbackGuard;
  readonly #clock: Clock | null;
  readonly #timeoutMs: number;
  #reports: (RankReport | undefined)[] = [];
  #here: RankSet;
  #waiting: Waiting[] = [];
  #timer: Timer | null = null;
  #failure: KvTransceiverError | null = null;

  constructor(size: number, { clock, exchangeTimeoutMs = 60_000, onWarning }: LocalRankGroupOptions) {
    this.size = size;
    this.#guard = new CallbackGuard({
      clock: clock ?? new SystemClock(),
      counters: this.counters,
      warn: onWarning ?? ((message) => process.emitWarning(`kv-transceiver: ${message}`)),
    });
    this.#clock = clock ?? null;
    this.#timeoutMs = exchangeTimeoutMs;
    this.#here = new RankSet(size);
  }

  awaits(rank: number): boolean {
    return this.#failure !== null || (!this.#here.isEmpty && !this.#here.has(rank));
  }

  enter(rank: number, report: RankReport): Promise<readonly RankReport[]> {
    if (this.#failure !== null) return Promise.reject(this.#failure);
    if (this.#here.has(rank)) {
      return Promise.reject(new StateError(`rank ${rank} is in an exchange already; await it before the next`));
    }
    const isFirst = this.#here.isEmpty;
    this.#here.add(rank);
    this.#reports[rank] = report;
    const agreed = new Promise<readonly RankReport[]>((resolve, reject) => this.#waiting.push({ resolve, reject }));
    if (this.#here.isFull) this.#finish();
    else if (isFirst) {
      this.#armTimer();
      this.#wake();
    }
    return agreed;
  }

  fail(error: KvTransceiverError): void {
    if (this.#failure !== null) return;
    this.#failure = error;
    this.#timer?.cancel();
    for (const { reject } of this.#takeWaiting()) reject(error);
    this.#wake();
  }

  #finish(): void {
    this.#timer?.cancel();
    const reports = this.#reports as RankReport[];
    const error = disagreement(reports);
    if (error !== null) {
      this.fail(error);
      return;
    }
    this.#reports = [];
    this.#here = new RankSet(this.size);
    for (const { resolve } of this.#takeWaiting()) resolve(reports);
  }

  #takeWaiting(): Waiting[] {
    const waiting = this.#waiting;
    this.#waiting = [];
    return waiting;
  }

  #armTimer(): void {
    this.#timer =
      this.#clock?.setTimer(this.#timeoutMs, () => {
        const text = `${this.#here.describeMissing()} did not come to the exchange within ${this.#timeoutMs} ms`;
        this.fail(new TransferTimeoutError(text));
      }) ?? null;
  }

  #wake(): void {
    this.listeners.forEach((listener, rank) => {
      // One rank's trouble must not keep the others asleep.
      if (this.awaits(rank)) this.#guard.run(`the listener of rank ${rank}`, listener);
    });
  }
}
