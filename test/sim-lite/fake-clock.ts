import type { Clock, Timer } from '../../src/clock.js';

interface Pending {
  readonly at: number;
  readonly order: number;
  readonly callback: () => void;
}

/**
 * Role: a Clock whose time moves only when the test says so.
 * Ordering: timers fire by due time, then by creation; a timer set by a callback fires in the same `advance` when it is due in it.
 */
export class FakeClock implements Clock {
  #now: number;
  #nextOrder = 0;
  readonly #pending = new Set<Pending>();
  #turns: (() => void)[] = [];

  constructor(startMs = 1_000) {
    this.#now = startMs;
  }

  now(): number {
    return this.#now;
  }

  setTimer(delayMs: number, callback: () => void): Timer {
    if (!(delayMs >= 0)) throw new RangeError(`delayMs must be >= 0, got ${delayMs}`);
    const timer: Pending = { at: this.#now + delayMs, order: this.#nextOrder++, callback };
    this.#pending.add(timer);
    return { cancel: () => void this.#pending.delete(timer) };
  }

  nextTurn(): Promise<void> {
    return new Promise((resolve) => this.#turns.push(resolve));
  }

  get pendingTimerCount(): number {
    return this.#pending.size;
  }

  /** When the earliest timer is due, or null. */
  get nextDueAt(): number | null {
    return this.#earliest()?.at ?? null;
  }

  /** Moves time by `ms` and fires what is due on the way, synchronously. Turns are not released. */
  advance(ms: number): void {
    const end = this.#now + ms;
    while (this.#fireNext(end));
    this.#now = end;
  }

  /** As `advance`, but after each timer lets promises continue and releases one turn: for code that awaits. */
  async run(ms: number): Promise<void> {
    const end = this.#now + ms;
    await this.turn();
    while (this.#fireNext(end)) await this.turn();
    this.#now = end;
    await this.turn();
  }

  /** Releases those who wait in `nextTurn`, `count` times, and lets all promise callbacks run in between. */
  async turn(count = 1): Promise<void> {
    for (let i = 0; i < count; i++) {
      await drainMicrotasks();
      const waiting = this.#turns;
      this.#turns = [];
      for (const resolve of waiting) resolve();
      await drainMicrotasks();
    }
  }

  /** Fires timers until none is left. @throws when that takes more than `limitMs` of virtual time */
  advanceUntilIdle(limitMs = 600_000): void {
    const end = this.#now + limitMs;
    while (this.#fireNext(end));
    if (this.#pending.size > 0) throw new Error(`${this.#pending.size} timers still pending after ${limitMs} ms`);
  }

  #fireNext(end: number): boolean {
    const timer = this.#earliest();
    if (timer === null || timer.at > end) return false;
    this.#pending.delete(timer);
    this.#now = Math.max(this.#now, timer.at);
    timer.callback();
    return true;
  }

  #earliest(): Pending | null {
    let first: Pending | null = null;
    for (const timer of this.#pending) {
      if (first === null || timer.at < first.at || (timer.at === first.at && timer.order < first.order)) first = timer;
    }
    return first;
  }
}

/** A macrotask starts only when no promise callback is left, so the order does not depend on how deep they chain. */
function drainMicrotasks(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
