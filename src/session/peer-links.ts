import type { TransferAgent } from '../agent/transfer-agent.js';
import { type KvTransceiverError, TransportError } from '../errors.js';
import type { RankInfo } from '../mapping/rank-info.js';
import type { SpokenMajor } from '../wire/index.js';
import type { CallbackGuard } from './callback-guard.js';
import type { Counters } from './counters.js';
import type { Claim } from './greetings.js';
import { peerName } from './peer.js';
import { linkPeer, type PeerLink } from './peer-link.js';

/** An accepted HELLO of ours. */
export interface Answer {
  readonly self: RankInfo;
  readonly rankInfo: RankInfo;
  readonly heard: SpokenMajor;
  /** Tells whoever waits for this peer. */
  readonly refuse: (error: KvTransceiverError) => void;
}

/** A link that is being made, and who waits for it: the HELLO that asked for it, our own, or both. */
export interface Linking {
  readonly endpoint: string;
  claim: Claim | null;
  answer: Answer | null;
}

/** Role: the links to peers' memory that are under way, at most one per process. */
export class PeerLinks {
  readonly #agent: TransferAgent;
  readonly #counters: Counters;
  readonly #guard: CallbackGuard;
  readonly #onLinked: (linking: Linking, link: PeerLink) => void;
  readonly #onFailed: (linking: Linking, error: KvTransceiverError) => void;
  readonly #underWay = new Map<string, Linking>();
  #closed = false;

  constructor(options: {
    readonly agent: TransferAgent;
    readonly counters: Counters;
    readonly guard: CallbackGuard;
    readonly onLinked: (linking: Linking, link: PeerLink) => void;
    readonly onFailed: (linking: Linking, error: KvTransceiverError) => void;
  }) {
    this.#agent = options.agent;
    this.#counters = options.counters;
    this.#guard = options.guard;
    this.#onLinked = options.onLinked;
    this.#onFailed = options.onFailed;
  }

  get size(): number {
    return this.#underWay.size;
  }

  of(rankInfo: RankInfo): Linking | undefined {
    return this.#underWay.get(keyOf(rankInfo));
  }

  isUnderWayAt(endpoint: string): boolean {
    for (const linking of this.#underWay.values()) if (linking.endpoint === endpoint) return true;
    return false;
  }

  begin(self: RankInfo, rankInfo: RankInfo, waiting: Pick<Linking, 'claim' | 'answer'>): void {
    const key = keyOf(rankInfo);
    const linking: Linking = { endpoint: rankInfo.endpoint, ...waiting };
    this.#underWay.set(key, linking);
    linkPeer(this.#agent, self, rankInfo).then(
      (link) => {
        this.#underWay.delete(key);
        if (this.#closed) this.unlink(link);
        else this.#linked(linking, link, rankInfo);
      },
      (cause: unknown) => {
        this.#underWay.delete(key);
        if (!this.#closed) this.#failed(linking, unreachable(rankInfo, cause));
      },
    );
  }

  unlink(link: PeerLink): void {
    void this.#agent.removePeer(link.handle).catch(() => this.#counters.add('remove_peer_failed'));
  }

  close(): void {
    this.#closed = true;
  }

  #linked(linking: Linking, link: PeerLink, rankInfo: RankInfo): void {
    const error = this.#guard.run(`the link to ${peerName(rankInfo)}`, () => this.#onLinked(linking, link));
    // Requests wait for this peer.
    if (error !== null) this.#failed(linking, error);
  }

  #failed(linking: Linking, error: KvTransceiverError): void {
    this.#guard.run(`the refusal of ${linking.endpoint}`, () => this.#onFailed(linking, error));
  }
}

function keyOf({ endpoint, incarnation }: RankInfo): string {
  return `${incarnation.toString(16)}@${endpoint}`;
}

function unreachable(info: RankInfo, cause: unknown): TransportError {
  const why = cause instanceof Error ? cause.message : String(cause);
  const message = `${peerName(info)}: its memory cannot be reached: ${why}`;
  return new TransportError(message, { peer: info.endpoint, drained: true });
}
