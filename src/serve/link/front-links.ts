import type { Clock } from '../../clock.js';
import { WireError } from '../../errors.js';
import { CallbackGuard, INTERNAL_ERRORS } from '../../session/callback-guard.js';
import { Counters } from '../../session/counters.js';
import { GuardedClock } from '../../session/guarded-clock.js';
import { TurnBudget } from '../../turn-budget.js';
import type { Messenger } from '../../wire/messenger.js';
import { decodeWorkerFrame } from './link-codec.js';
import type { IdOrigin, LinkFrame, WorkerMessage, WorkerRole } from './link-message.js';
import { WorkerLink } from './worker-link.js';

export interface FrontLinksOptions {
  readonly clock: Clock;
  /** Owned from now on. */
  readonly messenger: Messenger;
  /** What workers must run; see `engineLabel`. */
  readonly engine: string;
  /** Never the same twice, not guessable. */
  readonly newSession: () => bigint;
  /** Of the requests that are sent from now on. */
  readonly ids: () => IdOrigin;
  /** A worker has another front that makes these. */
  readonly onIdsTaken: (taken: IdOrigin) => void;
  readonly onWarning: (message: string) => void;
  /** This front is about to end. Left out: it never is. */
  readonly isEnding?: () => boolean;
}

/**
 * Role: the front's end of its links to the workers of one side: one messenger, one session a worker.
 * Ownership: owns the messenger; `close` ends it and every link.
 * Errors: what goes wrong behind a frame or a timer ends the session that it belonged to, and is counted (`internal_errors`).
 */
export class FrontLinks {
  readonly #o: FrontLinksOptions;
  readonly #links: WorkerLink[] = [];
  readonly #bySession = new Map<bigint, WorkerLink>();
  readonly #counters = new Counters();
  readonly #guard: CallbackGuard;
  readonly #turns: TurnBudget;
  #badFrames = 0;

  constructor(options: FrontLinksOptions) {
    const { messenger, clock, onWarning, isEnding = () => false } = options;
    const guard = new CallbackGuard({ clock, counters: this.#counters, warn: onWarning });
    this.#guard = guard;
    this.#turns = new TurnBudget(clock);
    this.#o = {
      ...options,
      clock: new GuardedClock(clock, guard),
      onWarning: (message) => {
        // Whoever ends all processes at once ends the workers too: that is no news, and may be here before the signal is. It comes in this turn.
        const warn = (): void => (isEnding() ? undefined : onWarning(message));
        guard.after('the log', clock.nextTurn(), warn);
      },
    };
    messenger.onFrame((bytes) => void guard.run('a frame of a worker', () => this.#onFrame(bytes)));
    messenger.onDisconnect((endpoint) => {
      for (const link of this.#links)
        if (link.endpoint === endpoint) guard.run(`the loss of ${link.name}`, () => link.disconnected());
    });
  }

  /** Frames that were none, since the start. */
  get badFrames(): number {
    return this.#badFrames;
  }

  /** What frames, timers and handlers would have thrown. */
  get internalErrors(): number {
    return this.#counters.get(INTERNAL_ERRORS);
  }

  add(name: string, role: WorkerRole): WorkerLink {
    const { clock, messenger, engine, newSession, ids, onIdsTaken, onWarning } = this.#o;
    const link = new WorkerLink({
      name,
      role,
      clock,
      guard: this.#guard,
      turns: this.#turns,
      messenger,
      engine,
      newSession,
      ids,
      onIdsTaken,
      onWarning,
      onSession: (owner, before, now) => {
        if (before !== null) this.#bySession.delete(before);
        if (now !== null) this.#bySession.set(now, owner);
      },
    });
    this.#links.push(link);
    return link;
  }

  /** Workers that are up hear that `ids` gives others now; those that are not will with the next greeting. */
  announceIds(): void {
    for (const link of this.#links) link.announceIds();
  }

  /** Waits for what is left of its calls: each has ended when this returns. */
  async close(lingerMs: number): Promise<void> {
    for (const link of this.#links) link.detach('the front is closing');
    await Promise.all(this.#links.map((link) => link.ended()));
    await this.#o.messenger.close(lingerMs);
  }

  #onFrame(bytes: Uint8Array): void {
    let frame: LinkFrame<WorkerMessage>;
    try {
      frame = decodeWorkerFrame(bytes);
    } catch (error) {
      if (!(error instanceof WireError)) throw error;
      if (this.#badFrames++ === 0) this.#o.onWarning(`a frame that no worker of this version sends: ${error.message}`);
      return;
    }
    // Sessions are random: what nobody here opened is of an earlier one, or of a stranger.
    this.#bySession.get(frame.session)?.receive(frame);
  }
}
