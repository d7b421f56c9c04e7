import type { TransferAgent } from '../agent/transfer-agent.js';
import type { Clock } from '../clock.js';
import {
  CompatibilityError,
  type KvTransceiverError,
  PeerLostError,
  ResourceError,
  TransferTimeoutError,
  TransportError,
  type WireError,
} from '../errors.js';
import { type Finding, ranksOverlap } from '../mapping/index.js';
import type { RankInfo } from '../mapping/rank-info.js';
import { negotiateMajor, SUPPORTED_MAJORS } from '../wire/index.js';
import { MAX_PEERS } from '../wire/limits.js';
import type { Goodbye, Hello, HelloAck, Ping } from '../wire/messages.js';
import { clipText } from './clip-text.js';
import type { ControlChannel } from './control-channel.js';
import type { Counters } from './counters.js';
import { type Claim, type Greeting, Greetings } from './greetings.js';
import { findingsAgainst, incompatible, type Peer, peerIdentity, peerName } from './peer.js';
import { linkPeer, type PeerLink } from './peer-link.js';
import { PeerUse, UNVERIFIED_IDLE_MS, VERIFIED_IDLE_MS } from './peer-use.js';

export type { Peer } from './peer.js';

export const HELLO_TIMEOUT_MS = 5000;
export const PING_INTERVAL_MS = 1000;
export const PEER_DEAD_AFTER_MS = 3000;
/** At most one ERROR frame per peer in this time, so that two confused ranks do not flood each other. */
const ERROR_INTERVAL_MS = 1000;
/** Greetings at once: what a peer publishes of its instance decides whom this rank greets. */
const MAX_GREETINGS = 4096;
/** A peer that has just proved that it is there is not asked again: a HELLO is much larger than what a stranger sends to provoke it. */
const PROBE_INTERVAL_MS = 1000;

const FULL = `${MAX_PEERS} ranks are peers of this one and all in use: retry later, or spread the instances over more servers`;

export interface PeerEvents {
  readonly onReady: (peer: Peer) => void;
  /** No peer at this endpoint: it refused, did not answer in time, or its memory could not be reached. */
  readonly onRefused: (endpoint: string, error: KvTransceiverError) => void;
  readonly onLost: (peer: Peer, error: PeerLostError) => void;
}

/** An accepted HELLO of ours. */
interface Answer {
  readonly self: RankInfo;
  readonly rankInfo: RankInfo;
  readonly minor: number;
  /** Tells whoever waits for this peer. */
  readonly refuse: (error: KvTransceiverError) => void;
}

/**
 * Role: who is there. HELLO both ways, liveness, loss.
 * Why: a frame may claim any endpoint. What a stranger says of the endpoint of a live peer makes this rank greet that endpoint; only
 *   what answers there can end the peer.
 * Ordering: `onReady` comes before any other notice about a peer, `onLost` at most once, after which the peer object is dead. A rank that
 *   has not joined its instance answers no HELLO (the peer repeats it) and sends none.
 */
export class PeerRegistry {
  readonly #channel: ControlChannel;
  readonly #agent: TransferAgent;
  readonly #clock: Clock;
  readonly #self: () => RankInfo | null;
  readonly #busy: () => ReadonlySet<string>;
  readonly #counters: Counters;
  readonly #events: PeerEvents;
  readonly #greetings: Greetings;
  readonly #use: PeerUse;
  readonly #byEndpoint = new Map<string, Peer>();
  readonly #byIncarnation = new Map<bigint, Peer>();
  readonly #lastHeardMs = new Map<Peer, number>();
  readonly #lastErrorMs = new WeakMap<Peer, number>();
  readonly #lastProofMs = new WeakMap<Peer, number>();
  /** Told that nothing is wanted of them. */
  readonly #leaving = new WeakSet<Peer>();
  /** Endpoint -> incarnation whose memory is being mapped right now. */
  readonly #linking = new Map<string, bigint>();
  /** By incarnation: who accepted our HELLO while the link that theirs began was still being made. */
  readonly #awaitingLink = new Map<bigint, Answer>();
  /** Endpoints to greet once this rank has joined its instance. */
  readonly #ungreeted = new Set<string>();
  #lastPingMs = 0;
  #closed = false;

