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

/**
 * Role: the three clocks of one request. A sweep asks `expired`; nothing here runs by itself.
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

  /** @param now the time, when the caller has read it just now */
  expired(now: number = this.#clock.now()): ExpiredClock | null {
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
