import type { Clock } from '../clock.js';
import { CompatibilityError, type KvTransceiverError } from '../errors.js';
import { expectedBytes, mapRanks, type PeerMapping, type RankInfo } from '../mapping/index.js';
import type { CallbackGuard } from './callback-guard.js';
import type { Counters } from './counters.js';
import type { InboundSlots } from './inbound-slots.js';
import { instanceFinding } from './instance-identity.js';
import type { Peer } from './peer-registry.js';
import { planningFailure } from './planning-failure.js';
import type { ReceiveBook } from './receive-book.js';
import type { RxGroup, RxSession } from './rx-session.js';
import { RxWriter } from './rx-writer.js';
import { type ChosenGroup, chooseWriters } from './writer-choice.js';
import type { WriterTalk } from './writer-talk.js';

export interface WriterAskingOptions {
  readonly self: RankInfo;
  readonly inbound: InboundSlots | null;
  readonly book: ReceiveBook;
  readonly talk: WriterTalk;
  readonly clock: Clock;
  readonly counters: Counters;
  readonly guard: CallbackGuard;
  readonly newTicket: () => bigint;
  readonly peerAt: (endpoint: string) => Peer | null;
  /** The same, if it is known to be there still: a question that nobody heard costs the request. */
  readonly askableAt: (endpoint: string) => Peer | null;
  readonly greet: (endpoint: string) => void;
  readonly doubt: (endpoint: string) => void;
  readonly forget: (peer: Peer, why: string) => void;
  /** This writer cannot be asked; null: none can. */
  readonly onFailed: (session: RxSession, writer: RxWriter | null, error: KvTransceiverError) => void;
}

/**
 * Role: from one endpoint of the context instance to a question at each rank of it that has a part of the request.
 * Ordering: writers are asked as they become known, each for itself; the failure of one may come in between.
 */
export class WriterAsking {
  readonly #o: WriterAskingOptions;
  readonly #mappings = new WeakMap<Peer, PeerMapping>();
  /** By what a rank says of its instance, and DP group; what cannot be chosen is not kept. */
  readonly #chosen = new WeakMap<RankInfo, Map<number | null, readonly ChosenGroup[]>>();

  constructor(options: WriterAskingOptions) {
    this.#o = options;
  }

  start(session: RxSession): void {
    const peer = this.#o.askableAt(session.infoEndpoint);
    if (peer === null) this.#o.greet(session.infoEndpoint);
    else this.choose(session, peer);
  }

