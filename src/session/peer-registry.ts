import type { TransferAgent } from '../agent/transfer-agent.js';
import type { Clock } from '../clock.js';
import {
  CompatibilityError,
  type KvTransceiverError,
  PeerLostError,
  TransferTimeoutError,
  TransportError,
  type WireError,
} from '../errors.js';
import { explainCompatibility, type Finding } from '../mapping/index.js';
import type { RankInfo } from '../mapping/rank-info.js';
import { WIRE_MAJOR } from '../wire/index.js';
import type { Goodbye, Hello, HelloAck, Ping } from '../wire/messages.js';
import { clipText } from './clip-text.js';
import type { ControlChannel } from './control-channel.js';
import type { Counters } from './counters.js';
import { severalPeersFinding } from './peer-count.js';
import { linkPeer, type PeerLink } from './peer-link.js';
import { Repeater } from './repeater.js';

export const HELLO_TIMEOUT_MS = 5000;
export const PING_INTERVAL_MS = 1000;
export const PEER_DEAD_AFTER_MS = 3000;
/** At most one ERROR frame per peer in this time, so that two confused ranks do not flood each other. */
const ERROR_INTERVAL_MS = 1000;

/** A rank whose HELLO was accepted, or that accepted ours, or both. One object per incarnation; only the registry changes it. */
export interface Peer {
  /** For messages to people: instance, rank, endpoint. */
  readonly name: string;
  readonly endpoint: string;
  readonly incarnation: bigint;
  readonly info: RankInfo;
  /** How to write into its pages: there once its HELLO was accepted. */
  link: PeerLink | null;
  /** It accepted our HELLO, so that it can write into ours. */
  greeted: boolean;
}

export interface PeerEvents {
  readonly onReady: (peer: Peer) => void;
  /** No peer at this endpoint: it refused, did not answer in time, or its memory could not be reached. */
  readonly onRefused: (endpoint: string, error: KvTransceiverError) => void;
  readonly onLost: (peer: Peer, error: PeerLostError) => void;
}

interface Greeting {
  readonly nonce: bigint;
  readonly startedAtMs: number;
}

/**
 * Role: who is there. HELLO both ways, liveness, loss.
 * Ordering: `onReady` comes before any other notice about a peer, `onLost` at most once, after which the peer object is dead.
 */
export class PeerRegistry {
  readonly #channel: ControlChannel;
  readonly #agent: TransferAgent;
  readonly #clock: Clock;
  readonly #self: () => RankInfo;
  readonly #counters: Counters;
  readonly #events: PeerEvents;
  readonly #repeater: Repeater;
  readonly #greetings = new Map<string, Greeting>();
  readonly #byEndpoint = new Map<string, Peer>();
  readonly #byIncarnation = new Map<bigint, Peer>();
  readonly #lastHeardMs = new Map<Peer, number>();
  readonly #lastErrorMs = new WeakMap<Peer, number>();
  /** Endpoint -> incarnation whose memory is being mapped right now. */
  readonly #linking = new Map<string, bigint>();
  /** Peers that accepted our HELLO while theirs was still being answered. */
  readonly #awaitingLink = new Set<string>();
  #nextNonce = 1n;
  #lastPingMs = 0;
  #closed = false;

  constructor(options: {
    readonly channel: ControlChannel;
    readonly agent: TransferAgent;
    readonly clock: Clock;
    readonly self: () => RankInfo;
    readonly counters: Counters;
    readonly events: PeerEvents;
  }) {
    this.#channel = options.channel;
    this.#agent = options.agent;
    this.#clock = options.clock;
    this.#self = options.self;
    this.#counters = options.counters;
    this.#events = options.events;
    this.#repeater = new Repeater(options.clock);
  }

