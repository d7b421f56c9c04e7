import type { Clock, Timer } from '../../clock.js';
import { ConfigError, type KvTransceiverError, ResourceError } from '../../errors.js';
import { typedError } from '../../executor/typed-error.js';
import type { WorkerLink } from '../link/worker-link.js';
import type { LaunchedWorker, WorkerExit, WorkerProcessEvents } from './worker-process.js';

const FIRST_PAUSE_MS = 200;
const LONGEST_PAUSE_MS = 15_000;
/** A worker that lived this long starts anew without a pause that grew before. */
const SETTLED_AFTER_MS = 30_000;
/** From its start to `ready`. */
const START_LIMIT_MS = 60_000;

export interface WorkerKeeperOptions {
  readonly clock: Clock;
  readonly link: WorkerLink;
  readonly launch: (events: WorkerProcessEvents) => LaunchedWorker;
  readonly onWarning: (message: string) => void;
}

/** What the keeper does: a worker runs or is being started, waits for its next start, or is not wanted any more. */
type KeeperState =
  | { readonly kind: 'idle' }
  | { readonly kind: 'running'; readonly worker: LaunchedWorker; readonly sinceMs: number; readonly limit: Timer }
  | { readonly kind: 'pausing'; readonly timer: Timer }
  | { readonly kind: 'stopped' };

/**
 * Role: keeps one worker process alive: starts it, tells its link where it is, and starts another one when it ends, after a pause that doubles.
 * Ownership: owns the process of the moment; `stop` leaves none behind.
 */
export class WorkerKeeper {
  readonly #o: WorkerKeeperOptions;
  #state: KeeperState = { kind: 'idle' };
  #pauseMs = FIRST_PAUSE_MS;
  #starts = 0;
  #onFirst: { resolve: () => void; reject: (error: KvTransceiverError) => void } | null = null;
  #onGone: () => void = () => {};
  readonly #gone: Promise<void>;

  constructor(options: WorkerKeeperOptions) {
    this.#o = options;
    this.#gone = new Promise((resolve) => {
      this.#onGone = resolve;
    });
  }

  /** Processes started so far. */
  get starts(): number {
    return this.#starts;
  }

  get pid(): number | null {
    return this.#state.kind === 'running' ? (this.#state.worker.pid ?? null) : null;
  }

  /**
   * @returns when the first process is ready
   * @throws ConfigError when it says that it can never start, ResourceError when it ends otherwise before it is ready
   */
  start(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#onFirst = { resolve, reject };
      this.#launch();
    });
  }

  /** The worker finishes what runs, within the deadline. @returns when there is no process any more */
  stop(deadlineMs: number): Promise<void> {
    const state = this.#state;
    if (state.kind === 'stopped') return this.#gone;
    this.#state = { kind: 'stopped' };
    // Its connection is about to break, which is no news.
    this.#o.link.detach('it was ended');
    if (state.kind === 'running') {
      state.limit.cancel();
      state.worker.stop(deadlineMs);
    } else {
      if (state.kind === 'pausing') state.timer.cancel();
      this.#onGone();
    }
    return this.#gone;
  }

  /** Ends the process at once; whether there will be another is unchanged. */
  kill(): void {
    if (this.#state.kind === 'running') this.#state.worker.kill();
  }

  #launch(): void {
    const { clock, launch, link } = this.#o;
    this.#starts += 1;
    link.detach('it is being started');
    let worker: LaunchedWorker;
    try {
      worker = launch({
        onReady: (endpoint) => this.#ready(endpoint),
        onExit: (exit) => this.#exited(exit),
      });
    } catch (error) {
      // No process came of it. This may be a timer, where nobody hears of that.
      this.#missed(typedError(error, 'could not be started').message, false, null);
      return;
    }
    const limit = clock.setTimer(START_LIMIT_MS, () => {
      this.#o.onWarning(`${link.name} was not ready within ${START_LIMIT_MS / 1000} s and is ended`);
      worker.kill();
    });
    this.#state = { kind: 'running', worker, sinceMs: clock.now(), limit };
  }

  #ready(endpoint: string): void {
    if (this.#state.kind !== 'running') return;
    this.#state.limit.cancel();
    this.#o.link.attach(endpoint);
    this.#onFirst?.resolve();
    this.#onFirst = null;
  }

  #exited({ how, isFinal, problems }: WorkerExit): void {
    const { clock, link } = this.#o;
    // At once: its requests may still be repeated elsewhere.
    if (this.#state.kind !== 'stopped') link.detach(`its process ${how}`);
    else {
      this.#onGone();
      return;
    }
    if (this.#state.kind !== 'running') return;
    const { sinceMs, limit } = this.#state;
    limit.cancel();
    if (clock.now() - sinceMs >= SETTLED_AFTER_MS) this.#pauseMs = FIRST_PAUSE_MS;
    this.#missed(how, isFinal, problems);
  }

  /** There is no process now, and one is wanted. */
  #missed(how: string, isFinal: boolean, problems: WorkerExit['problems']): void {
    const { clock, link, onWarning } = this.#o;
    if (this.#onFirst !== null) {
      this.#state = { kind: 'stopped' };
      this.#onGone();
      this.#onFirst.reject(
        isFinal
          ? new ConfigError(`${link.name}: ${how}`, problems === null ? {} : { details: { problems } })
          : new ResourceError(`${link.name} ${how} before it was ready`),
      );
      this.#onFirst = null;
      return;
    }
    onWarning(`${link.name} ${how}; another one starts in ${this.#pauseMs} ms`);
    this.#state = { kind: 'pausing', timer: clock.setTimer(this.#pauseMs, () => this.#launch(), { keepAlive: true }) };
    this.#pauseMs = Math.min(2 * this.#pauseMs, LONGEST_PAUSE_MS);
  }
}