  /** A rank of the context instance is known, and so is who writes. */
  choose(session: RxSession, peer: Peer): void {
    let groups: RxGroup[];
    try {
      groups = this.#chosenOf(peer.info, session.request.disagg?.ctxDpRank ?? null).map(({ dpRank, writers }) => ({
        dpRank,
        writers: writers.map((chosen) => new RxWriter(chosen, this.#o.newTicket())),
        standing: 'possible',
      }));
    } catch (cause) {
      this.#o.onFailed(session, null, planningFailure(cause, `request ${session.rid}: its writers cannot be chosen`));
      return;
    }
    session.choose(peer.info, groups);
    for (const writer of session.writers) this.#o.book.admit(session, writer);
    for (const writer of session.writers) {
      // One that cannot be asked may end the request, or its group.
      if (session.outcome !== null) return;
      if (!session.wants(writer)) continue;
      const known = this.#o.askableAt(writer.endpoint);
      if (known === null) this.#o.greet(writer.endpoint);
      else this.ask(session, writer, known);
    }
  }

  ask(session: RxSession, writer: RxWriter, peer: Peer): void {
    try {
      this.#requireWriter(session, writer, peer);
      writer.bytesExpected = expectedBytes(this.#mappingFrom(peer), session.runs, session.request.promptTokens.length);
    } catch (cause) {
      const error = planningFailure(cause, `request ${session.rid}: what ${writer.endpoint} writes cannot be planned`);
      this.#o.doubt(session.infoEndpoint);
      this.#o.onFailed(session, writer, error);
      return;
    }
    writer.peer = peer;
    writer.asked = true;
    writer.heardAtMs = this.#o.clock.now();
    session.asked();
    // Before the question, so that its answer finds the slots registered.
    this.#expectInbound(session, writer, peer);
    this.#o.talk.ask(session, writer);
  }

  /** With a new ticket: the refusal of the old one may arrive a second time, after the next attempt was accepted. Its siblings keep theirs. */
  again(session: RxSession, writer: RxWriter, peer: Peer): void {
    this.#o.counters.add('greeted_again');
    this.#o.talk.stop(writer);
    this.#o.book.fence(writer);
    if (this.#o.inbound !== null)
      this.#o.guard.after(`inbound slots of ${writer.endpoint}`, this.#o.inbound.end(writer.ticket), () => {});
    writer.renew(this.#o.newTicket());
    this.#o.book.admit(session, writer);
    // What it wrote for other sessions ended when it lost us, and those reports went nowhere.
    this.#o.forget(peer, 'it does not know this process any more');
    this.#o.greet(writer.endpoint);
  }

  /** What the plan has a writer that was asked move in its blocks `[0, endBlock)`. */
  plannedBytes(session: RxSession, { peer }: RxWriter, endBlock: number): number {
    if (peer === null) return 0;
    const { runs, request } = session;
    return expectedBytes(this.#mappingFrom(peer), runs, request.promptTokens.length, endBlock);
  }

  isReachable(writer: RxWriter): boolean {
    return writer.peer !== null && this.#o.peerAt(writer.endpoint) === writer.peer;
  }

  #expectInbound(session: RxSession, writer: RxWriter, peer: Peer): void {
    if (this.#o.inbound === null || peer.link === null) return;
    const { ticket } = writer;
    this.#o.inbound.expect(peer.link, this.#mappingFrom(peer), ticket, session.runs).catch((cause: unknown) => {
      const error = this.#o.guard.caught(`request ${session.rid}: inbound slots`, cause);
      this.#o.guard.run(`the end of request ${session.rid}`, () => {
        if (writer.ticket === ticket) this.#o.onFailed(session, writer, error);
      });
    });
  }

  /** Page addresses go only to a rank that is what the instance says is there (I7). */
  #requireWriter(session: RxSession, writer: RxWriter, peer: Peer): void {
    if (session.instance === null) return;
    const where = `request ${session.rid}: ${session.infoEndpoint} and ${peer.endpoint}`;
    const finding = instanceFinding(session.instance, peer.info);
    if (finding !== null) {
      const { field, a, b, verdict, whichSideToChange } = finding;
      throw new CompatibilityError(`${where}: ${field}: ${a} against ${b}, ${verdict} (${whichSideToChange})`, {
        details: { findings: [finding] },
      });
    }
    if (peer.info.rank !== writer.rank)
      throw new CompatibilityError(`${where}: rank ${peer.info.rank} answers where rank ${writer.rank} should be`);
  }

  /** The same for every request that the same group computed. @throws as `chooseWriters` */
  #chosenOf(context: RankInfo, ctxDpRank: number | null): readonly ChosenGroup[] {
    // Without attention DP every number means the one group there is, so that requests do not decide how many are kept.
    const group = context.attentionDp ? ctxDpRank : null;
    const known = this.#chosen.get(context) ?? new Map<number | null, readonly ChosenGroup[]>();
    let groups = known.get(group);
    if (groups === undefined) {
      groups = chooseWriters(this.#o.self, context, group);
      known.set(group, groups);
      this.#chosen.set(context, known);
    }
    return groups;
  }

  /** Planned once per peer, as the writer does. */
  #mappingFrom(peer: Peer): PeerMapping {
    let mapping = this.#mappings.get(peer);
    if (mapping === undefined) {
      mapping = mapRanks(peer.info, this.#o.self);
      this.#mappings.set(peer, mapping);
    }
    return mapping;
  }
}
