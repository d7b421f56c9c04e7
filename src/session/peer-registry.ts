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
import { explainCompatibility, explainTopology, type Finding, ranksOverlap } from '../mapping/index.js';
import type { RankInfo } from '../mapping/rank-info.js';
import { WIRE_MAJOR } from '../wire/index.js';
import type { Goodbye, Hello, HelloAck, Ping } from '../wire/messages.js';
import { clipText } from './clip-text.js';
import type { ControlChannel } from './control-channel.js';
import type { Counters } from './counters.js';
import { linkPeer, type PeerLink } from './peer-link.js';
import { Repeater } from './repeater.js';

export const HELLO_TIMEOUT_MS = 5000;
export const PING_INTERVAL_MS = 1000;
export const PEER_DEAD_AFTER_MS = 3000;
/** At most one ERROR frame per peer in this time, so that two confused ranks do not flood each other. */
const ERROR_INTERVAL_MS = 1000;
/** Greetings at once: what a peer publishes of its instance decides whom this rank greets. */
const MAX_GREETINGS = 4096;

/** A rank whose HELLO was accepted, or that accepted ours, or both. One object per incarnation; only the registry changes it. */
export interface Peer {
  /** For messages to people: instance, rank, endpoint. */
  readonly name: string;
  readonly endpoint: string;
  readonly incarnation: bigint;
  readonly info: RankInfo;
  /** Its data overlaps ours. One that does not is only good for what it says of its instance. */
  readonly overlaps: boolean;
  /** How to write into its pages: there once its HELLO was accepted, if it overlaps. */
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
  /** Nobody waits for this peer; it only shows which process answers at the endpoint of a live one. */
  probe: boolean;
  /** HELLO that claims to come from there, judged when the endpoint itself has answered. */
  claim: Hello | null;
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
  readonly #newNonce: () => bigint;
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
  /** Incarnations that accepted our HELLO while the link that theirs began was still being made. */
  readonly #awaitingLink = new Set<bigint>();
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
    readonly counters: Counters;
    readonly events: PeerEvents;
  }) {
    this.#channel = options.channel;
    this.#agent = options.agent;
    this.#clock = options.clock;
    this.#self = options.self;
    this.#newNonce = options.newNonce;
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
    if (this.#closed || this.greetedAt(endpoint) !== null) return;
    const running = this.#greetings.get(endpoint);
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

  /** `self` is there from now on. */
  joined(): void {
    const endpoints = [...this.#ungreeted];
    this.#ungreeted.clear();
    for (const endpoint of endpoints) this.greet(endpoint);
  }

  onHello(hello: Hello): void {
    const { rankInfo } = hello;
    const { endpoint, incarnation } = rankInfo;
    const self = this.#self();
    if (this.#closed || self === null || this.#linking.get(endpoint) === incarnation) return;
    if (this.#isElsewhere(rankInfo)) return;
    const known = this.#byEndpoint.get(endpoint);
    if (known !== undefined && known.incarnation !== incarnation) {
      this.#probe(endpoint, hello);
      return;
    }
    if (known !== undefined && (known.link !== null || !known.overlaps)) {
      this.#accept(endpoint, hello.nonce);
      return;
    }
    if (!hello.supportedMajors.includes(WIRE_MAJOR)) {
      const message = `this rank speaks wire version ${WIRE_MAJOR}, the peer ${hello.supportedMajors.join(', ')}: upgrade the older side`;
      this.#refuse(endpoint, hello.nonce, message, []);
      return;
    }
    const findings = findingsAgainst(self, rankInfo);
    if (findings.length > 0) {
      this.#counters.add('hello_refused');
      this.#refuse(endpoint, hello.nonce, incompatible(findings), findings);
      return;
    }
    if (!ranksOverlap(self, rankInfo)) {
      // Nothing will be written there: its memory is not loaded.
      this.#accept(endpoint, hello.nonce);
      this.#add({ ...peerIdentity(rankInfo), overlaps: false, link: null, greeted: false });
      return;
    }
    this.#linking.set(endpoint, incarnation);
    linkPeer(this.#agent, self, rankInfo).then(
      (link) => {
        this.#linked(hello, link);
        if (this.#awaitingLink.delete(incarnation)) this.#linkGreeted(self, rankInfo);
      },
      (cause: unknown) => {
        this.#linking.delete(endpoint);
        if (this.#awaitingLink.delete(incarnation)) this.#unreachable(rankInfo, cause);
        const message = `${peerName(rankInfo)}: its memory cannot be reached: ${describe(cause)}`;
        this.#refuse(endpoint, hello.nonce, message, []);
      },
    );
  }

  /** @param incarnation of the process that answers */
  onHelloAck(ack: HelloAck, incarnation: bigint): void {
    const { endpoint, answer } = ack;
    const greeting = this.#greetings.get(endpoint);
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
    this.#endGreeting(endpoint);
    const known = this.#byEndpoint.get(endpoint);
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
    if (this.#agent.bounces === true && ranksOverlap(self, rankInfo)) this.#linkGreeted(self, rankInfo);
    else this.#greeted(self, rankInfo, null);
    if (greeting.claim?.rankInfo.incarnation === incarnation) this.onHello(greeting.claim);
  }

  #greeted(self: RankInfo, rankInfo: RankInfo, link: PeerLink | null): void {
    const known = this.#byEndpoint.get(rankInfo.endpoint);
    if (known?.incarnation === rankInfo.incarnation) {
      if (known.link === null) known.link = link;
      else if (link !== null) this.#unlink(link);
      known.greeted = true;
      this.#events.onReady(known);
      return;
    }
    if (known?.greeted === true) {
      // It answered at that endpoint while this link was made, so that it is the newer one.
      if (link !== null) this.#unlink(link);
      return;
    }
    if (known !== undefined) this.lose(known, `another process answers at ${rankInfo.endpoint}`);
    this.#add({ ...peerIdentity(rankInfo), overlaps: ranksOverlap(self, rankInfo), link, greeted: true });
  }

  /** Ready only once the agent knows the peer. A link that the peer's own HELLO began is waited for. */
  #linkGreeted(self: RankInfo, rankInfo: RankInfo): void {
    const { endpoint, incarnation } = rankInfo;
    const known = this.#byEndpoint.get(endpoint);
    if (this.#closed) return;
    if (known?.incarnation === incarnation && known.link !== null) {
      this.#greeted(self, rankInfo, null);
      return;
    }
    if (this.#linking.get(endpoint) === incarnation) {
      this.#awaitingLink.add(incarnation);
      return;
    }
    this.#linking.set(endpoint, incarnation);
    linkPeer(this.#agent, self, rankInfo).then(
      (link) => {
        this.#linking.delete(endpoint);
        if (this.#closed) this.#unlink(link);
        else this.#greeted(self, rankInfo, link);
        if (this.#awaitingLink.delete(incarnation)) this.#linkGreeted(self, rankInfo);
      },
      (cause: unknown) => {
        this.#linking.delete(endpoint);
        this.#awaitingLink.delete(incarnation);
        this.#unreachable(rankInfo, cause);
      },
    );
  }

  #unreachable(rankInfo: RankInfo, cause: unknown): void {
    const { endpoint } = rankInfo;
    const message = `${peerName(rankInfo)}: its memory cannot be reached: ${describe(cause)}`;
    if (!this.#closed) this.#events.onRefused(endpoint, new TransportError(message, { peer: endpoint, drained: true }));
  }

  #unlink(link: PeerLink): void {
    void this.#agent.removePeer(link.handle).catch(() => this.#counters.add('remove_peer_failed'));
  }

  onPing(peer: Peer | null, ping: Ping, self: { readonly sessions: number; readonly freeAuxSlots: number }): void {
    if (peer === null) {
      // Whoever pings believes to be a peer, but this process lost it, or is a new one: told so, it can greet again at once.
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

  /** From a peer, or from a process that says that it answers at a peer's endpoint now. */
  onGoodbye(sender: Peer | null, goodbye: Goodbye): void {
    if (sender !== null) this.lose(sender, `it said goodbye: ${goodbye.reason}`);
    else if (this.at(goodbye.endpoint) !== null) this.#probe(goodbye.endpoint, null);
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
    if (peer.link !== null) this.#unlink(peer.link);
  }

  /** Pings peers that have live sessions, declares silent ones dead, ends greetings that nobody answers. */
  sweep(busy: ReadonlySet<string>, self: { readonly sessions: number; readonly freeAuxSlots: number }): void {
    const now = this.#clock.now();
    for (const [endpoint, greeting] of [...this.#greetings]) {
      if (now - greeting.startedAtMs < HELLO_TIMEOUT_MS) continue;
      this.#endGreeting(endpoint);
      if (greeting.probe) continue;
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
    this.#ungreeted.clear();
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
      this.#unlink(link);
      return;
    }
    this.#add({ ...peerIdentity(rankInfo), overlaps: true, link, greeted: false });
    this.#accept(rankInfo.endpoint, hello.nonce);
  }

  /** One process has one endpoint: whoever uses the incarnation of a live peer at another one would take its frames for his. */
  #isElsewhere({ incarnation, endpoint }: RankInfo): boolean {
    const known = this.#byIncarnation.get(incarnation);
    if (known === undefined || known.endpoint === endpoint) return false;
    this.#counters.add('protocol_error:hello_incarnation');
    return true;
  }

  /** Asks the endpoint itself who is there now. One question at a time, so that whoever makes others doubt is not an amplifier. */
  #probe(endpoint: string, claim: Hello | null): void {
    const running = this.#greetings.get(endpoint);
    if (running === undefined) this.#sayHello(endpoint, { probe: true, claim });
    else running.claim = claim ?? running.claim;
  }

  #sayHello(endpoint: string, { probe, claim }: Pick<Greeting, 'probe' | 'claim'>): void {
    const self = this.#self();
    if (self === null) return;
    const nonce = this.#newNonce();
    this.#greetings.set(endpoint, { nonce, startedAtMs: this.#clock.now(), probe, claim });
    const hello: Hello = { type: 'HELLO', nonce, supportedMajors: [WIRE_MAJOR], rankInfo: self };
    this.#repeater.start(endpoint, () => this.#channel.send(endpoint, hello));
  }

  #add(peer: Peer): void {
    this.#byEndpoint.set(peer.endpoint, peer);
    this.#byIncarnation.set(peer.incarnation, peer);
    this.#lastHeardMs.set(peer, this.#clock.now());
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

  #endGreeting(endpoint: string): void {
    this.#greetings.delete(endpoint);
    this.#repeater.stop(endpoint);
  }
}

/** Ranks of instances that fit may greet each other whether or not they share anything: one rank speaks for its instance. */
function findingsAgainst(self: RankInfo, peer: RankInfo): readonly Finding[] {
  const topology = explainTopology(peer, self);
  if (topology.length > 0) return topology;
  return ranksOverlap(self, peer) ? explainCompatibility(peer, self) : [];
}

function incompatible(findings: readonly Finding[]): string {
  const fields = findings.map((f) => `${f.field}: ${f.a} against ${f.b}, ${f.verdict} (${f.whichSideToChange})`);
  return `incompatible KV cache: ${fields.join('; ')}`;
}

function peerName(info: RankInfo): string {
  return `${info.instanceName} rank ${info.rank} at ${info.endpoint}`;
}

function peerIdentity(info: RankInfo): Pick<Peer, 'name' | 'endpoint' | 'incarnation' | 'info'> {
  return { name: peerName(info), endpoint: info.endpoint, incarnation: info.incarnation, info };
}

function describe(cause: unknown): string {
  return cause instanceof Error ? cause.message : String(cause);
}
