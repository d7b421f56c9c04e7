import type { Clock } from '../clock.js';
import { InternalError, KvTransceiverError } from '../errors.js';
import type { Counters } from './counters.js';
import { LogShare } from './log-share.js';

/** The counter of errors that a callback would have thrown, and how their lines in the log begin. */
export const INTERNAL_ERRORS = 'internal_errors';
export const INTERNAL_ERROR_LINE = 'internal error';

/**
 * Role: stands between this package and whoever calls it back: clocks, messengers, agents, promises; and between it and the handlers of others
 *   that it calls from there.
 * Why: behind a callback nobody waits for an error: thrown there it ends the process, and with it every request for the fault of one. It is
 *   counted and logged instead, and whoever owns what it belonged to (a request, a session, a group) ends that one.
 */
export class CallbackGuard {
  readonly #counters: Counters;
  readonly #lines: LogShare;
  readonly #warn: (message: string) => void;

  constructor(options: {
    readonly clock: Clock;
    readonly counters: Counters;
    readonly warn: (message: string) => void;
  }) {
    this.#counters = options.counters;
    this.#lines = new LogShare(options.clock);
    this.#warn = options.warn;
  }

  /** Does it; what it throws goes no further. @returns that as one of our errors; null: it threw nothing */
  run(what: string, action: () => void): KvTransceiverError | null {
    try {
      action();
      return null;
    } catch (cause) {
      return this.#told(what, cause);
    }
  }

  /**
   * Does it for one request; what it throws ends that request, and goes no further.
   * Why the action is handed its request: V8 keeps the functions that an error was made in, with all that they have captured, for as long as nobody
   *   has asked for its stack. A request that ends with an error would live as long as its user keeps that.
   */
  runFor<Subject extends { readonly rid: bigint }>(
    subject: Subject,
    action: (subject: Subject) => void,
    end: (subject: Subject, error: KvTransceiverError) => void,
  ): void {
    try {
      action(subject);
    } catch (cause) {
      const error = this.caught(`request ${subject.rid}`, cause);
      this.run(`the end of request ${subject.rid}`, () => end(subject, error));
    }
  }

  /** Does it once the promise is fulfilled; what either fails with goes no further. */
  after<T>(what: string, promise: Promise<T>, action: (value: T) => void): void {
    promise.then(
      (value) => void this.run(what, () => action(value)),
      (cause: unknown) => void this.#told(what, cause),
    );
  }

  /** @returns the same as one of our errors. One that says what is wrong with a request is no trouble of ours, and not counted */
  caught(what: string, cause: unknown): KvTransceiverError {
    const saysWhatIsWrong = cause instanceof KvTransceiverError && !(cause instanceof InternalError);
    return saysWhatIsWrong ? cause : this.#told(what, cause);
  }

  #told(what: string, cause: unknown): KvTransceiverError {
    const text = textOf(cause);
    this.#counters.add(INTERNAL_ERRORS);
    const more = this.#lines.take();
    const stack = cause instanceof Error ? `\n${cause.stack ?? ''}` : '';
    try {
      if (more !== null) this.#warn(`${INTERNAL_ERROR_LINE}, ${what}: ${text}${more}${stack}`);
    } catch {
      // The log itself threw: nobody is left to tell, and the counter has it.
    }
    return cause instanceof KvTransceiverError ? cause : new InternalError(`${what}: ${text}`, { cause });
  }
}

/** Anything can be thrown, also what does not let itself be shown. */
function textOf(cause: unknown): string {
  try {
    return cause instanceof Error ? cause.message : String(cause);
  } catch {
    return 'something that cannot be shown';
  }
}
