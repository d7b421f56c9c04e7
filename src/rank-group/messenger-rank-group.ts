import type { Clock, Timer } from '../clock.js';
import { KvTransceiverError, PeerLostError, StateError } from '../errors.js';
import { CallbackGuard } from '../session/callback-guard.js';
import { Counters } from '../session/counters.js';
import { GreetingShare } from '../session/greeting-share.js';
import { GuardedClock } from '../session/guarded-clock.js';
import type { FrameOrigin, Messenger } from '../wire/messenger.js';
import { disagreement } from './disagreement.js';
import { decodeGroupFrame, encodeGroupFrame, type GroupFrame, type GroupMessage, speakerOf } from './group-frame.js';
import type { RankGroup } from './rank-group.js';
import type { RankReport } from './rank-report.js';

/** How long the last frames may take to leave. */
const GOODBYE_LINGER_MS = 200;
/** The two directions are two connections: what a rank said last may arrive after the news that the other one broke. */
const LAST_WORDS_MS = 100;

/** One rank's place in a group over a messenger. */
export interface MessengerRankGroupOptions {
  readonly rank: number;
  readonly size: number;
  /** Chosen anew for each run of the instance, the same on all its ranks, not guessable. */
  readonly nonce: bigint;
  /** Of this process: never the same twice. */
  readonly incarnation: bigint;
  /** Owned by the group from now on; used for nothing else. */
  readonly messenger: Messenger;
  /** Why a rank cannot talk to this one, when its keys are the reason; default: never. */
  readonly refusal?: () => string | null;
  /** Something an operator should see. Default: nobody is told. */
  readonly onWarning?: (message: string) => void;
  readonly clock: Clock;
  readonly joinTimeoutMs: number;
  /** How long a rank may let the others wait in an exchange. */
  readonly exchangeTimeoutMs: number;
  /** Silence after which a rank counts as gone; a broken connection tells at once. */
  readonly peerTimeoutMs: number;
}

interface Exchange {
  readonly resolve: (reports: readonly RankReport[]) => void;
  readonly reject: (error: KvTransceiverError) => void;
}

/**
 * Role: what both ends of a star have in common: rank 0 collects the reports and sends all of them to everybody; the others talk to it only.
 * Trust: what strangers and joiners send gets a share of this thread's time each, so that a flood of it does not keep the ranks waiting.
 * Why a star: one address to configure, and rank 0 sees who is missing.
 * Ownership: owns the messenger; `close` ends it.
 * Ordering: rests on the messenger keeping the order of a connection; a connection that broke ends the group, so nothing is ever missing
 *   in between.
 * Errors: what goes wrong behind a timer, or with what a rank says, ends the group: nobody can tell what it has missed. A stranger's frame ends
 *   nothing. Both are counted (`internal_errors`), and neither ends the process.
 */
export abstract class MessengerRankGroup implements RankGroup {
  readonly rank: number;
  readonly size: number;
  protected readonly o: MessengerRankGroupOptions;
  protected failure: KvTransceiverError | null = null;
  readonly #counters = new Counters();
  readonly #guard: CallbackGuard;
  /** JOIN of ranks that know the nonce; others of other instances and of earlier runs, and whatever strangers send, wait elsewhere. */
  readonly #joiners: GreetingShare;
  readonly #strangers: GreetingShare;
  readonly #joined: Promise<void>;
  #resolveJoined: () => void = () => {};
  #rejectJoined: (error: KvTransceiverError) => void = () => {};
  #exchange: Exchange | null = null;
  #listener: () => void = () => {};
  #sweepTimer: Timer | null = null;
  #closed: Promise<void> | null = null;

