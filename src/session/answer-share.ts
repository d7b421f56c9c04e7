import type { Clock } from '../clock.js';
import type { Peer } from './peer.js';

const INTERVAL_MS = 1000;
/** One peer's answers in that time. A receiver repeats a question once in 2 s at most, so that this is 8192 of them. */
const MAX_ANSWERS = 4096;

/** Role: how often one peer is told that there is no room for its questions: what keeps nothing of a question must not multiply it either. */
export class AnswerShare {
  readonly #clock: Clock;
  readonly #shares = new WeakMap<Peer, { endsAtMs: number; count: number }>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** False: not now. */
  take(peer: Peer): boolean {
    const now = this.#clock.now();
    let share = this.#shares.get(peer);
    if (share === undefined || now >= share.endsAtMs) {
      share = { endsAtMs: now + INTERVAL_MS, count: 0 };
      this.#shares.set(peer, share);
    }
    if (share.count >= MAX_ANSWERS) return false;
    share.count += 1;
    return true;
  }
}
