import { MAX_PEERS } from '../wire/limits.js';
import type { Counters } from './counters.js';
import type { Peer } from './peer.js';
import type { PeerUse } from './peer-use.js';

/** Of the connections that a rank can have, its peers get this part; ranks that are being greeted, and strangers, the rest. */
const PEERS_PART = 4 / 5;

/**
 * Role: how many peers there may be, and who makes room for one more.
 * Invariant: who has a request, or was heard of in the last seconds, stays, whoever comes. Descriptors bound the number (`maxConnections`).
 */
export class PeerRoom {
  readonly #maxConnections: () => number;
  readonly #use: PeerUse;
  readonly #idle: () => ReadonlySet<string>;
  readonly #counters: Counters;
  readonly #tell: (message: string) => void;
  #told = false;

  constructor(options: {
    readonly maxConnections: () => number;
    readonly use: PeerUse;
    readonly idle: () => ReadonlySet<string>;
    readonly counters: Counters;
    /** Told the first time that somebody is refused. */
    readonly onFull: (message: string) => void;
  }) {
    this.#maxConnections = options.maxConnections;
    this.#use = options.use;
    this.#idle = options.idle;
    this.#counters = options.counters;
    this.#tell = options.onFull;
  }

  get capacity(): number {
    return Math.max(1, Math.min(MAX_PEERS, Math.floor(this.#maxConnections() * PEERS_PART)));
  }

  /** Nobody is displaced for one that has proved nothing yet: this only looks. */
  mayHave(taken: number): boolean {
    return taken < this.capacity || this.#displaceable(false) !== null;
  }

  /**
   * @param alsoVerified one of those that this rank greeted itself may go: for one that it greets
   * @param lose makes the room
   * @returns false when all are in use, which is counted and, once, told
   */
  make(taken: number, alsoVerified: boolean, lose: (peer: Peer, why: string) => void): boolean {
    if (taken < this.capacity) return true;
    const idle = this.#displaceable(alsoVerified);
    if (idle === null) {
      this.refused();
      return false;
    }
    this.#counters.add('peers_displaced');
    lose(idle, 'another rank takes its place');
    return true;
  }

  refused(): void {
    this.#counters.add('hello_refused_full');
    if (this.#told) return;
    this.#told = true;
    this.#tell(`refused a rank: ${this.text}`);
  }

  get text(): string {
    const remedy = this.capacity < MAX_PEERS ? ', raise the limit of open files (ulimit -n)' : '';
    return `${this.capacity} ranks are peers of this one and all in use: retry later${remedy}, or spread the instances over more servers`;
  }

  #displaceable(alsoVerified: boolean): Peer | null {
    return this.#use.leastUsed(this.#idle(), { alsoVerified });
  }
}
