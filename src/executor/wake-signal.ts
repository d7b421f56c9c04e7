import type { Clock } from '../clock.js';

/**
 * Role: lets a loop sleep until something happened.
 * Invariant: a `raise` is never lost: one that comes before `wait` makes the next `wait` return at once.
 */
export class WakeSignal {
  readonly #clock: Clock;
  #raised = false;
  #wake: (() => void) | null = null;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  raise(): void {
    this.#raised = true;
    this.#wake?.();
  }

  /** Resolves after a `raise`, or after `timeoutMs` (null = no limit) with false. */
  async wait(timeoutMs: number | null): Promise<boolean> {
    if (!this.#raised) {
      await new Promise<void>((resolve) => {
        const timer = timeoutMs === null ? null : this.#clock.setTimer(timeoutMs, resolve);
        this.#wake = () => {
          timer?.cancel();
          resolve();
        };
      });
      this.#wake = null;
    }
    const raised = this.#raised;
    this.#raised = false;
    return raised;
  }
}
