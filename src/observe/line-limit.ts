import type { Clock } from '../clock.js';

/** Kinds that are told apart at once. */
const MAX_KINDS = 256;

/** Role: at most one line of each kind in an interval, with the number of those that were left out. */
export class LineLimit {
  readonly #clock: Clock;
  readonly #intervalMs: number;
  readonly #kinds = new Map<string, { nextAtMs: number; suppressed: number }>();

  constructor(clock: Clock, intervalMs: number) {
    this.#clock = clock;
    this.#intervalMs = intervalMs;
  }

  /** @returns null: not now. Else how many were left out since the last one */
  take(kind: string): number | null {
    const now = this.#clock.now();
    const known = this.#kinds.get(kind);
    if (known !== undefined && now < known.nextAtMs) {
      known.suppressed += 1;
      return null;
    }
    if (known === undefined && this.#kinds.size >= MAX_KINDS) this.#kinds.clear();
    this.#kinds.set(kind, { nextAtMs: now + this.#intervalMs, suppressed: 0 });
    return known?.suppressed ?? 0;
  }
}