  constructor(options: {
    readonly channel: ControlChannel;
    readonly agent: TransferAgent;
    readonly clock: Clock;
    /** Null until this rank has joined its instance. */
    readonly self: () => RankInfo | null;
    /** Never the same twice, not guessable. */
    readonly newNonce: () => bigint;
    /** Endpoints of peers that a session needs. */
    readonly busy: () => ReadonlySet<string>;
    readonly counters: Counters;
    readonly events: PeerEvents;
  }) {
    this.#channel = options.channel;
    this.#agent = options.agent;
    this.#clock = options.clock;
    this.#self = options.self;
    this.#busy = options.busy;
    this.#counters = options.counters;
    this.#events = options.events;
    this.#greetings = new Greetings(options.clock, options.newNonce);
    this.#use = new PeerUse(options.clock);
  }

  get peers(): readonly Peer[] {
    return [...this.#byEndpoint.values()];
  }

  /** HELLOs of ours that nobody has answered yet. */
  get greetingCount(): number {
    return this.#greetings.size;
  }

  /** Ms since a peer was last heard. */
  silentMs(peer: Peer): number {
    return this.#clock.now() - (this.#lastHeardMs.get(peer) ?? this.#clock.now());
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
    if (peer !== null) {
      this.#lastHeardMs.set(peer, this.#clock.now());
      this.#use.used(peer);
    }
    return peer;
  }

  /** Starts a HELLO unless this endpoint was greeted or is being greeted. */
  greet(endpoint: string): void {
    if (this.#closed || this.greetedAt(endpoint) !== null) return;
    const running = this.#greetings.at(endpoint);
    if (running !== undefined) running.probe = false;
    else if (this.#greetings.size + this.#ungreeted.size >= MAX_GREETINGS)
      this.#events.onRefused(
        endpoint,
        new ResourceError(`${endpoint}: ${MAX_GREETINGS} ranks are being greeted already, try again later`),
      );
    else if (this.#self() === null) this.#ungreeted.add(endpoint);
    else this.#sayHello(endpoint, { probe: false, claim: null });
  }

  /** What this peer said of its instance did not prove true: perhaps another process answers there by now. */
  doubt(endpoint: string): void {
    if (!this.#closed && this.at(endpoint) !== null) this.#probe(endpoint, null);
  }

  /**
   * A stranger says that it is at this endpoint. Where a live peer is nothing is sent that could end something there, not even a refusal:
   * the endpoint is asked who it is. If it is a new process, that shows, and the stranger repeats what it wanted.
   * @returns false when nobody is known there, so that the stranger may be answered
   */
  isTaken(endpoint: string): boolean {
    if (this.at(endpoint) === null) return false;
    this.doubt(endpoint);
    return true;
  }

  /** `self` is there from now on. */
  joined(): void {
    const endpoints = [...this.#ungreeted];
    this.#ungreeted.clear();
    for (const endpoint of endpoints) this.greet(endpoint);
  }

  /** @param minor of the frame: the newest that its sender speaks */
  onHello(hello: Hello, minor: number): void {
    const { rankInfo } = hello;
    const { endpoint, incarnation } = rankInfo;
    const self = this.#self();
    if (this.#closed || self === null || this.#linking.has(endpoint)) return;
    if (this.#isElsewhere(rankInfo)) return;
    const known = this.#byEndpoint.get(endpoint);
    if (known !== undefined && known.incarnation !== incarnation) {
      this.#probe(endpoint, { hello, minor });
      return;
    }
    if (known !== undefined) this.#use.used(known);
    if (known !== undefined && (known.link !== null || !known.overlaps)) {
      this.#accept(endpoint, hello.nonce);
      return;
    }
    if (negotiateMajor(hello.supportedMajors) === null) {
      const message = `this rank speaks wire version ${SUPPORTED_MAJORS.join(', ')}, the peer ${hello.supportedMajors.join(', ')}: upgrade the older side`;
      this.#refuse(endpoint, hello.nonce, message, []);
      return;
    }
    const findings = findingsAgainst(self, rankInfo);
    if (findings.length > 0) {
      this.#counters.add('hello_refused');
      this.#refuse(endpoint, hello.nonce, incompatible(findings), findings);
      return;
    }
    if (known === undefined && !this.#hasRoom({ alsoVerified: false })) {
      this.#counters.add('hello_refused_full');
      this.#refuse(endpoint, hello.nonce, FULL, []);
      return;
    }
    if (!ranksOverlap(self, rankInfo)) {
      // Nothing will be written there: its memory is not loaded.
      this.#accept(endpoint, hello.nonce);
      this.#add({ ...peerIdentity(rankInfo), overlaps: false, link: null, greeted: false }, minor);
      return;
    }
    this.#linking.set(endpoint, incarnation);
    linkPeer(this.#agent, self, rankInfo).then(
      (link) => {
        this.#linked({ hello, minor }, link);
        this.#takeWaiting(incarnation, (answer) => this.#linkGreeted(answer));
      },
      (cause: unknown) => {
        this.#linking.delete(endpoint);
        this.#takeWaiting(incarnation, (answer) => answer.refuse(unreachable(rankInfo, cause)));
        this.#refuse(endpoint, hello.nonce, unreachable(rankInfo, cause).message, []);
      },
    );
  }

  /** @param from what the frame says of the process that answers */
  onHelloAck(ack: HelloAck, from: { readonly incarnation: bigint; readonly minor: number }): void {
    const { incarnation, minor } = from;
    const { endpoint, answer } = ack;
    const greeting = this.#greetings.at(endpoint);
    const self = this.#self();
    if (greeting === undefined || greeting.nonce !== ack.nonce || self === null) {
      this.#counters.add('stale:HELLO_ACK');
      return;
    }
    if (answer.accepted && (answer.rankInfo.endpoint !== endpoint || answer.rankInfo.incarnation !== incarnation)) {
      this.#counters.add('protocol_error:hello_incarnation');
      return;
    }
    if (answer.accepted && this.#isElsewhere(answer.rankInfo)) return;
    this.#greetings.end(endpoint);
    const known = this.#byEndpoint.get(endpoint);
    if (known?.incarnation === incarnation && greeting.probe) this.#lastProofMs.set(known, this.#clock.now());
    if (known !== undefined && known.incarnation !== incarnation)
      this.lose(known, `a new process answers at ${endpoint} (incarnation ${incarnation.toString(16)})`);
    else if (greeting.claim !== null) this.#counters.add('claims_refuted');
    const refuse = (error: KvTransceiverError): void => {
      if (!greeting.probe) this.#events.onRefused(endpoint, error);
    };
    if (!answer.accepted) {
      const { message, findings } = answer;
      refuse(
        findings.length > 0
          ? new CompatibilityError(`${endpoint} refused: ${message}`, { details: { findings } })
          : new TransportError(`${endpoint} refused: ${message}`, { peer: endpoint, drained: true }),
      );
      return;
    }
    // It accepted us, but what it says of itself is checked all the same: plans are made from it.
    const { rankInfo } = answer;
    const findings = findingsAgainst(self, rankInfo);
    if (findings.length > 0) {
      this.#counters.add('hello_ack_refused');
      refuse(new CompatibilityError(`${endpoint}: ${incompatible(findings)}`, { details: { findings } }));
      return;
    }
    // Only the writing side needs the other's memory: nothing of this RankInfo is loaded into the agent here. Unless it bounces: then
    // both agents talk to each other.
    const whole: Answer = { self, rankInfo, minor, refuse };
    if (this.#agent.bounces === true && ranksOverlap(self, rankInfo)) this.#linkGreeted(whole);
    else this.#greeted(whole, null);
    const { claim } = greeting;
    if (claim?.hello.rankInfo.incarnation === incarnation) this.onHello(claim.hello, claim.minor);
  }

  #greeted({ self, rankInfo, minor, refuse }: Answer, link: PeerLink | null): void {
    const { endpoint, incarnation } = rankInfo;
    const known = this.#byEndpoint.get(endpoint);
    if (known?.incarnation === incarnation) {
      if (known.link === null) known.link = link;
      else if (link !== null) this.#unlink(link);
      known.greeted = true;
      this.#events.onReady(known);
      return;
    }
    // One that was greeted answered there while this link was made, so that it is the newer one.
    const isStale = known?.greeted === true || this.#isElsewhere(rankInfo);
    if (!isStale && known !== undefined) this.lose(known, `another process answers at ${endpoint}`);
    const hasRoom = isStale || this.#hasRoom({ alsoVerified: true });
    if (isStale || !hasRoom) {
      if (link !== null) this.#unlink(link);
      if (hasRoom) return;
      this.#counters.add('hello_refused_full');
      refuse(new ResourceError(`${endpoint}: ${FULL}`));
      return;
    }
    this.#add({ ...peerIdentity(rankInfo), overlaps: ranksOverlap(self, rankInfo), link, greeted: true }, minor);
  }

  /** Ready only once the agent knows the peer. A link that the peer's own HELLO began is waited for. */
  #linkGreeted(answer: Answer): void {
    if (this.#closed) return;
    const { self, rankInfo } = answer;
    const { endpoint, incarnation } = rankInfo;
    const known = this.#byEndpoint.get(endpoint);
    if (known?.incarnation === incarnation && known.link !== null) {
      this.#greeted(answer, null);
      return;
    }
    if (this.#linking.get(endpoint) === incarnation) {
      this.#awaitingLink.set(incarnation, answer);
      return;
    }
    this.#linking.set(endpoint, incarnation);
    linkPeer(this.#agent, self, rankInfo).then(
      (link) => {
        this.#linking.delete(endpoint);
        if (this.#closed) this.#unlink(link);
        else this.#greeted(answer, link);
        this.#takeWaiting(incarnation, (waiting) => this.#linkGreeted(waiting));
      },
      (cause: unknown) => {
        this.#linking.delete(endpoint);
        if (!this.#closed) answer.refuse(unreachable(rankInfo, cause));
        this.#takeWaiting(incarnation, (waiting) => waiting.refuse(unreachable(rankInfo, cause)));
      },
    );
  }

  #takeWaiting(incarnation: bigint, use: (answer: Answer) => void): void {
    const answer = this.#awaitingLink.get(incarnation);
    this.#awaitingLink.delete(incarnation);
    if (answer !== undefined && !this.#closed) use(answer);
  }

  #unlink(link: PeerLink): void {
    void this.#agent.removePeer(link.handle).catch(() => this.#counters.add('remove_peer_failed'));
  }

  onPing(peer: Peer | null, ping: Ping, self: { readonly sessions: number; readonly freeAuxSlots: number }): void {
    if (peer === null) {
      // Whoever pings believes to be a peer, but this process lost it, or is a new one: told so, it can greet again at once.
      const reason = 'this process does not know you, send HELLO first';
      this.#channel.send(ping.endpoint, { type: 'GOODBYE', endpoint: this.#channel.endpoint, drainMs: 0, reason });
    } else this.#channel.send(peer.endpoint, { type: 'PONG', endpoint: this.#channel.endpoint, ...self });
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

  onGoodbye(sender: Peer, goodbye: Goodbye): void {
    this.lose(sender, `it said goodbye: ${goodbye.reason}`);
  }

  lose(peer: Peer, why: string): void {
    if (this.#byEndpoint.get(peer.endpoint) !== peer) return;
    this.#byEndpoint.delete(peer.endpoint);
    this.#byIncarnation.delete(peer.incarnation);
    this.#lastHeardMs.delete(peer);
    this.#use.forget(peer);
    this.#counters.add('peers_lost');
    this.#events.onLost(peer, new PeerLostError(`lost ${peer.name}: ${why}`, { peer: peer.name }));
    this.#channel.forget(peer.endpoint);
    // After onLost: the sessions have cancelled what they had there, so that the agent sees no new work for a peer it removes.
    if (peer.link !== null) this.#unlink(peer.link);
  }

  /** Pings peers that have live sessions, declares silent ones dead, lets go of those idle for long, ends greetings that nobody answers. */
  sweep(self: { readonly sessions: number; readonly freeAuxSlots: number }): void {
    const now = this.#clock.now();
    for (const [endpoint, greeting] of this.#greetings.expire(HELLO_TIMEOUT_MS)) {
      if (greeting.probe) continue;
      if (this.at(endpoint) === null) this.#channel.forget(endpoint);
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
    const busy = this.#busy();
    for (const peer of this.peers) {
      if (!busy.has(peer.endpoint)) {
        // Silence counts from the moment somebody listens for it.
        this.#lastHeardMs.set(peer, now);
        this.#letGoIfIdle(peer);
        continue;
      }
      this.#use.used(peer);
      if (now - (this.#lastHeardMs.get(peer) ?? now) >= PEER_DEAD_AFTER_MS)
        this.lose(peer, `silent for ${PEER_DEAD_AFTER_MS} ms`);
      else if (ping) this.#channel.send(peer.endpoint, { type: 'PING', endpoint: this.#channel.endpoint, ...self });
    }
  }

  close(): void {
    this.#closed = true;
    this.#greetings.close();
    this.#ungreeted.clear();
  }

  #linked({ hello, minor }: Claim, link: PeerLink): void {
    const { rankInfo } = hello;
    this.#linking.delete(rankInfo.endpoint);
    const known = this.#byEndpoint.get(rankInfo.endpoint);
    if (!this.#closed && known?.incarnation === rankInfo.incarnation && known.link === null) {
      known.link = link;
      this.#accept(rankInfo.endpoint, hello.nonce);
      return;
    }
    // Asked again: two endpoints may have named this incarnation while neither was a peer yet.
    if (this.#closed || known !== undefined || this.#isElsewhere(rankInfo)) {
      this.#unlink(link);
      return;
    }
    this.#add({ ...peerIdentity(rankInfo), overlaps: true, link, greeted: false }, minor);
    this.#accept(rankInfo.endpoint, hello.nonce);
  }

  /** Room for one more peer, made if need be. */
  #hasRoom(options: { readonly alsoVerified: boolean }): boolean {
    if (this.#byEndpoint.size + this.#linking.size < MAX_PEERS) return true;
    const idle = this.#use.leastUsed(this.#busy(), options);
    if (idle === null) return false;
    this.#counters.add('peers_displaced');
    this.lose(idle, 'another rank takes its place');
    return true;
  }

  /**
   * Only one that proved to be at its endpoint is told: a goodbye to an address that a stranger named may end another there. It is lost one
   * sweep later, because a connection that is closed drops what is queued; whoever needs it meanwhile greets it again.
   */
  #letGoIfIdle(peer: Peer): void {
    if (peer.greeted) {
      if (!this.#use.isIdle(peer, VERIFIED_IDLE_MS)) return;
      const reason = 'nothing was asked for a long time';
      this.#channel.send(peer.endpoint, { type: 'GOODBYE', endpoint: this.#channel.endpoint, drainMs: 0, reason });
      this.#leaving.add(peer);
      peer.greeted = false;
    } else if (this.#use.isIdle(peer, this.#leaving.has(peer) ? VERIFIED_IDLE_MS : UNVERIFIED_IDLE_MS))
      this.lose(peer, 'it was idle');
  }

  /** One process has one endpoint: whoever uses the incarnation of a live peer at another one would take its frames for his. */
  #isElsewhere({ incarnation, endpoint }: RankInfo): boolean {
    const known = this.#byIncarnation.get(incarnation);
    if (known === undefined || known.endpoint === endpoint) return false;
    this.#counters.add('protocol_error:hello_incarnation');
    return true;
  }

  /** Asks the endpoint itself who is there now. One question at a time, so that whoever makes others doubt is not an amplifier. */
  #probe(endpoint: string, claim: Claim | null): void {
    const known = this.#byEndpoint.get(endpoint);
    const proofMs = known === undefined ? undefined : this.#lastProofMs.get(known);
    if (proofMs !== undefined && this.#clock.now() - proofMs < PROBE_INTERVAL_MS) {
      this.#counters.add('probes_spared');
      return;
    }
    const running = this.#greetings.at(endpoint);
    if (running === undefined) this.#sayHello(endpoint, { probe: true, claim });
    else running.claim = claim ?? running.claim;
  }

  #sayHello(endpoint: string, { probe, claim }: Pick<Greeting, 'probe' | 'claim'>): void {
    const self = this.#self();
    if (self === null) return;
    this.#greetings.begin(endpoint, { probe, claim }, (nonce) =>
      this.#channel.send(endpoint, { type: 'HELLO', nonce, supportedMajors: [...SUPPORTED_MAJORS], rankInfo: self }),
    );
  }

  #add(peer: Peer, minor: number): void {
    this.#byEndpoint.set(peer.endpoint, peer);
    this.#byIncarnation.set(peer.incarnation, peer);
    this.#lastHeardMs.set(peer, this.#clock.now());
    this.#use.used(peer);
    this.#channel.agree(peer.endpoint, minor);
    this.#events.onReady(peer);
  }

  #accept(endpoint: string, nonce: bigint): void {
    const rankInfo = this.#self();
    if (rankInfo === null) return;
    const answer = { accepted: true, rankInfo } as const;
    this.#channel.send(endpoint, { type: 'HELLO_ACK', nonce, endpoint: this.#channel.endpoint, answer });
  }

  #refuse(endpoint: string, nonce: bigint, message: string, findings: readonly Finding[]): void {
    const answer = { accepted: false, message: clipText(message), findings } as const;
    this.#channel.send(endpoint, { type: 'HELLO_ACK', nonce, endpoint: this.#channel.endpoint, answer });
  }
}

function describe(cause: unknown): string {
  return cause instanceof Error ? cause.message : String(cause);
}

function unreachable(info: RankInfo, cause: unknown): TransportError {
  const message = `${peerName(info)}: its memory cannot be reached: ${describe(cause)}`;
  return new TransportError(message, { peer: info.endpoint, drained: true });
}
