import type { Clock } from '../clock.js';
import type { Peer } from './peer.js';

/** A peer that this rank asked for pages, and that nothing was heard of or wanted from in this time, is let go. */
export const VERIFIED_IDLE_MS = 10 * 60_000;
/**
 * The same for one that only greeted us. Longer, so that of two ranks the one that asks lets go first: it would greet again before it asks,
 * while a writer that has let go can only refuse.
 */
export const UNVERIFIED_IDLE_MS = 15 * 60_000;
/** Whoever was heard of within this time does not make room for another. */
const KEPT_FOR_MS = 5000;

/** Role: when each peer was last of use; which of them go when they are too many or idle for long. */
export class PeerUse {
  readonly #clock: Clock;
  readonly #usedAtMs = new Map<Peer, number>();
  /** Those that had a request with this rank. */
  readonly #served = new WeakSet<Peer>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  used(peer: Peer): void {
    this.#usedAtMs.set(peer, this.#clock.now());
  }

  /** A session needs it. */
  served(peer: Peer): void {
    this.#served.add(peer);
    this.used(peer);
  }

  forget(peer: Peer): void {
    this.#usedAtMs.delete(peer);
  }

  isIdle(peer: Peer, limitMs: number): boolean {
    return this.#idleMs(peer) >= limitMs;
  }

  /**
   * The one to make room for another: one that no session needs, first one that never had a request, and of those that this rank greeted itself only
   * where one of its own takes the place.
   * @returns null when all are in use
   */
  leastUsed(idle: ReadonlySet<string>, options: { readonly alsoVerified: boolean }): Peer | null {
    let chosen: Peer | null = null;
    for (const peer of this.#usedAtMs.keys()) {
      if (this.#idleMs(peer) < KEPT_FOR_MS || !idle.has(peer.endpoint)) continue;
      if (peer.greeted && !options.alsoVerified) continue;
      if (chosen === null || this.#before(peer, chosen)) chosen = peer;
    }
    return chosen;
  }

  #before(a: Peer, b: Peer): boolean {
    if (a.greeted !== b.greeted) return b.greeted;
    const [servedA, servedB] = [this.#served.has(a), this.#served.has(b)];
    if (servedA !== servedB) return servedB;
    return this.#idleMs(a) > this.#idleMs(b);
  }

  #idleMs(peer: Peer): number {
    const now = this.#clock.now();
    return now - (this.#usedAtMs.get(peer) ?? now);
  }
}
