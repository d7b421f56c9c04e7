import type { HrTime } from '@opentelemetry/api';

/** How far the wall clock may drift, or be stepped, before dates follow it. */
const TOLERANCE_MS = 20;

/**
 * Role: dates for `Clock` times.
 * Why: one offset for all spans of a trace keeps children inside their parents, which the jitter of the wall clock would not.
 */
export class WallTime {
  readonly #unixNow: () => number;
  #offsetMs: number | null = null;

  constructor(unixNow: () => number) {
    this.#unixNow = unixNow;
  }

  /** @param nowMs the `Clock` time now */
  sync(nowMs: number): void {
    const offsetMs = this.#unixNow() - nowMs;
    if (this.#offsetMs === null || Math.abs(offsetMs - this.#offsetMs) > TOLERANCE_MS) this.#offsetMs = offsetMs;
  }

  /** `[seconds, nanoseconds]` since 1970: a plain number would be read as another kind of time when it is small. */
  of(atMs: number): HrTime {
    const unixMs = atMs + (this.#offsetMs ?? 0);
    const seconds = Math.floor(unixMs / 1000);
    return [seconds, Math.min(999_999_999, Math.round((unixMs - seconds * 1000) * 1e6))];
  }
}
