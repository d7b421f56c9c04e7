import type { Clock, Timer } from '../clock.js';
import { TurnBudget } from '../turn-budget.js';

/** First repeat after this, then doubling up to REPEAT_MAX_MS (design: 250 ms, doubling to 2 s). */
export const REPEAT_FIRST_MS = 250;
export const REPEAT_MAX_MS = 2000;

/** Waits one after the other; the last one is repeated. */
const WAITS_MS: readonly number[] = [REPEAT_FIRST_MS, 500, 1000, REPEAT_MAX_MS];
/** What is due so soon is due now: a timer may fire a little early, and must not be set again for nothing. */
const TOLERANCE_MS = 1;

interface Running {
  readonly send: () => void;
  /** Index into WAITS_MS of the wait it is in. */
  stage: number;
  dueAtMs: number;
}

/**
 * Role: sends something until it was answered.
 * Why: a reconnect loses what was queued, so every request-bound exchange is idempotent, acknowledged and repeated.
 * Ordering: those of one stage wait equally long, so that they are due in the order in which they came to it. One timer, for the first of all
 *   stages, does for any number of them.
 */
export class Repeater<Key = string> {
  readonly #clock: Clock;
  readonly #running = new Map<Key, Running>();
  /** Per stage, the first to be due first. */
  readonly #stages: readonly Map<Key, Running>[] = WAITS_MS.map(() => new Map());
  #armed: { readonly timer: Timer; readonly dueAtMs: number } | null = null;

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
    const entry: Running = { send, stage: 0, dueAtMs: 0 };
    this.#running.set(key, entry);
    this.#enter(key, entry, 0);
    if (this.#armed === null || this.#armed.dueAtMs > entry.dueAtMs) this.#arm(entry.dueAtMs);
    send();
  }

  /** False when it was not running. */
  stop(key: Key): boolean {
    const entry = this.#running.get(key);
    if (entry === undefined) return false;
    this.#running.delete(key);
    this.#stages[entry.stage]?.delete(key);
    if (this.#running.size === 0) this.#disarm();
    return true;
  }

  stopAll(): void {
    for (const key of [...this.#running.keys()]) this.stop(key);
  }

  #enter(key: Key, entry: Running, stage: number): void {
    entry.stage = stage;
    entry.dueAtMs = this.#clock.now() + (WAITS_MS[stage] as number);
    this.#stages[stage]?.set(key, entry);
  }

  #sendDue(): void {
    this.#armed = null;
    const now = this.#clock.now();
    const turns = new TurnBudget(this.#clock);
    try {
      for (const [stage, waiting] of this.#stages.entries())
        for (const [key, entry] of waiting) {
          // Also one that came back to the last stage in this very loop.
          if (entry.dueAtMs >= now + TOLERANCE_MS) break;
          waiting.delete(key);
          this.#enter(key, entry, Math.min(stage + 1, WAITS_MS.length - 1));
          entry.send();
          // Thousands that began together are due together: the timer goes on with the rest.
          if (turns.isSpent()) return;
        }
    } finally {
      // One that cannot be sent does not keep the others waiting.
      this.#armNext();
    }
  }

  #armNext(): void {
    let dueAtMs = Number.POSITIVE_INFINITY;
    for (const waiting of this.#stages)
      for (const first of waiting.values()) {
        dueAtMs = Math.min(dueAtMs, first.dueAtMs);
        break;
      }
    if (dueAtMs !== Number.POSITIVE_INFINITY) this.#arm(dueAtMs);
  }

  #arm(dueAtMs: number): void {
    this.#disarm();
    const delayMs = Math.max(0, dueAtMs - this.#clock.now());
    this.#armed = { dueAtMs, timer: this.#clock.setTimer(delayMs, () => this.#sendDue()) };
  }

  #disarm(): void {
    this.#armed?.timer.cancel();
    this.#armed = null;
  }
}
