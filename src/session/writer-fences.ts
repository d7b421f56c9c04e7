import type { TransferAgent } from '../agent/transfer-agent.js';
import type { Peer } from './peer-registry.js';

/**
 * Role: the proof of drained that needs no word of the writer: its process has ended. Only where the agent can see that process.
 * Ordering: a peer is told of at most once per process.
 */
export class WriterFences {
  readonly #agent: TransferAgent;
  readonly #watched = new Map<string, Peer>();

  /** @param onFenced nothing this peer started can write here any more */
  constructor(agent: TransferAgent, onFenced: (peer: Peer) => void) {
    this.#agent = agent;
    agent.onPeerFenced?.((peerId) => {
      const peer = this.#watched.get(peerId);
      if (peer === undefined) return;
      this.#watched.delete(peerId);
      onFenced(peer);
    });
  }

  /** Who is watched under this name. */
  of(peerId: string): Pick<Peer, 'endpoint' | 'incarnation'> | null {
    return this.#watched.get(peerId) ?? null;
  }

  /**
   * Watches for as long as the process lives, however often the peer is lost and greeted again. Only one that can be asked to write: whoever
   * merely greeted this rank must not make it hold a handle per greeting.
   */
  watch(peer: Peer): void {
    if (!peer.greeted) return;
    const peerId = `${peer.incarnation.toString(16)}@${peer.endpoint}`;
    if (this.#agent.watchPeer === undefined || this.#watched.has(peerId)) return;
    this.#watched.set(peerId, peer);
    // Without that proof the writer's own word, or time, releases its pages as before.
    const forget = (): void => void this.#watched.delete(peerId);
    this.#agent.watchPeer(peer.info.agentMetadata, peerId).then((isWatched) => {
      if (!isWatched) forget();
    }, forget);
  }
}
