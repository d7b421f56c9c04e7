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
import { type FrameOrigin, negotiateMajor, type SpokenMajor } from '../wire/index.js';
import type { Goodbye, Hello, HelloAck } from '../wire/messages.js';
import { BadFrames } from './bad-frames.js';
import type { CallbackGuard } from './callback-guard.js';
import type { ControlChannel } from './control-channel.js';
import type { Counters } from './counters.js';
import { type Claim, type Greeting, Greetings } from './greetings.js';
import { askerOf, HelloAnswers } from './hello-answers.js';
import { Introductions } from './introductions.js';
import { findingsAgainst, incompatible, newPeer, type Peer } from './peer.js';
import type { PeerLink } from './peer-link.js';
import { type Answer, type Linking, PeerLinks } from './peer-links.js';
import { PEER_DEAD_AFTER_MS, PeerLiveness, PING_INTERVAL_MS, type RankLoad } from './peer-liveness.js';
import { PeerRoom } from './peer-room.js';
import { PeerTable } from './peer-table.js';
import { PeerUse } from './peer-use.js';

export type { Peer } from './peer.js';

export const HELLO_TIMEOUT_MS = 5000;
/** Greetings at once: what a peer publishes of its instance decides whom this rank greets. */
const MAX_GREETINGS = 4096;
/** What a peer that sessions need is pinged at: one that nothing was heard of for longer is asked whether it is still there before it is used. */
const FRESH_FOR_MS = PING_INTERVAL_MS;
/** A peer that has just proved that it is there is not asked again: a HELLO is much larger than what a stranger sends to provoke it. */
const PROBE_INTERVAL_MS = 1000;

export interface PeerEvents {
  readonly onReady: (peer: Peer) => void;
  /** No peer at this endpoint: it refused, did not answer in time, or its memory could not be reached. */
  readonly onRefused: (endpoint: string, error: KvTransceiverError) => void;
  readonly onLost: (peer: Peer, error: PeerLostError) => void;
  /** Something that an operator should see; each cause once. */
  readonly onWarning?: (message: string) => void;
}

/**
 * Role: who is there. HELLO both ways, liveness, loss.
 * Why: a frame may claim any endpoint and any incarnation. A stranger becomes a peer only after the endpoint that it names was asked, and a nonce
 *   that went there alone came back on the stranger's own connection; from then on that connection speaks for the peer, and no other one does.
 *   What others say of the endpoint of a live peer makes this rank ask there once more; only what answers there can end the peer.
 * Ordering: `onReady` comes before any other notice about a peer, `onLost` at most once, after which the peer object is dead. A rank that
 *   has not joined its instance answers no HELLO (the peer repeats it) and sends none.
 */
export class PeerRegistry {
  readonly #channel: ControlChannel;
  readonly #agent: TransferAgent;
  readonly #clock: Clock;
  readonly #self: () => RankInfo | null;
  readonly #idle: () => ReadonlySet<string>;
  readonly #counters: Counters;
  readonly #events: PeerEvents;
  readonly #greetings: Greetings;
  readonly #introductions: Introductions;
  readonly #badFrames: BadFrames;
  readonly #use: PeerUse;
  readonly #liveness: PeerLiveness;
  readonly #table: PeerTable;
  readonly #room: PeerRoom;
  readonly #answers: HelloAnswers;
  readonly #links: PeerLinks;
  readonly #lastProofMs = new WeakMap<Peer, number>();
  /** Endpoints to greet once this rank has joined its instance. */
  readonly #ungreeted = new Set<string>();
  #closed = false;

