import type { Clock } from '../clock.js';

export interface ClockLimits {
  /** Waiting for the peer; not charged to the transfer. */
  readonly transferQueueTimeoutMs: number;
  /** Between two signs of progress while something is outstanding. */
  readonly noProgressTimeoutMs: number;
  /** Work of the transfer, time in which only prefill ran not counted. */
  readonly kvTransferTimeoutMs: number;
}

export interface ExpiredClock {
  readonly clock: 'queue' | 'progress' | 'transfer';
  readonly limitMs: number;
}

/** Sums and differences of times are not exact: what is due is looked for so much before. */
export const LOOK_EARLY_MS = 1;

/**
 * Role: the three clocks of one request. A sweep asks `expired`; nothing here runs by itself.
 * Why `notBeforeMs`: thousands of requests are asked ten times a second, and each is seconds away from its end: until then one comparison
 *   answers. Whatever happens meanwhile only makes it later, or starts a clock that has its whole limit.
 *
 * queue     from creation until `peerArrived`
 * progress  from the last `progress()`, while busy or after `expectProgress`. While not busy a `signOfLife()` counts as well, but only until
 *           the queue limit: a peer that says that it waits is waited for as long as one that has not begun, and no longer
 * transfer  sum of the busy times
 * Busy means: the transfer has work that is not done. Between two slices a running prefill step is not the transfer's time.
 */
export class RequestClocks {
  readonly #clock: Clock;
  readonly #limits: ClockLimits;
  readonly #createdAtMs: number;
  #waitingForPeer = true;
  #progressExpected = false;
  #busySinceMs: number | null = null;
  #busyBeforeMs = 0;
  #lastProgressMs: number;
  #lastSignMs = Number.NEGATIVE_INFINITY;
  #notBeforeMs = Number.NEGATIVE_INFINITY;

  constructor(clock: Clock, limits: ClockLimits) {
    this.#clock = clock;
    this.#limits = limits;
    this.#createdAtMs = clock.now();
    this.#lastProgressMs = this.#createdAtMs;
  }

  /** @returns true the first time */
  peerArrived(): boolean {
    if (!this.#waitingForPeer) return false;
    this.#waitingForPeer = false;
    this.progress();
    return true;
  }

  /** @param now the time, when the caller has read it just now */
  progress(now: number = this.#clock.now()): void {
    this.#lastProgressMs = now;
  }

  /** The peer has nothing new and says so. */
  signOfLife(): void {
    this.#lastSignMs = this.#clock.now();
  }

  /** From now on silence counts also while not busy: the side that only listens has no other sign of life. */
  expectProgress(): void {
    if (this.#progressExpected) return;
    this.#progressExpected = true;
    this.progress();
  }

  /** @param now the time, when the caller has read it just now */
  setBusy(busy: boolean, now: number = this.#clock.now()): void {
    if (busy && this.#busySinceMs === null) {
      this.#busySinceMs = now;
      this.#lastProgressMs = now;
    } else if (!busy && this.#busySinceMs !== null) {
      this.#busyBeforeMs += now - this.#busySinceMs;
      this.#busySinceMs = null;
    }
  }

  /** Ms that each clock has left; null for one that does not run. */
  left(now: number): Readonly<Record<ExpiredClock['clock'], number | null>> {
    const { transferQueueTimeoutMs, noProgressTimeoutMs, kvTransferTimeoutMs } = this.#limits;
    const isBusy = this.#busySinceMs !== null;
    const busyMs = this.#busyBeforeMs + (this.#busySinceMs === null ? 0 : now - this.#busySinceMs);
    return {
      queue: this.#waitingForPeer ? transferQueueTimeoutMs - (now - this.#createdAtMs) : null,
      progress: isBusy || this.#progressExpected ? noProgressTimeoutMs - (now - this.#lastProgressMs) : null,
      transfer: isBusy ? kvTransferTimeoutMs - busyMs : null,
    };
  }

  /** Nothing expires before this; brought up to date when `expired` is asked after it. */
  get notBeforeMs(): number {
    return this.#notBeforeMs;
  }

  /** @param now the time, when the caller has read it just now */
  expired(now: number = this.#clock.now()): ExpiredClock | null {
    if (now < this.#notBeforeMs) return null;
    const expired = this.#expired(now);
    if (expired === null) this.#notBeforeMs = this.#earliest(now) - LOOK_EARLY_MS;
    return expired;
  }

  /** When at the earliest a clock expires, of those that run and of those that may start now. */
  #earliest(now: number): number {
    const { transferQueueTimeoutMs, noProgressTimeoutMs, kvTransferTimeoutMs } = this.#limits;
    const queue = this.#waitingForPeer ? this.#createdAtMs + transferQueueTimeoutMs : Number.POSITIVE_INFINITY;
    const transfer = (this.#busySinceMs ?? now) + kvTransferTimeoutMs - this.#busyBeforeMs;
    let progress = this.#lastProgressMs + noProgressTimeoutMs;
    if (this.#busySinceMs === null) {
      if (!this.#progressExpected) progress = now + noProgressTimeoutMs;
      // It is silent for long, and waited for because of what it said.
      else if (progress <= now)
        progress = Math.min(this.#lastSignMs + noProgressTimeoutMs, this.#lastProgressMs + transferQueueTimeoutMs);
    }
    return Math.min(queue, transfer, progress);
  }

  #expired(now: number): ExpiredClock | null {
    const { transferQueueTimeoutMs, noProgressTimeoutMs, kvTransferTimeoutMs } = this.#limits;
    if (this.#waitingForPeer && now - this.#createdAtMs >= transferQueueTimeoutMs)
      return { clock: 'queue', limitMs: transferQueueTimeoutMs };
    const busy = this.#busySinceMs !== null;
    if (this.#busySinceMs !== null && this.#busyBeforeMs + now - this.#busySinceMs >= kvTransferTimeoutMs)
      return { clock: 'transfer', limitMs: kvTransferTimeoutMs };
    if (!busy && !this.#progressExpected) return null;
    const silentMs = now - this.#lastProgressMs;
    if (silentMs < noProgressTimeoutMs) return null;
    const waits = !busy && now - this.#lastSignMs < noProgressTimeoutMs;
    if (waits && silentMs < transferQueueTimeoutMs) return null;
    return waits
      ? { clock: 'queue', limitMs: transferQueueTimeoutMs }
      : { clock: 'progress', limitMs: noProgressTimeoutMs };
  }
}
