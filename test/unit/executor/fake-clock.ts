import type { Clock, Timer } from '../../../src/clock.js';

interface Pending {
  readonly atMs: number;
  readonly order: number;
  readonly callback: () => void;
}

/** Virtual time: it moves only in `advance`. A turn of the loop is a real turn of the event loop, without a delay. */
export class FakeClock implements Clock {
  #nowMs: number;
  #order = 0;
  readonly #timers = new Set<Pending>();

  constructor(startMs = 1000) {
    this.#nowMs = startMs;
  }

  get timerCount(): number {
    return this.#timers.size;
  }

  now(): number {
    return this.#nowMs;
  }

  setTimer(delayMs: number, callback: () => void): Timer {
    const timer = { atMs: this.#nowMs + delayMs, order: this.#order++, callback };
    this.#timers.add(timer);
    return { cancel: () => void this.#timers.delete(timer) };
  }

  nextTurn(): Promise<void> {
    return new Promise((resolve) => setImmediate(resolve));
  }

  /** Lets everything that is due run, for `turns` turns of the event loop. */
  async settle(turns = 20): Promise<void> {
    for (let turn = 0; turn < turns; turn++) await this.nextTurn();
  }

  async advance(ms: number): Promise<void> {
    const endMs = this.#nowMs + ms;
    await this.settle();
    for (;;) {
      const due = [...this.#timers]
        .filter((timer) => timer.atMs <= endMs)
        .sort((a, b) => a.atMs - b.atMs || a.order - b.order)[0];
      if (due === undefined) break;
      this.#timers.delete(due);
      this.#nowMs = Math.max(this.#nowMs, due.atMs);
      due.callback();
      await this.settle();
    }
    this.#nowMs = endMs;
    await this.settle();
  }
}
