import type { HandshakeRefusal, MessengerCounters } from './messenger-counters.js';

/** Peers and causes that were told; beyond it only the counters go on. */
const MAX_REMEMBERED = 1024;

/** Role: counts refused handshakes, and tells each peer and cause once: a peer that keeps trying must not fill the log. */
export class HandshakeRefusals {
  readonly #counters: MessengerCounters;
  readonly #onWarning: (message: string) => void;
  readonly #told = new Set<string>();

  constructor(counters: MessengerCounters, onWarning: (message: string) => void) {
    this.#counters = counters;
    this.#onWarning = onWarning;
  }

  /** @param who as exact as it is known; '' when ZeroMQ does not say */
  add(cause: HandshakeRefusal, who: string, message: string): void {
    this.#counters.handshakeRefused(cause);
    const key = `${cause} ${who}`;
    if (this.#told.has(key) || this.#told.size >= MAX_REMEMBERED) return;
    this.#told.add(key);
    this.#onWarning(message);
  }
}
