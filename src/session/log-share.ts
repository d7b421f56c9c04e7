import type { Clock } from '../clock.js';

const INTERVAL_MS = 1000;
/** Lines in that time. Peers may be thousands of processes in turn. */
const MAX_LINES = 16;

/** Role: how many lines of one kind get into the log, when peers decide how many there are. Disks are finite. */
export class LogShare {
  readonly #clock: Clock;
  #endsAtMs = Number.NEGATIVE_INFINITY;
  #lineCount = 0;
  #leftOut = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** @returns null: not now. Else what to append to the line: how many were left out since the last one, or nothing */
  take(): string | null {
    const now = this.#clock.now();
    if (now >= this.#endsAtMs) {
      this.#endsAtMs = now + INTERVAL_MS;
      this.#lineCount = 0;
    }
    if (this.#lineCount >= MAX_LINES) {
      this.#leftOut += 1;
      return null;
    }
    this.#lineCount += 1;
    const leftOut = this.#leftOut;
    this.#leftOut = 0;
    return leftOut === 0 ? '' : ` (${leftOut} more like it got no line)`;
  }
}
