import { nextLoopTurn } from './loop-turns.js';

/** Cancels the timer; a no-op once it has fired. */
export interface Timer {
  cancel(): void;
}

/**
 * The only source of time in the control plane, so that a simulator can replace it.
 * Times are milliseconds since an arbitrary origin; they never run backwards.
 */
export interface Clock {
  /** Now, in milliseconds, fractions included. */
  now(): number;
  /** Calls `callback` once, `delayMs` from now. Timers of the system clock do not keep the process alive unless `keepAlive`. */
  setTimer(delayMs: number, callback: () => void, options?: { readonly keepAlive?: boolean }): Timer;
  /** Resolves after pending I/O was served, without a delay: how a loop yields. */
  nextTurn(): Promise<void>;
}

/** The real clock: CLOCK_MONOTONIC, comparable between processes of one machine. */
export class SystemClock implements Clock {
  now(): number {
    return Number(process.hrtime.bigint()) / 1e6;
  }

  setTimer(delayMs: number, callback: () => void, options: { readonly keepAlive?: boolean } = {}): Timer {
    const handle = setTimeout(callback, delayMs);
    if (options.keepAlive !== true) handle.unref();
    return { cancel: () => clearTimeout(handle) };
  }

  nextTurn(): Promise<void> {
    return nextLoopTurn();
  }
}

/** Wall-clock time, in ms since 1970: for what leaves this process with a date on it, never to measure with. May be stepped. */
export function unixTimeMs(): number {
  return Date.now();
}
