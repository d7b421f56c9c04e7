import type { Clock } from '../clock.js';

/**
 * Role: lets a loop sleep until something happened: `wait` unless it is raised, then `clear`, then look at everything.
 * Invariant: a `raise` is never lost: one that comes before `clear` is before the look, too.
 */
export class WakeSignal {
  readonly #clock: Clock;
  #isRaised = false;
  #wake: (() => void) | null = null;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get isRaised(): boolean {
    return this.#isRaised;
  }

  raise(): void {
    this.#isRaised = true;
    this.#wake?.();
  }

  clear(): void {
    this.#isRaised = false;
    this.#wake = null;
  }

  /** Resolves at the next `raise`, or after `timeoutMs` (null = no limit). */
  wait(timeoutMs: number | null): Promise<void> {
    return new Promise((resolve) => {
      const timer = timeoutMs === null ? null : this.#clock.setTimer(timeoutMs, resolve);
      this.#wake = () => {
        timer?.cancel();
        resolve();
      };
    });
  }
}
