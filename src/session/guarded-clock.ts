import type { Clock, Timer } from '../clock.js';
import type { CallbackGuard } from './callback-guard.js';

/**
 * Role: a clock whose timers are behind a guard.
 * Why: nobody waits for what a timer's callback throws. Whatever is given this clock cannot forget that.
 */
export class GuardedClock implements Clock {
  readonly #clock: Clock;
  readonly #guard: Pick<CallbackGuard, 'run'>;

  constructor(clock: Clock, guard: Pick<CallbackGuard, 'run'>) {
    this.#clock = clock;
    this.#guard = guard;
  }

  now(): number {
    return this.#clock.now();
  }

  setTimer(delayMs: number, callback: () => void, options?: { readonly keepAlive?: boolean }): Timer {
    return this.#clock.setTimer(delayMs, () => void this.#guard.run('a timer', callback), options);
  }

  nextTurn(): Promise<void> {
    return this.#clock.nextTurn();
  }
}