  constructor(options: MessengerRankGroupOptions) {
    const warn = options.onWarning ?? (() => undefined);
    this.#guard = new CallbackGuard({ clock: options.clock, counters: this.#counters, warn });
    const clock = new GuardedClock(options.clock, { run: (what, action) => this.#vital(what, action) });
    this.o = { ...options, clock };
    this.rank = options.rank;
    this.size = options.size;
    this.#joined = new Promise((resolve, reject) => {
      this.#resolveJoined = resolve;
      this.#rejectJoined = reject;
    });
    // Whoever opened the group awaits it; a group that breaks before is no unhandled rejection.
    this.#joined.catch(() => {});
    const { messenger, nonce } = options;
    const read = (bytes: Uint8Array, origin: FrameOrigin): void =>
      void this.#guard.run('a frame of a stranger', () => this.#onBytes(bytes, origin));
    this.#joiners = new GreetingShare(clock, read, () => this.refuse('joins_dropped'));
    this.#strangers = new GreetingShare(clock, read, () => this.refuse('strangers_dropped'));
    const sort = (bytes: Uint8Array, origin: FrameOrigin): void => {
      const speaker = speakerOf(bytes, nonce);
      if (speaker === 'rank') this.#vital('a frame of a rank', () => this.#onBytes(bytes, origin));
      else if (speaker === 'joiner') this.#joiners.take(bytes, origin);
      else this.#strangers.take(bytes, origin);
    };
    messenger.onFrame((bytes, origin) => void this.#guard.run('a frame', () => sort(bytes, origin)));
    const disconnected = (endpoint: string): void => {
      clock.setTimer(LAST_WORDS_MS, () => {
        if (this.failure === null) this.onDisconnect(endpoint);
      });
    };
    messenger.onDisconnect((endpoint) => void this.#vital('a broken connection', () => disconnected(endpoint)));
    this.#armSweep(false);
  }

  /** Resolves when every rank is here. */
  get joined(): Promise<void> {
    return this.#joined;
  }

  /** Frames that were refused, by reason. */
  get counts(): Readonly<Record<string, number>> {
    return this.#counters.snapshot();
  }

  get isAwaited(): boolean {
    return this.failure !== null || (this.#exchange === null && this.othersWait);
  }

  exchange(report: RankReport): Promise<readonly RankReport[]> {
    if (this.failure !== null) return Promise.reject(this.failure);
    if (this.#exchange !== null) {
      return Promise.reject(new StateError(`rank ${this.rank} is in an exchange already; await it before the next`));
    }
    const agreed = new Promise<readonly RankReport[]>((resolve, reject) => {
      this.#exchange = { resolve, reject };
    });
    try {
      this.handIn(report);
    } catch (error) {
      this.break(this.#guard.caught('what this rank reports', error));
    }
    return agreed;
  }

  onAwaited(listener: () => void): void {
    this.#listener = listener;
  }

  close(reason = 'it was closed'): Promise<void> {
    if (this.#closed === null) {
      this.break(new PeerLostError(`rank ${this.rank} left the rank group: ${reason}`));
      this.#closed = this.o.messenger.close(GOODBYE_LINGER_MS);
    }
    return this.#closed;
  }

  /** Another rank's report for the exchange that this rank did not enter has come. */
  protected abstract readonly othersWait: boolean;
  protected abstract handIn(report: RankReport): void;
  protected abstract onFrame(frame: GroupFrame, origin: FrameOrigin): void;
  protected abstract onDisconnect(endpoint: string): void;
  /** Tells the others; called once. */
  protected abstract tellBroken(message: GroupMessage): void;
  protected abstract sweep(nowMs: number): void;

  /** Why keys kept a rank out, as the end of a message; empty when they did not. */
  protected get refusalText(): string {
    const why = this.o.refusal?.() ?? null;
    return why === null ? '' : ` (${why})`;
  }

  protected get isInExchange(): boolean {
    return this.#exchange !== null;
  }

  protected refuse(why: string): void {
    this.#counters.add(why);
  }

  protected send(endpoint: string, message: GroupMessage): void {
    this.o.messenger.send(endpoint, this.#encoded(message, this.o.nonce));
  }

  /** On the connection that its frame came by: who is let in nowhere has no say in what this rank connects to. */
  protected replyToStranger(origin: FrameOrigin, nonce: bigint, message: GroupMessage): void {
    this.o.messenger.reply(origin, this.#encoded(message, nonce));
  }

  protected complete(): void {
    this.#resolveJoined();
  }

  protected signal(): void {
    if (this.isAwaited) this.#tellListener();
  }

  protected agreed(reports: readonly RankReport[]): void {
    const error = disagreement(reports);
    if (error !== null) {
      // Every rank finds the same by itself.
      this.break(error);
      return;
    }
    const exchange = this.#exchange;
    this.#exchange = null;
    exchange?.resolve(reports);
  }

  /** The group has ended. Idempotent. */
  protected break(error: KvTransceiverError): void {
    if (this.failure !== null) return;
    this.failure = error;
    this.#sweepTimer?.cancel();
    this.#joiners.close();
    this.#strangers.close();
    // First who waits here: whatever becomes of the rest, nothing hangs.
    this.#rejectJoined(error);
    this.#exchange?.reject(error);
    this.#exchange = null;
    const message = { type: 'BROKEN', code: error.code, text: error.message } as const;
    this.#guard.run('the news that the rank group ended', () => this.tellBroken(message));
    this.#tellListener();
  }

  #tellListener(): void {
    this.#guard.run('the listener of onAwaited', this.#listener);
  }

  /** What it throws ends the group. */
  #vital(what: string, action: () => void): KvTransceiverError | null {
    const error = this.#guard.run(what, action);
    if (error !== null) this.break(error);
    return error;
  }

  #encoded(message: GroupMessage, nonce: bigint): Uint8Array {
    const { incarnation, rank } = this.o;
    return encodeGroupFrame({ rank, nonce, incarnation, message });
  }

  #onBytes(bytes: Uint8Array, origin: FrameOrigin): void {
    let frame: GroupFrame;
    try {
      frame = decodeGroupFrame(bytes);
    } catch (error) {
      if (!(error instanceof KvTransceiverError)) throw error;
      this.refuse(`bad_frame:${String(error.details['reason'] ?? 'unknown')}`);
      return;
    }
    if (this.failure === null) this.onFrame(frame, origin);
  }

  /**
   * After a stop (SIGSTOP, a suspended machine) timers run before the frames that arrived meanwhile are read: silence is judged one sweep
   * later then, or a rank would be given up that has spoken.
   */
  #armSweep(postponed: boolean): void {
    const { clock, peerTimeoutMs } = this.o;
    const intervalMs = peerTimeoutMs / 4;
    const dueMs = clock.now() + intervalMs;
    this.#sweepTimer = clock.setTimer(intervalMs, () => {
      if (this.failure !== null) return;
      const isLate = clock.now() - dueMs >= intervalMs;
      const postpone = isLate && !postponed;
      this.#armSweep(postpone);
      if (!postpone) this.sweep(clock.now());
    });
  }
}
