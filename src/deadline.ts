import { MAX_TIMER_MS } from './config/max-timer.js';
import { ArgumentError } from './errors.js';

/**
 * Checked before anything is closed: a close that fails half way leaves what nobody can close any more.
 * @throws ArgumentError
 */
export function checkDeadline(deadlineMs: number): void {
  if (typeof deadlineMs === 'number' && deadlineMs >= 0 && deadlineMs <= MAX_TIMER_MS) return;
  throw new ArgumentError(
    `deadlineMs must be a number of milliseconds in [0, ${MAX_TIMER_MS}], got ${typeof deadlineMs === 'number' ? deadlineMs : typeof deadlineMs}`,
  );
}
