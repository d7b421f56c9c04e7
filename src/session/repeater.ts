import type { Clock, Timer } from '../clock.js';

/** First repeat after this, then doubling up to REPEAT_MAX_MS (design: 250 ms, doubling to 2 s). */
export const REPEAT_FIRST_MS = 250;
export const REPEAT_MAX_MS = 2000;

/**
 * Role: sends something until it was answered.
 * Why: a reconnect loses what was queued, so every request-bound exchange is idempotent, acknowledged and repeated.
 */
export class Repeater<Key = string> {
  readonly #clock: Clock;
  readonly #running = new Map<Key, { timer: Timer }>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get runningCount(): number {
    return this.#running.size;
  }

  isRunning(key: Key): boolean {
    return this.#running.has(key);
  }

  /** Calls `send` now and again until `stop(key)`. A running entry of the same key is replaced. */
  start(key: Key, send: () => void): void {
    this.stop(key);
    const entry = { timer: this.#arm(key, send, REPEAT_FIRST_MS) };
    this.#running.set(key, entry);
    send();
  }

  /** False when it was not running. */
  stop(key: Key): boolean {
    const entry = this.#running.get(key);
    if (entry === undefined) return false;
    entry.timer.cancel();
    return this.#running.delete(key);
  }

  stopAll(): void {
    for (const key of [...this.#running.keys()]) this.stop(key);
  }

  #arm(key: Key, send: () => void, delayMs: number): Timer {
    return this.#clock.setTimer(delayMs, () => {
      const entry = this.#running.get(key);
      if (entry === undefined) return;
      entry.timer = this.#arm(key, send, Math.min(delayMs * 2, REPEAT_MAX_MS));
      send();
    });
  }
}