  get peers(): readonly Peer[] {
    return [...this.#byEndpoint.values()];
  }

  at(endpoint: string): Peer | null {
    return this.#byEndpoint.get(endpoint) ?? null;
  }

  /** The peer at this endpoint if it can be asked for pages. */
  greetedAt(endpoint: string): Peer | null {
    const peer = this.at(endpoint);
    return peer?.greeted === true ? peer : null;
  }

  /** The peer that sent a frame, by the incarnation in its header. Marks it alive. */
  sender(incarnation: bigint): Peer | null {
    const peer = this.#byIncarnation.get(incarnation) ?? null;
    if (peer !== null) this.#lastHeardMs.set(peer, this.#clock.now());
    return peer;
  }

  /** Starts a HELLO unless this endpoint was greeted or is being greeted. */
  greet(endpoint: string): void {
    if (this.#closed || this.greetedAt(endpoint) !== null || this.#greetings.has(endpoint)) return;
    const nonce = this.#nextNonce++;
    this.#greetings.set(endpoint, { nonce, startedAtMs: this.#clock.now() });
    const hello: Hello = { type: 'HELLO', nonce, supportedMajors: [WIRE_MAJOR], rankInfo: this.#self() };
    this.#repeater.start(endpoint, () => this.#channel.send(endpoint, hello));
  }

  onHello(hello: Hello): void {
    const { rankInfo } = hello;
    const { endpoint, incarnation } = rankInfo;
    if (this.#closed || this.#linking.get(endpoint) === incarnation) return;
    const known = this.#byEndpoint.get(endpoint);
    if (known?.incarnation === incarnation && known.link !== null) {
      this.#accept(endpoint, hello.nonce);
      return;
    }
    if (known !== undefined && known.incarnation !== incarnation)
      this.lose(known, `a new process answers at ${endpoint} (incarnation ${incarnation.toString(16)})`);
    if (!hello.supportedMajors.includes(WIRE_MAJOR)) {
      const message = `this rank speaks wire version ${WIRE_MAJOR}, the peer ${hello.supportedMajors.join(', ')}: upgrade the older side`;
      this.#refuse(endpoint, hello.nonce, message, []);
      return;
    }
    const findings = findingsAgainst(this.#self(), rankInfo);
    if (findings.length > 0) {
      this.#counters.add('hello_refused');
      this.#refuse(endpoint, hello.nonce, incompatible(findings), findings);
      return;
    }
    this.#linking.set(endpoint, incarnation);
    linkPeer(this.#agent, this.#self(), rankInfo).then(
      (link) => {
        this.#linked(hello, link);
        if (this.#awaitingLink.delete(endpoint)) this.#greeted(endpoint, rankInfo, null);
      },
      (cause: unknown) => {
        this.#linking.delete(endpoint);
        if (this.#awaitingLink.delete(endpoint)) this.#unreachable(endpoint, rankInfo, cause);
        const message = `${peerName(rankInfo)}: its memory cannot be reached: ${describe(cause)}`;
        this.#refuse(endpoint, hello.nonce, message, []);
      },
    );
  }

  onHelloAck(ack: HelloAck): void {
    const greeting = this.#greetings.get(ack.endpoint);
    if (greeting === undefined || greeting.nonce !== ack.nonce) {
      this.#counters.add('stale:HELLO_ACK');
      return;
    }
    this.#endGreeting(ack.endpoint);
    if (!ack.answer.accepted) {
      const error =
        ack.answer.findings.length > 0
          ? new CompatibilityError(`${ack.endpoint} refused: ${ack.answer.message}`, {
              details: { findings: ack.answer.findings },
            })
          : new TransportError(`${ack.endpoint} refused: ${ack.answer.message}`, {
              peer: ack.endpoint,
              drained: true,
            });
      this.#events.onRefused(ack.endpoint, error);
      return;
    }
    // It accepted us, but what it says of itself is checked all the same: plans are made from it.
    const findings = findingsAgainst(this.#self(), ack.answer.rankInfo);
    if (findings.length > 0) {
      this.#counters.add('hello_ack_refused');
      const error = new CompatibilityError(`${ack.endpoint}: ${incompatible(findings)}`, { details: { findings } });
      this.#events.onRefused(ack.endpoint, error);
      return;
    }
    // Only the writing side needs the other's memory: nothing of this RankInfo is loaded into the agent here. Unless it bounces: then
    // both agents talk to each other.
    const { rankInfo } = ack.answer;
    if (this.#agent.bounces === true) this.#linkGreeted(ack.endpoint, rankInfo);
    else this.#greeted(ack.endpoint, rankInfo, null);
  }

  #greeted(endpoint: string, rankInfo: RankInfo, link: PeerLink | null): void {
    const known = this.#byEndpoint.get(endpoint);
    if (known?.incarnation === rankInfo.incarnation) {
      known.link ??= link;
      known.greeted = true;
      this.#events.onReady(known);
      return;
    }
    if (known !== undefined) this.lose(known, `a new process answers at ${endpoint}`);
    this.#add({ ...peerIdentity(rankInfo), endpoint, info: rankInfo, link, greeted: true });
  }

  /** Ready only once the agent knows the peer. A link that the peer's own HELLO began is waited for. */
  #linkGreeted(endpoint: string, rankInfo: RankInfo): void {
    const { incarnation } = rankInfo;
    const known = this.#byEndpoint.get(endpoint);
    if (known?.incarnation === incarnation && known.link !== null) {
      this.#greeted(endpoint, rankInfo, null);
      return;
    }
    if (this.#linking.get(endpoint) === incarnation) {
      this.#awaitingLink.add(endpoint);
      return;
    }
    this.#linking.set(endpoint, incarnation);
    linkPeer(this.#agent, this.#self(), rankInfo).then(
      (link) => {
        this.#linking.delete(endpoint);
        if (this.#closed)
          void this.#agent.removePeer(link.handle).catch(() => this.#counters.add('remove_peer_failed'));
        else this.#greeted(endpoint, rankInfo, link);
      },
      (cause: unknown) => {
        this.#linking.delete(endpoint);
        this.#unreachable(endpoint, rankInfo, cause);
      },
    );
  }

  #unreachable(endpoint: string, rankInfo: RankInfo, cause: unknown): void {
    const message = `${peerName(rankInfo)}: its memory cannot be reached: ${describe(cause)}`;
    this.#events.onRefused(endpoint, new TransportError(message, { peer: endpoint, drained: true }));
  }

  onPing(peer: Peer | null, ping: Ping, self: { readonly sessions: number; readonly freeAuxSlots: number }): void {
    if (peer === null) {
      // Whoever pings believes to be a peer, but this process lost it, or is a new one: told so, it can greet again at once.
      this.#counters.add('unknown_peer:PING');
      const reason = 'this process does not know you, send HELLO first';
      this.#channel.send(ping.endpoint, { type: 'GOODBYE', endpoint: this.#channel.endpoint, drainMs: 0, reason });
    } else this.#channel.send(ping.endpoint, { type: 'PONG', endpoint: this.#channel.endpoint, ...self });
  }

  /** Tells a known sender that its frame was not understood. */
  onBadFrame(error: WireError): void {
    const { incarnation, rid } = error.details;
    const peer = typeof incarnation === 'bigint' ? this.#byIncarnation.get(incarnation) : undefined;
    if (peer === undefined) return;
    const now = this.#clock.now();
    if (now - (this.#lastErrorMs.get(peer) ?? Number.NEGATIVE_INFINITY) < ERROR_INTERVAL_MS) return;
    this.#lastErrorMs.set(peer, now);
    this.#channel.send(peer.endpoint, {
      type: 'ERROR',
      rid: typeof rid === 'bigint' ? rid : 0n,
      code: error.code,
      text: clipText(error.message),
    });
  }

  disconnected(endpoint: string): void {
    const peer = this.#byEndpoint.get(endpoint);
    if (peer !== undefined) this.lose(peer, 'its connection broke');
  }

  /** From a peer, or from another process that answers at a peer's endpoint now. */
  onGoodbye(sender: Peer | null, goodbye: Goodbye): void {
    const peer = sender ?? this.at(goodbye.endpoint);
    if (peer === null) this.#counters.add('unknown_peer:GOODBYE');
    else this.lose(peer, `it said goodbye: ${goodbye.reason}`);
  }

  lose(peer: Peer, why: string): void {
    if (this.#byEndpoint.get(peer.endpoint) !== peer) return;
    this.#byEndpoint.delete(peer.endpoint);
    this.#byIncarnation.delete(peer.incarnation);
    this.#lastHeardMs.delete(peer);
    this.#counters.add('peers_lost');
    this.#events.onLost(peer, new PeerLostError(`lost ${peer.name}: ${why}`, { peer: peer.name }));
    this.#channel.forget(peer.endpoint);
    // After onLost: the sessions have cancelled what they had there, so that the agent sees no new work for a peer it removes.
    if (peer.link !== null)
      void this.#agent.removePeer(peer.link.handle).catch(() => this.#counters.add('remove_peer_failed'));
  }

  /** Pings peers that have live sessions, declares silent ones dead, ends greetings that nobody answers. */
  sweep(busy: ReadonlySet<string>, self: { readonly sessions: number; readonly freeAuxSlots: number }): void {
    const now = this.#clock.now();
    for (const [endpoint, greeting] of [...this.#greetings]) {
      if (now - greeting.startedAtMs < HELLO_TIMEOUT_MS) continue;
      this.#endGreeting(endpoint);
      this.#channel.forget(endpoint);
      this.#events.onRefused(
        endpoint,
        new TransferTimeoutError(
          `${endpoint} did not answer HELLO within ${HELLO_TIMEOUT_MS} ms: is the context server running there?`,
          { peer: endpoint, drained: true },
        ),
      );
    }
    const ping = now - this.#lastPingMs >= PING_INTERVAL_MS;
    if (ping) this.#lastPingMs = now;
    for (const peer of this.peers) {
      if (!busy.has(peer.endpoint)) {
        // Silence counts from the moment somebody listens for it.
        this.#lastHeardMs.set(peer, now);
        continue;
      }
      if (now - (this.#lastHeardMs.get(peer) ?? now) >= PEER_DEAD_AFTER_MS)
        this.lose(peer, `silent for ${PEER_DEAD_AFTER_MS} ms`);
      else if (ping) this.#channel.send(peer.endpoint, { type: 'PING', endpoint: this.#channel.endpoint, ...self });
    }
  }

  close(): void {
    this.#closed = true;
    this.#repeater.stopAll();
    this.#greetings.clear();
  }

  #linked(hello: Hello, link: PeerLink): void {
    const { rankInfo } = hello;
    this.#linking.delete(rankInfo.endpoint);
    const known = this.#byEndpoint.get(rankInfo.endpoint);
    if (!this.#closed && known?.incarnation === rankInfo.incarnation && known.link === null) {
      known.link = link;
      this.#accept(rankInfo.endpoint, hello.nonce);
      return;
    }
    if (this.#closed || known !== undefined) {
      void this.#agent.removePeer(link.handle).catch(() => this.#counters.add('remove_peer_failed'));
      return;
    }
    this.#add({ ...peerIdentity(rankInfo), endpoint: rankInfo.endpoint, info: rankInfo, link, greeted: false });
    this.#accept(rankInfo.endpoint, hello.nonce);
  }

  #add(peer: Peer): void {
    this.#byEndpoint.set(peer.endpoint, peer);
    this.#byIncarnation.set(peer.incarnation, peer);
    this.#lastHeardMs.set(peer, this.#clock.now());
    this.#events.onReady(peer);
  }

  #accept(endpoint: string, nonce: bigint): void {
    const answer = { accepted: true, rankInfo: this.#self() } as const;
    this.#channel.send(endpoint, { type: 'HELLO_ACK', nonce, endpoint: this.#channel.endpoint, answer });
  }

  #refuse(endpoint: string, nonce: bigint, message: string, findings: readonly Finding[]): void {
    const answer = { accepted: false, message: clipText(message), findings } as const;
    this.#channel.send(endpoint, { type: 'HELLO_ACK', nonce, endpoint: this.#channel.endpoint, answer });
  }

  #endGreeting(endpoint: string): void {
    this.#greetings.delete(endpoint);
    this.#repeater.stop(endpoint);
  }
}

function findingsAgainst(self: RankInfo, peer: RankInfo): Finding[] {
  const findings = [...explainCompatibility(peer, self)];
  const several = findings.length > 0 ? null : severalPeersFinding(self, peer);
  return several === null ? findings : [several];
}

function incompatible(findings: readonly Finding[]): string {
  const fields = findings.map((f) => `${f.field}: ${f.a} against ${f.b}, ${f.verdict} (${f.whichSideToChange})`);
  return `incompatible KV cache: ${fields.join('; ')}`;
}

function peerName(info: RankInfo): string {
  return `${info.instanceName} rank ${info.rank} at ${info.endpoint}`;
}

function peerIdentity(info: RankInfo): { readonly name: string; readonly incarnation: bigint } {
  return { name: peerName(info), incarnation: info.incarnation };
}

function describe(cause: unknown): string {
  return cause instanceof Error ? cause.message : String(cause);
}
