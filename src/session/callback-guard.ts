import type { Clock } from '../clock.js';
import { InternalError, KvTransceiverError } from '../errors.js';
import type { Counters } from './counters.js';
import { LogShare } from './log-share.js';

/** The counter of errors that a callback would have thrown, and how their lines in the log begin. */
export const INTERNAL_ERRORS = 'internal_errors';
export const INTERNAL_ERROR_LINE = 'internal error';

/**
 * Role: stands between this package and the callbacks of clock, messenger and agent.
 * Why: behind a callback nobody waits for an error: thrown there it ends the process, and with it every request for the fault of one. It is
 *   counted and logged instead, and the clocks of the request that it belonged to end that one.
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

  /** Does it; what it throws goes no further. */
  run(what: string, action: () => void): void {
    try {
      action();
    } catch (cause) {
      this.caught(what, cause);
    }
  }

  /** Does it for one request; what it throws ends that request, and goes no further. */
  runFor(rid: bigint, action: () => void, end: (error: KvTransceiverError) => void): void {
    try {
      action();
    } catch (cause) {
      const error = this.caught(`request ${rid}`, cause);
      this.run(`the end of request ${rid}`, () => end(error));
    }
  }

  /** @returns the same as one of our errors. One that says what is wrong with a request is no trouble of ours, and not counted */
  caught(what: string, cause: unknown): KvTransceiverError {
    const isOurs = cause instanceof KvTransceiverError;
    if (isOurs && !(cause instanceof InternalError)) return cause;
    const text = cause instanceof Error ? cause.message : String(cause);
    this.#counters.add(INTERNAL_ERRORS);
    const more = this.#lines.take();
    const stack = cause instanceof Error ? `\n${cause.stack ?? ''}` : '';
    if (more !== null) this.#warn(`${INTERNAL_ERROR_LINE}, ${what}: ${text}${more}${stack}`);
    return isOurs ? cause : new InternalError(`${what}: ${text}`, { cause });
  }
}