  constructor(options: {
    readonly channel: ControlChannel;
    readonly agent: TransferAgent;
    readonly clock: Clock;
    /** Null until this rank has joined its instance. */
    readonly self: () => RankInfo | null;
    /** Never the same twice, not guessable. */
    readonly newNonce: () => bigint;
    /** Those of the endpoints that no session needs. */
    readonly idle: (endpoints: Iterable<string>) => ReadonlySet<string>;
    readonly counters: Counters;
    readonly guard: CallbackGuard;
    readonly events: PeerEvents;
  }) {
    const { channel, clock, counters } = options;
    const maxConnections = (): number => channel.maxConnections;
    this.#channel = channel;
    this.#agent = options.agent;
    this.#clock = clock;
    this.#self = options.self;
    this.#idle = () => options.idle(this.#table.endpoints);
    this.#counters = counters;
    this.#events = options.events;
    this.#greetings = new Greetings(clock, options.newNonce);
    this.#introductions = new Introductions(clock, { ownEndpoint: channel.endpoint, maxConnections });
    this.#answers = new HelloAnswers(channel, counters, options.self);
    this.#badFrames = new BadFrames({ channel, clock, counters, greetings: this.#greetings, answers: this.#answers });
    this.#use = new PeerUse(clock);
    const onFull = (message: string): void => options.events.onWarning?.(message);
    this.#room = new PeerRoom({ maxConnections, use: this.#use, idle: this.#idle, counters, onFull });
    this.#links = new PeerLinks({
      agent: options.agent,
      counters,
      guard: options.guard,
      onLinked: (linking, link) => this.#linked(linking, link),
      onFailed: ({ claim, answer }, error) => {
        answer?.refuse(error);
        if (claim !== null) this.#refuse(claim, error.message);
      },
    });
    this.#liveness = new PeerLiveness(channel, clock, this.#use);
    this.#table = new PeerTable(clock);
  }

  get peers(): readonly Peer[] {
    return this.#table.all;
  }

  /** HELLOs of ours that nobody has answered yet. */
  get greetingCount(): number {
    return this.#greetings.size;
  }

  /** Ms since a peer was last heard. */
  silentMs(peer: Peer): number {
    return this.#liveness.silentMs(peer);
  }

  at(endpoint: string): Peer | null {
    return this.#table.at(endpoint) ?? null;
  }

  /** The peer at this endpoint if it can be asked for pages. */
  greetedAt(endpoint: string): Peer | null {
    const peer = this.at(endpoint);
    return peer?.greeted === true ? peer : null;
  }

  /**
   * The same, if it is known to be there still. Nobody pings a peer that no session needs, so that it may have been replaced unnoticed, and a
   * question to the process that was there costs its request; `greet` asks there who it is, and `onReady` tells.
   */
  askableAt(endpoint: string): Peer | null {
    const peer = this.greetedAt(endpoint);
    return peer === null || this.#use.isIdle(peer, FRESH_FOR_MS) ? null : peer;
  }

  /** The peer that sent a frame: the one that its connection speaks for. Marks it alive. */
  sender(incarnation: bigint, origin: FrameOrigin): Peer | null {
    const peer = this.#table.sender(incarnation, origin);
    if (peer !== null) this.#liveness.heard(peer);
    return peer;
  }

  /** The peer that is this process, which has just spoken through its agent: that marks it alive. */
  speaker({ endpoint, incarnation }: Pick<Peer, 'endpoint' | 'incarnation'>): Peer | null {
    const peer = this.at(endpoint);
    if (peer?.incarnation !== incarnation) return null;
    this.#liveness.heard(peer);
    return peer;
  }

  /** Starts a HELLO unless this endpoint is being greeted, or was and is known to be there still. */
  greet(endpoint: string): void {
    if (this.#closed || this.askableAt(endpoint) !== null) return;
    const running = this.#greetings.at(endpoint);
    if (running !== undefined && !running.probe) return;
    if (this.#greetings.size + this.#ungreeted.size >= MAX_GREETINGS)
      this.#events.onRefused(
        endpoint,
        new ResourceError(`${endpoint}: ${MAX_GREETINGS} ranks are being greeted already, try again later`),
      );
    else if (this.#self() === null) this.#ungreeted.add(endpoint);
    else {
      // It is wanted now, and no stranger's any more.
      this.#introductions.end(endpoint);
      this.#sayHello(endpoint, { probe: false, claim: running?.claim ?? null });
    }
  }

  /** What this peer said of its instance did not prove true: perhaps another process answers there by now. */
  doubt(endpoint: string): void {
    const peer = this.at(endpoint);
    if (!this.#closed && peer !== null) this.#probe(peer, null);
  }

  /**
   * A stranger says that it is at this endpoint. Where a live peer is nothing is sent that could end something there, not even a refusal:
   * the endpoint is asked who it is. If it is a new process, or speaks by a new connection, that shows, and the stranger repeats what it wanted.
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

  /** @param heard version of its frame */
  onHello(hello: Hello, heard: SpokenMajor, origin: FrameOrigin): void {
    const { rankInfo } = hello;
    const self = this.#self();
    if (this.#closed || self === null) return;
    // Whoever we connected to answers; a HELLO of its own comes by its own connection.
    if (origin.kind === 'dialed') this.#counters.add('protocol_error:hello_dialed');
    else if (hello.probe === true) this.#answers.identify({ hello, heard, origin }, this.#isInUse(rankInfo.endpoint));
    else if (!this.#table.isProven(rankInfo, origin)) this.#introduce({ hello, heard, origin });
    else this.#onProvenHello(self, { hello, heard, origin });
  }

  /** Its sender is at the endpoint that it names, and is the only one who says so. */
  #onProvenHello(self: RankInfo, claim: Claim): void {
    const { hello, heard } = claim;
    const { rankInfo } = hello;
    const linking = this.#links.of(rankInfo);
    if (linking !== undefined) {
      linking.claim = claim;
      return;
    }
    const known = this.#table.at(rankInfo.endpoint);
    if (known !== undefined) this.#use.used(known);
    if (known !== undefined && (known.link !== null || !known.overlaps)) {
      this.#answers.accept(claim);
      return;
    }
    const refusal = this.#refusalOf(self, claim);
    if (refusal !== null) {
      this.#refuse(claim, refusal.message, refusal.findings);
      return;
    }
    if (known === undefined && !this.#makeRoom(false)) {
      this.#refuse(claim, this.#room.text);
      return;
    }
    if (!ranksOverlap(self, rankInfo)) {
      // Nothing will be written there: its memory is not loaded.
      this.#answers.accept(claim);
      const peer = newPeer(rankInfo, { overlaps: false, link: null, greeted: false });
      this.#add(peer, heard, hello.supportedMajors);
      return;
    }
    this.#links.begin(self, rankInfo, { claim, answer: null });
  }

  #refusalOf(self: RankInfo, { hello }: Claim): { message: string; findings: readonly Finding[] } | null {
    const { majors } = this.#channel;
    if (negotiateMajor(hello.supportedMajors, majors) === null) {
      const message = `this rank speaks wire version ${majors.join(', ')}, the peer ${hello.supportedMajors.join(', ')}: upgrade the older side`;
      return { message, findings: [] };
    }
    const findings = findingsAgainst(self, hello.rankInfo);
    return findings.length === 0 ? null : { message: incompatible(findings), findings };
  }

  /** Somebody says that it is at an endpoint. The endpoint is asked; its answer tells by which connection it speaks. */
  #introduce(claim: Claim): void {
    const { endpoint } = claim.hello.rankInfo;
    const running = this.#greetings.at(endpoint);
    const known = this.#table.at(endpoint);
    if (running !== undefined) this.#claimDuring(running, claim);
    else if (known !== undefined) this.#probe(known, claim);
    else if (!this.#room.mayHave(this.#taken)) {
      this.#room.refused();
      this.#refuse(claim, this.#room.text);
    } else {
      const admitted = this.#introductions.admit(endpoint, claim.origin);
      if (typeof admitted === 'string') {
        this.#counters.add(`introductions_refused:${admitted}`);
        if (admitted === 'address' || admitted === 'own_endpoint')
          this.#refuse(
            claim,
            `${endpoint} is not asked from ${this.#channel.endpoint}: set listen.host alike on both sides`,
          );
        return;
      }
      if (admitted.displaced !== null) {
        this.#counters.add('introductions_displaced');
        this.#greetings.end(admitted.displaced);
        this.#channel.forget(admitted.displaced);
      }
      this.#sayHello(endpoint, { probe: true, claim });
    }
  }

  /** A HELLO of ours is under way to the endpoint that is claimed. One that wants a peer is no question who is there: that is asked beside it. */
  #claimDuring(running: Greeting, claim: Claim): void {
    running.claim = claim;
    const nonce = running.probe ? null : this.#greetings.proofNonce(running);
    const self = this.#self();
    if (nonce === null || self === null) return;
    this.#channel.answerHello(claim, this.#helloOf(self, nonce, true));
  }

  /** @param from what the frame says of the process that answers */
  onHelloAck(ack: HelloAck, from: SpokenMajor & { readonly incarnation: bigint }, origin: FrameOrigin): void {
    const { incarnation } = from;
    const { endpoint, answer } = ack;
    const greeting = this.#greetings.at(endpoint);
    const self = this.#self();
    const isProof = greeting?.proofNonce === ack.nonce;
    if (greeting === undefined || self === null || (greeting.nonce !== ack.nonce && !isProof)) {
      if (this.#greetings.wasEnded(endpoint, ack.nonce)) this.#counters.add('late_hello_acks');
      else this.#counters.add('stale:HELLO_ACK');
      return;
    }
    if (answer.accepted && (answer.rankInfo.endpoint !== endpoint || answer.rankInfo.incarnation !== incarnation)) {
      this.#counters.add('protocol_error:hello_incarnation');
      return;
    }
    if (!isProof) {
      this.#greetings.end(endpoint);
      this.#introductions.end(endpoint);
    }
    const known = this.#table.at(endpoint);
    if (known?.incarnation === incarnation && greeting.probe) this.#lastProofMs.set(known, this.#clock.now());
    if (known !== undefined && known.incarnation !== incarnation)
      this.lose(known, `a new process answers at ${endpoint} (incarnation ${incarnation.toString(16)})`, true);
    this.#table.prove({ endpoint, incarnation }, origin);
    const { claim } = greeting;
    greeting.claim = null;
    const isTrue = claim !== null && this.#table.isProven(claim.hello.rankInfo, claim.origin);
    if (claim !== null && !isTrue) this.#counters.add('claims_refuted');
    if (!greeting.probe && !isProof) this.#onAnswer(self, ack, from);
    if (claim !== null && isTrue) this.onHello(claim.hello, claim.heard, claim.origin);
    if (greeting.probe) this.#forgetUnlessNeeded(endpoint);
  }

  #onAnswer(self: RankInfo, { endpoint, answer }: HelloAck, from: SpokenMajor): void {
    const refuse = (error: KvTransceiverError): void => this.#events.onRefused(endpoint, error);
    if (!answer.accepted) {
      const { message, findings } = answer;
      refuse(
        findings.length > 0
          ? new CompatibilityError(`${endpoint} refused: ${message}`, { details: { findings } })
          : new TransportError(`${endpoint} refused: ${message}`, { peer: endpoint, drained: true }),
      );
      this.#forgetUnlessNeeded(endpoint);
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
    const whole: Answer = { self, rankInfo, heard: from, refuse };
    if (this.#agent.bounces === true && ranksOverlap(self, rankInfo)) this.#linkGreeted(whole);
    else this.#greeted(whole, null);
  }

  #greeted({ self, rankInfo, heard, refuse }: Answer, link: PeerLink | null): void {
    const { endpoint, incarnation } = rankInfo;
    const known = this.#table.at(endpoint);
    if (known?.incarnation === incarnation) {
      if (known.link === null) known.link = link;
      else if (link !== null) this.#links.unlink(link);
      known.greeted = true;
      this.#liveness.heard(known);
      this.#events.onReady(known);
      return;
    }
    // One that was greeted answered there while this link was made, so that it is the newer one.
    const isStale = known?.greeted === true;
    if (!isStale && known !== undefined) this.lose(known, `another process answers at ${endpoint}`);
    const hasRoom = isStale || this.#makeRoom(true);
    if (isStale || !hasRoom) {
      if (link !== null) this.#links.unlink(link);
      if (hasRoom) return;
      refuse(new ResourceError(`${endpoint}: ${this.#room.text}`));
      return;
    }
    this.#add(newPeer(rankInfo, { overlaps: ranksOverlap(self, rankInfo), link, greeted: true }), heard, null);
  }

  /** Ready only once the agent knows the peer. A link that the peer's own HELLO began is waited for. */
  #linkGreeted(answer: Answer): void {
    if (this.#closed) return;
    const { self, rankInfo } = answer;
    const known = this.#table.at(rankInfo.endpoint);
    const linking = this.#links.of(rankInfo);
    if (known?.incarnation === rankInfo.incarnation && known.link !== null) this.#greeted(answer, null);
    else if (linking !== undefined) linking.answer = answer;
    else this.#links.begin(self, rankInfo, { claim: null, answer });
  }

  #linked({ claim, answer }: Linking, link: PeerLink): void {
    let isTaken = false;
    if (claim !== null) {
      const { hello, heard } = claim;
      const { rankInfo } = hello;
      const known = this.#table.at(rankInfo.endpoint);
      const isSame = known?.incarnation === rankInfo.incarnation;
      if (known === undefined) {
        this.#add(newPeer(rankInfo, { overlaps: true, link, greeted: false }), heard, hello.supportedMajors);
        isTaken = true;
      } else if (isSame && known.link === null) {
        known.link = link;
        isTaken = true;
      }
      if (known === undefined || isSame) this.#answers.accept(claim);
    }
    if (answer !== null) this.#greeted(answer, isTaken ? null : link);
    else if (!isTaken) this.#links.unlink(link);
  }

  onPing(peer: Peer | null, origin: FrameOrigin, load: RankLoad): void {
    const { endpoint } = this.#channel;
    if (peer !== null) {
      this.#channel.send(peer.endpoint, { type: 'PONG', endpoint, ...load });
      return;
    }
    // Whoever pings believes to be a peer, but this process lost it, or is a new one: told so, it can greet again at once.
    const reason = 'this process does not know you, send HELLO first';
    this.#channel.reply(origin, { type: 'GOODBYE', endpoint, drainMs: 0, reason });
  }

  /** Tells the sender that its frame was not understood, and whoever waits for the answer of a peer that it was none. */
  onBadFrame(error: WireError, origin: FrameOrigin): void {
    if (this.#closed) return;
    const { incarnation } = error.details;
    const peer = typeof incarnation === 'bigint' ? this.#table.sender(incarnation, origin) : null;
    const refused = this.#badFrames.on(error, origin, peer);
    if (refused === null) return;
    const greeting = this.#endGreeting(refused.endpoint);
    if (greeting?.probe === false) this.#events.onRefused(refused.endpoint, refused.error);
  }

  disconnected(endpoint: string): void {
    const peer = this.#table.at(endpoint);
    if (peer !== undefined) this.lose(peer, 'its connection broke');
  }

  onGoodbye(sender: Peer, goodbye: Goodbye): void {
    this.lose(sender, `it said goodbye: ${goodbye.reason}`);
  }

  /** @param isReplaced the connection leads to its successor by now, which knows it by the HELLO that it answered: another would be a stranger's */
  lose(peer: Peer, why: string, isReplaced = false): void {
    if (!this.#table.remove(peer)) return;
    this.#liveness.forget(peer);
    this.#counters.add('peers_lost');
    this.#events.onLost(peer, new PeerLostError(`lost ${peer.name}: ${why}`, { peer: peer.name }));
    if (isReplaced) this.#channel.disagree(peer.endpoint);
    else this.#channel.forget(peer.endpoint);
    // After onLost: the sessions have cancelled what they had there, so that the agent sees no new work for a peer it removes.
    if (peer.link !== null) this.#links.unlink(peer.link);
  }

  /** Pings peers that have live sessions, declares silent ones dead, lets go of those idle for long, ends greetings that nobody answers. */
  sweep(load: RankLoad): void {
    for (const [endpoint, greeting] of this.#greetings.expire(HELLO_TIMEOUT_MS)) {
      if (this.#introductions.unanswered(endpoint)) this.#counters.add('introductions_unanswered');
      this.#forgetUnlessNeeded(endpoint);
      if (greeting.probe) continue;
      this.#events.onRefused(
        endpoint,
        new TransferTimeoutError(
          `${endpoint} did not answer HELLO within ${HELLO_TIMEOUT_MS} ms: is the context server running there?`,
          { peer: endpoint, drained: true },
        ),
      );
    }
    this.#loseUnanswering();
    this.#table.sweep();
    this.#liveness.sweep(this.peers, this.#idle, load, (peer, why) => this.lose(peer, why));
  }

  /** A connection that leads nowhere any more is made anew while its HELLO still waits, so that the request behind it need not fail. */
  #loseUnanswering(): void {
    for (const endpoint of this.#greetings.wantedFor(PEER_DEAD_AFTER_MS)) {
      const known = this.#table.at(endpoint);
      if (known !== undefined && this.#use.isIdle(known, PEER_DEAD_AFTER_MS))
        this.lose(known, `no answer to HELLO for ${PEER_DEAD_AFTER_MS} ms`);
    }
  }

  close(): void {
    this.#closed = true;
    this.#links.close();
    this.#greetings.close();
    this.#ungreeted.clear();
  }

  /** Asks the endpoint itself who is there now. One question at a time, so that whoever makes others doubt is not an amplifier. */
  #probe(known: Peer, claim: Claim | null): void {
    const proofMs = this.#lastProofMs.get(known);
    if (proofMs !== undefined && this.#clock.now() - proofMs < PROBE_INTERVAL_MS) {
      this.#counters.add('probes_spared');
      return;
    }
    const running = this.#greetings.at(known.endpoint);
    if (running === undefined) this.#sayHello(known.endpoint, { probe: true, claim });
    else running.claim = claim ?? running.claim;
  }

  #sayHello(endpoint: string, { probe, claim }: Pick<Greeting, 'probe' | 'claim'>): void {
    const self = this.#self();
    if (self === null) return;
    this.#greetings.begin(endpoint, { probe, claim }, (nonce, attempt) =>
      this.#channel.introduce(endpoint, this.#helloOf(self, nonce, probe), attempt),
    );
  }

  #helloOf(self: RankInfo, nonce: bigint, probe: boolean): Hello {
    const supportedMajors = this.#channel.majors;
    // The way into our memory is for those who are wanted as peers alone.
    return probe
      ? { type: 'HELLO', nonce, supportedMajors, rankInfo: withoutMetadata(self), probe }
      : { type: 'HELLO', nonce, supportedMajors, rankInfo: self };
  }

  #endGreeting(endpoint: string): Greeting | undefined {
    const greeting = this.#greetings.at(endpoint);
    this.#greetings.end(endpoint);
    this.#introductions.end(endpoint);
    this.#forgetUnlessNeeded(endpoint);
    return greeting;
  }

  /** A connection that was made to ask a question, and that nobody needs any more. */
  #forgetUnlessNeeded(endpoint: string): void {
    if (!this.#isInUse(endpoint) && !this.#links.isUnderWayAt(endpoint)) this.#channel.forget(endpoint);
  }

  /** This rank has, or wants, a peer there, or asks there who it is. */
  #isInUse(endpoint: string): boolean {
    return this.#table.at(endpoint) !== undefined || this.#greetings.at(endpoint) !== undefined;
  }

  get #taken(): number {
    return this.#table.size + this.#links.size;
  }

  #makeRoom(alsoVerified: boolean): boolean {
    return this.#room.make(this.#taken, alsoVerified, (peer, why) => this.lose(peer, why));
  }

  #refuse(claim: Claim, message: string, findings: readonly Finding[] = []): void {
    this.#answers.refuse(askerOf(claim), message, findings);
    this.#forgetUnlessNeeded(claim.hello.rankInfo.endpoint);
  }

  #add(peer: Peer, heard: SpokenMajor, majors: readonly number[] | null): void {
    this.#table.add(peer);
    this.#liveness.heard(peer);
    this.#channel.agree(peer.endpoint, heard, majors);
    this.#events.onReady(peer);
  }
}

const NO_METADATA = new Uint8Array(0);
/** One for each rank info, so that it is encoded once. */
const probeInfos = new WeakMap<RankInfo, RankInfo>();

function withoutMetadata(self: RankInfo): RankInfo {
  let info = probeInfos.get(self);
  if (info === undefined) {
    info = { ...self, agentMetadata: NO_METADATA };
    probeInfos.set(self, info);
  }
  return info;
}
