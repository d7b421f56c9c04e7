import type { Clock } from '../clock.js';
import { TurnBudget } from '../turn-budget.js';
import type { CallbackGuard } from './callback-guard.js';

/** What happens to many sessions for one reason. */
export interface Walk<Session> {
  /** For the log, should it throw. */
  readonly what: string;
  /** When its turn has come. @returns those that it is about, as of then; each may have changed when it is met */
  readonly begin: () => readonly Session[];
  /** What it throws ends nothing but itself. */
  readonly each: (session: Session) => void;
  /** After the last one. */
  readonly end?: () => void;
}

/** A walk that is under way, or waits for those before it. */
interface Standing {
  readonly what: string;
  /** From one session to the next. */
  readonly steps: Iterator<unknown>;
  over: () => void;
}

/**
 * Role: what ends thousands of sessions at once (`close`, clocks that run out together) happens in portions, so that it does not hold up the event
 *   loop.
 * Ordering: first come, first served. What fits into a portion is done before `run` returns, so that a few sessions hardly ever wait; else whatever
 *   comes goes on between the portions, and a session may have ended, or be gone, when it is met.
 */
export class SessionWalks {
  readonly #clock: Clock;
  readonly #guard: CallbackGuard;
  readonly #waiting: Standing[] = [];
  #state: 'idle' | 'walking' | 'closed' = 'idle';

  constructor(options: { readonly clock: Clock; readonly guard: CallbackGuard }) {
    this.#clock = options.clock;
    this.#guard = options.guard;
  }

  /** @returns null: it is over. Else when it is; never, when this is closed before */
  run<Session>(walk: Walk<Session>): Promise<void> | null {
    if (this.#state === 'closed') return null;
    let isOver = false;
    const standing: Standing = {
      what: walk.what,
      steps: this.#stepsOf(walk),
      over: () => {
        isOver = true;
      },
    };
    this.#waiting.push(standing);
    if (this.#state === 'idle') this.#go();
    if (isOver) return null;
    return new Promise((resolve) => {
      standing.over = resolve;
    });
  }

  /** What was not met yet is not met any more. */
  close(): void {
    this.#state = 'closed';
    this.#waiting.length = 0;
  }

  #go(): void {
    if (this.#state === 'closed') return;
    this.#state = 'walking';
    const turns = new TurnBudget(this.#clock);
    for (let first = this.#waiting[0]; first !== undefined; first = this.#waiting[0]) {
      if (first.steps.next().done === true) {
        this.#waiting.shift();
        first.over();
      } else if (turns.isSpent()) {
        this.#guard.after(first.what, turns.nextTurn(), () => this.#go());
        return;
      }
    }
    if (!this.#isClosed) this.#state = 'idle';
  }

  /** By what was done meanwhile. */
  get #isClosed(): boolean {
    return this.#state === 'closed';
  }

  /** An error that is made on the way keeps the functions that it was made in, so that none of them may hold a session: see `CallbackGuard.runFor`. */
  *#stepsOf<Session>({ what, begin, each, end }: Walk<Session>): Generator<void, void> {
    for (const session of this.#begun(what, begin)) {
      try {
        each(session);
      } catch (cause) {
        this.#guard.run(what, () => {
          throw cause;
        });
      }
      yield;
    }
    if (end !== undefined) this.#guard.run(what, end);
  }

  #begun<Session>(what: string, begin: () => readonly Session[]): readonly Session[] {
    let sessions: readonly Session[] = [];
    this.#guard.run(what, () => {
      sessions = begin();
    });
    return sessions;
  }
}

/** For a walk over few of many. */
export function collect<Session>(sessions: Iterable<Session>, isMeant: (session: Session) => boolean): Session[] {
  const meant: Session[] = [];
  for (const session of sessions) if (isMeant(session)) meant.push(session);
  return meant;
}
