import type { Clock, Timer } from '../clock.js';

/**
 * Role: lets a loop sleep until something happened: `wait` unless it is raised, then `clear`, then look at everything.
 * Invariant: a `raise` is never lost: one that comes before `clear` is before the look, too.
 */
export class WakeSignal {
  readonly #clock: Clock;
  #isRaised = false;
  #timer: Timer | null = null;
  #wake: (() => void) | null = null;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get isRaised(): boolean {
    return this.#isRaised;
  }

  raise(): void {
    if (this.#isRaised) return;
    this.#isRaised = true;
    this.#timer?.cancel();
    this.#wake?.();
  }

  clear(): void {
    this.#isRaised = false;
    this.#timer = null;
    this.#wake = null;
  }

  /** What waited goes on for another reason; whether it is raised stays as it is. */
  stopWaiting(): void {
    this.#timer?.cancel();
    this.#timer = null;
    this.#wake = null;
  }

  /** Resolves at the next `raise`, or after `timeoutMs` (null = no limit). */
  wait(timeoutMs: number | null): Promise<void> {
    const woken = new Promise<void>((resolve) => {
      this.#wake = resolve;
    });
    if (timeoutMs !== null) this.#timer = this.#clock.setTimer(timeoutMs, () => this.#wake?.());
    return woken;
  }
}
