import type { Clock } from '../clock.js';
import type { FrameOrigin } from '../wire/index.js';
import type { Peer } from './peer.js';

/** How long it is remembered of a process that is no peer by which connection it speaks: it is about to become one, or was refused. */
const REMEMBER_STRANGER_MS = 10_000;

interface Proof {
  readonly endpoint: string;
  readonly incarnation: bigint;
  readonly provenAtMs: number;
}

/**
 * Role: the peers, and by which connection each of them speaks.
 * Why: endpoint and incarnation stand in every frame and are no secret. A connection belongs to the process at an endpoint once a nonce that was
 *   sent to that endpoint alone came back on it; nothing that comes by another connection is that peer's.
 * Invariant: one connection per endpoint, the one proven last.
 */
export class PeerTable {
  readonly #clock: Clock;
  readonly #peers = new Map<string, Peer>();
  readonly #proofs = new Map<string, Proof>();
  readonly #connections = new Map<string, string>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get all(): readonly Peer[] {
    return [...this.#peers.values()];
  }

  get endpoints(): Iterable<string> {
    return this.#peers.keys();
  }

  get size(): number {
    return this.#peers.size;
  }

  at(endpoint: string): Peer | undefined {
    return this.#peers.get(endpoint);
  }

  /** The peer that a frame is from; null when its connection is not known to be the one of a peer with this incarnation. */
  sender(incarnation: bigint, origin: FrameOrigin): Peer | null {
    const endpoint = origin.kind === 'dialed' ? origin.endpoint : this.#proofs.get(origin.connection)?.endpoint;
    const peer = endpoint === undefined ? undefined : this.#peers.get(endpoint);
    if (peer === undefined || peer.incarnation !== incarnation) return null;
    return origin.kind === 'dialed' || this.isProven(peer, origin) ? peer : null;
  }

  /** Whether this connection is the one of that process. */
  isProven(process: { readonly endpoint: string; readonly incarnation: bigint }, origin: FrameOrigin): boolean {
    if (origin.kind === 'dialed') return false;
    const proof = this.#proofs.get(origin.connection);
    return proof?.endpoint === process.endpoint && proof.incarnation === process.incarnation;
  }

  /** What was sent to the endpoint alone came back by this connection. */
  prove(
    { endpoint, incarnation }: { readonly endpoint: string; readonly incarnation: bigint },
    origin: FrameOrigin,
  ): void {
    if (origin.kind === 'dialed') return;
    this.#disprove(endpoint);
    // The connection of a process that claims two endpoints, and answers at both, is that of the newer one.
    const other = this.#proofs.get(origin.connection);
    if (other !== undefined) this.#disprove(other.endpoint);
    this.#proofs.set(origin.connection, { endpoint, incarnation, provenAtMs: this.#clock.now() });
    this.#connections.set(endpoint, origin.connection);
  }

  add(peer: Peer): void {
    this.#peers.set(peer.endpoint, peer);
  }

  /** @returns false when it is no peer any more */
  remove(peer: Peer): boolean {
    if (this.#peers.get(peer.endpoint) !== peer) return false;
    this.#disprove(peer.endpoint);
    return this.#peers.delete(peer.endpoint);
  }

  sweep(): void {
    if (this.#proofs.size <= this.#peers.size) return;
    const now = this.#clock.now();
    for (const { endpoint, provenAtMs } of [...this.#proofs.values()])
      if (!this.#peers.has(endpoint) && now - provenAtMs >= REMEMBER_STRANGER_MS) this.#disprove(endpoint);
  }

  #disprove(endpoint: string): void {
    const connection = this.#connections.get(endpoint);
    if (connection === undefined) return;
    this.#connections.delete(endpoint);
    this.#proofs.delete(connection);
  }
}
