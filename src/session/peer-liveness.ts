import type { Clock } from '../clock.js';
import type { ControlChannel } from './control-channel.js';
import type { Peer } from './peer.js';
import { type PeerUse, UNVERIFIED_IDLE_MS, VERIFIED_IDLE_MS } from './peer-use.js';

export const PING_INTERVAL_MS = 1000;
export const PEER_DEAD_AFTER_MS = 3000;

/** What a rank says of itself in PING and PONG. */
export interface RankLoad {
  readonly sessions: number;
  readonly freeAuxSlots: number;
}

/** Role: which peers are silent though somebody listens for them, and which are idle for long. */
export class PeerLiveness {
  readonly #channel: ControlChannel;
  readonly #clock: Clock;
  readonly #use: PeerUse;
  readonly #lastHeardMs = new Map<Peer, number>();
  /** Told that nothing is wanted of them. */
  readonly #leaving = new WeakSet<Peer>();
  #lastPingMs = 0;

  constructor(channel: ControlChannel, clock: Clock, use: PeerUse) {
    this.#channel = channel;
    this.#clock = clock;
    this.#use = use;
  }

  heard(peer: Peer): void {
    this.#lastHeardMs.set(peer, this.#clock.now());
    this.#use.used(peer);
  }

  /** Ms since it was last heard. */
  silentMs(peer: Peer): number {
    const now = this.#clock.now();
    return now - (this.#lastHeardMs.get(peer) ?? now);
  }

  forget(peer: Peer): void {
    this.#lastHeardMs.delete(peer);
    this.#use.forget(peer);
  }

  /**
   * Pings peers that have live sessions.
   * @param idleOf endpoints of peers that no session needs; not asked for where there is no peer
   * @param lose ends a peer that is silent, or that nobody needed for long
   */
  sweep(
    peers: readonly Peer[],
    idleOf: () => ReadonlySet<string>,
    load: RankLoad,
    lose: (peer: Peer, why: string) => void,
  ): void {
    const now = this.#clock.now();
    const ping = now - this.#lastPingMs >= PING_INTERVAL_MS;
    if (ping) this.#lastPingMs = now;
    if (peers.length === 0) return;
    const idle = idleOf();
    for (const peer of peers) {
      if (idle.has(peer.endpoint)) {
        // Silence counts from the moment somebody listens for it.
        this.#lastHeardMs.set(peer, now);
        this.#letGoIfIdle(peer, lose);
        continue;
      }
      this.#use.served(peer);
      if (now - (this.#lastHeardMs.get(peer) ?? now) >= PEER_DEAD_AFTER_MS)
        lose(peer, `silent for ${PEER_DEAD_AFTER_MS} ms`);
      else if (ping) this.#channel.send(peer.endpoint, { type: 'PING', endpoint: this.#channel.endpoint, ...load });
    }
  }

  /** It is lost one sweep after it was told, because a connection that is closed drops what is queued; whoever needs it meanwhile greets it again. */
  #letGoIfIdle(peer: Peer, lose: (peer: Peer, why: string) => void): void {
    if (peer.greeted) {
      if (!this.#use.isIdle(peer, VERIFIED_IDLE_MS)) return;
      const reason = 'nothing was asked for a long time';
      this.#channel.send(peer.endpoint, { type: 'GOODBYE', endpoint: this.#channel.endpoint, drainMs: 0, reason });
      this.#leaving.add(peer);
      peer.greeted = false;
    } else if (this.#use.isIdle(peer, this.#leaving.has(peer) ? VERIFIED_IDLE_MS : UNVERIFIED_IDLE_MS))
      lose(peer, 'it was idle');
  }
}
