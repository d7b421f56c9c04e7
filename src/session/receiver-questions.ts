import type { Clock } from '../clock.js';
import {
  type KvTransceiverError,
  NotAssignedError,
  PeerLostError,
  ProtocolError,
  SessionRetiredError,
  TransferCancelledError,
  TransferTimeoutError,
} from '../errors.js';
import type { RankPlaceInDp } from '../mapping/index.js';
import type { FrameOrigin } from '../wire/index.js';
import type { Cancel, RequestData, StatusQuery, WriterOutcomeName } from '../wire/messages.js';
import { AnswerShare } from './answer-share.js';
import { clipText } from './clip-text.js';
import type { ControlChannel, Correspondent } from './control-channel.js';
import type { Counters } from './counters.js';
import type { EarlyRequest, EarlyRequests } from './early-requests.js';
import { instanceFinding } from './instance-identity.js';
import { isSameProcess, type Peer } from './peer.js';
import { mayCancelUnasked, receiverRefusal } from './receiver-admission.js';
import { type Standing, standingOf } from './request-owner.js';
import { type SendTask, sliceResultOf } from './send-task.js';
import type { TxSession } from './tx-session.js';
import { emptyReport, noRoomReport, type WriterReports } from './writer-reports.js';

/** Of why somebody cancels: it is remembered for every request that is not here yet, and in every answer. */
const MAX_KEPT_REASON_BYTES = 256;

/** What the questions are about, and what an answer may start or end. */
export interface QuestionsOptions {
  readonly clock: Clock;
  readonly channel: ControlChannel;
  readonly counters: Counters;
  readonly reports: WriterReports;
  readonly early: EarlyRequests;
  readonly self: RankPlaceInDp;
  readonly sessionOf: (rid: bigint) => TxSession | undefined;
  /** Why a request ended here; null = completed, undefined = it did not. */
  readonly endOf: (rid: bigint) => KvTransceiverError | null | undefined;
  /** Whose a live ticket is. */
  readonly ownerOf: (ticket: bigint) => { readonly rid: bigint; readonly peer: Peer } | undefined;
  readonly peerAt: (endpoint: string) => Peer | null;
  readonly greet: (endpoint: string) => void;
  readonly register: (session: TxSession, peer: Peer, message: RequestData) => void;
  readonly cancel: (session: TxSession, error: KvTransceiverError) => void;
}

/**
 * Role: what generation ranks say of requests, and what they are answered: REQUEST_DATA, STATUS, CANCEL, before the request exists, while it runs
 *   and after.
 * Why: every question is answered, by whoever it is asked, but only the peers that a request belongs to start or end something of it.
 */
export class ReceiverQuestions {
  readonly #o: QuestionsOptions;
  readonly #reports: WriterReports;
  readonly #early: EarlyRequests;
  readonly #roomAnswers: AnswerShare;

  constructor(options: QuestionsOptions) {
    this.#o = options;
    this.#reports = options.reports;
    this.#early = options.early;
    this.#roomAnswers = new AnswerShare(options.clock);
  }

  onRequestData(peer: Peer, message: RequestData): void {
    const { rid, ticket } = message;
    // It accepted our HELLO, but never sent its own: its memory is not loaded.
    if (peer.link === null) {
      this.#refuseUnknown(message, peer);
      return;
    }
    if (this.#reports.repeat(peer, ticket)) return;
    if (this.#isForeign(message, peer)) return;
    const session = this.#o.sessionOf(rid);
    if (session?.receivers.has(ticket) === true) {
      this.#accepted(peer, rid, ticket);
      return;
    }
    const standing = session === undefined ? 'unknown' : this.#standing(session, peer);
    const refusal = this.#refusal(message, peer, session, standing);
    if (refusal !== null) {
      this.refuse(peer, message, refusal);
      return;
    }
    if (session !== undefined && standing === 'owner') this.#o.register(session, peer, message);
    else if (session === undefined && message.isComputed === true)
      this.refuse(peer, message, this.#notComputedHere(rid));
    else {
      const kept = this.#early.keep(peer, message);
      if (kept !== 'kept') {
        this.#o.counters.add(`early_requests_${kept}`);
        this.#noRoom(peer, rid, ticket);
        return;
      }
    }
    // Registering may have reported already (a session that was born to fail); then that is the answer.
    if (this.#reports.newest(ticket) === undefined) this.#accepted(peer, rid, ticket);
  }

  /**
   * It never greeted this process (which may be a restarted one), or this process lost it. What was reported of its ticket is still the
   * answer, `drained` included. A ticket that is new here moved nothing, and never will: the refusal is remembered, so that a late copy of
   * the question gets it too. The receiver greets and asks again with a new ticket.
   */
  refuseStranger(message: RequestData | StatusQuery, origin: FrameOrigin): void {
    this.#refuseUnknown(message, origin);
  }

  #refuseUnknown(message: RequestData | StatusQuery, asker: Correspondent): void {
    const { rid, ticket } = message;
    if (this.#reports.repeat(asker, ticket)) return;
    if (this.#isForeign(message, 'kind' in asker ? null : asker)) return;
    const text = `request ${rid}: ${message.endpoint} is no peer of this process, send HELLO first`;
    const error = new PeerLostError(text, { requestId: rid.toString(), drained: true });
    // A stranger's is counted as such.
    if (!('kind' in asker)) this.#o.counters.add(`request_data_refused:${error.code}`);
    this.#reports.answer(asker, emptyReport(rid, ticket, 'REFUSED', error));
  }

  /** A generation rank gave up. It is answered whatever is known of the request. */
  onCancel(peer: Peer | null, cancel: Cancel, origin: FrameOrigin): void {
    const { rid, ticket } = cancel;
    if (this.#reports.repeat(peer ?? origin, ticket)) return;
    if (this.#isForeign(cancel, peer)) return;
    const session = this.#o.sessionOf(rid);
    const reason = clipText(cancel.reason, MAX_KEPT_REASON_BYTES);
    const error = new TransferCancelledError(`cancelled by ${peer?.endpoint ?? cancel.endpoint}: ${reason}`, {
      requestId: rid.toString(),
    });
    if (session?.receivers.has(ticket) === true) {
      this.#o.cancel(session, error);
      return;
    }
    const report = emptyReport(rid, ticket, 'CANCELLED', error);
    // A stranger is answered but changes nothing: ids of requests can be guessed.
    if (peer === null) {
      this.#o.channel.reply(origin, report);
      return;
    }
    if (session?.outcome === null && mayCancelUnasked(peer, session)) {
      const standing = this.#standing(session, peer);
      // It repeats the cancel until it is answered, and by then it is known whose the request is.
      if (standing === 'unknown') return;
      if (standing === 'owner') this.#o.cancel(session, error);
      else this.#o.counters.add('foreign_request:CANCEL');
    }
    // The session, if it comes, is born cancelled.
    if (session === undefined && this.#o.endOf(rid) === undefined) this.#cancelEarly(peer, cancel, error);
    this.#reports.answer(peer, report);
  }

  onStatus(peer: Peer, query: StatusQuery): void {
    const { rid, ticket } = query;
    if (this.#reports.repeat(peer, ticket)) return;
    if (this.#isForeign(query, peer)) return;
    const receiver = this.#o.sessionOf(rid)?.receivers.get(ticket);
    const task = receiver?.tasks.findLast((candidate) => candidate.state === 'transferred');
    if (task !== undefined) this.sliceResult(task, rid);
    else if (receiver !== undefined || this.#early.has(rid, ticket)) this.#accepted(peer, rid, ticket);
    else {
      const error = new SessionRetiredError(`request ${rid} is not known here`, {
        requestId: rid.toString(),
        drained: true,
      });
      this.#reports.answer(peer, emptyReport(rid, ticket, 'REFUSED', error));
    }
  }

  /**
   * The request has come, or more is known of whose it is.
   * @returns why it is cancelled before it began; null: it is not, and who asked for it is registered
   */
  onCreated(session: TxSession): TransferCancelledError | null {
    const cancelled = this.#takeCancel(session);
    if (cancelled === null) this.#takeEarly(session);
    else for (const early of this.#early.take(session.rid)) this.answerEarly(early, 'CANCELLED', cancelled);
    return cancelled;
  }

  /** Whoever asked and was not known to be of the receiving instance yet would wait for it until its clock runs out. */
  onEnded(session: TxSession): void {
    const { rid, outcome, error } = session;
    for (const early of this.#early.take(rid)) {
      const refusal = this.#refusal(early.message, early.peer, session, 'unknown');
      if (outcome === 'cancelled' && error !== null) this.answerEarly(early, 'CANCELLED', error);
      else if (refusal !== null) this.#refuseEarly(early, refusal);
    }
  }

  /** A request that names this rank may have waited to hear of which instance it is. */
  onPeerReady(peer: Peer, session: TxSession): void {
    if (session.outcome !== null || session.request.disagg?.genInfoEndpoint !== peer.endpoint) return;
    const cancelled = this.onCreated(session);
    if (cancelled !== null) this.#o.cancel(session, cancelled);
  }

  sweep(): void {
    for (const early of this.#early.sweep()) this.#expireEarly(early);
    this.#reports.sweep();
  }

  /** Answers the question with a refusal, which later copies of it get too. */
  refuse(peer: Peer, { rid, ticket }: RequestData, error: KvTransceiverError): void {
    this.#o.counters.add(`request_data_refused:${error.code}`);
    this.#reports.answer(peer, emptyReport(rid, ticket, 'REFUSED', error));
  }

  /** It was ACCEPTED, and waits for a report without asking again: so the report is repeated until it is acknowledged. */
  answerEarly({ peer, message }: EarlyRequest, outcome: WriterOutcomeName, error: KvTransceiverError): void {
    const { rid, ticket } = message;
    this.#reports.publish(peer.endpoint, emptyReport(rid, ticket, outcome, error));
  }

  #refuseEarly(early: EarlyRequest, error: KvTransceiverError): void {
    this.#o.counters.add(`request_data_refused:${error.code}`);
    this.answerEarly(early, 'REFUSED', error);
  }

  sliceResult(task: SendTask, rid: bigint): void {
    const result = sliceResultOf(task, rid);
    if (result !== null) this.#o.channel.send(task.receiver.peer.endpoint, result);
  }

  #takeEarly(session: TxSession): void {
    for (const early of this.#early.take(session.rid)) {
      const { peer, message } = early;
      const standing = this.#standing(session, peer);
      const refusal = this.#refusal(message, peer, session, standing);
      if (refusal !== null) this.#refuseEarly(early, refusal);
      else if (standing === 'owner') this.#o.register(session, peer, message);
      else this.#early.keepAgain(early);
    }
  }

  /** Asks the rank that the request names when that is what is missing. */
  #standing({ request }: TxSession, peer: Peer): Standing {
    const standing = standingOf(request, peer, this.#o.peerAt);
    const named = request.disagg?.genInfoEndpoint ?? null;
    if (standing === 'unknown' && named !== null) this.#o.greet(named);
    return standing;
  }

  #refusal(
    message: RequestData,
    peer: Peer,
    session: TxSession | undefined,
    standing: Standing,
  ): KvTransceiverError | null {
    const { rid } = message;
    if (standing === 'foreign') {
      this.#o.counters.add('foreign_request:REQUEST_DATA');
      return new ProtocolError(
        `request ${rid} is generated by ${session?.request.disagg?.genInfoEndpoint}, and ${peer.name} is not of that instance`,
      );
    }
    return receiverRefusal(message, peer, session, this.#o.endOf(rid));
  }

  /**
   * The ticket is live and another process's, or another request's. No answer: it would be a report about that ticket, which may be believed,
   * and would stand in the way of the true one.
   */
  #isForeign({ type, rid, ticket }: RequestData | StatusQuery | Cancel, peer: Peer | null): boolean {
    const early = this.#early.of(ticket);
    const owner = this.#o.ownerOf(ticket) ?? (early && { rid: early.message.rid, peer: early.peer });
    if (owner === undefined || (owner.rid === rid && isSameProcess(owner.peer, peer))) return false;
    this.#o.counters.add(`foreign_ticket:${type}`);
    return true;
  }

  /**
   * One rank of the receiving instance ends the request for all of them. Not with attention DP: there a receiver also cancels at the groups
   * that do not have the request, and its siblings may not have heard yet which one does.
   */
  #cancelEarly(peer: Peer, { rid, ticket }: Cancel, error: KvTransceiverError): void {
    const isOurs = (asker: Peer): boolean =>
      !this.#o.self.attentionDp && instanceFinding(peer.info, asker.info) === null;
    for (const early of this.#early.cancel(rid, peer, ticket, error.message, isOurs))
      this.answerEarly(early, 'CANCELLED', error);
  }

  /**
   * Only a cancel of those that the request belongs to. When it names nobody, whoever asked for it goes before whoever cancelled it: one of
   * them guessed its id. What cannot be told yet is kept until it can.
   */
  #takeCancel(session: TxSession): TransferCancelledError | null {
    const { rid } = session;
    const named = session.request.disagg?.genInfoEndpoint ?? null;
    const askers = this.#early.askers(rid);
    for (const cancel of this.#early.takeCancels(rid)) {
      const { peer, message } = cancel;
      const isFirst = askers.every((asker) => instanceFinding(peer.info, asker.info) === null);
      const standing = named === null ? (isFirst ? 'owner' : 'foreign') : this.#standing(session, peer);
      if (standing === 'owner')
        return new TransferCancelledError(message, { requestId: rid.toString(), drained: true });
      if (standing === 'unknown') this.#early.keepCancel(rid, cancel);
      else this.#o.counters.add('foreign_request:CANCEL');
    }
    return null;
  }

  /**
   * The time its receiver gives it is over, and so is the receiver's own clock, unless it waits longer than requests wait here. It is told
   * all the same: that nothing was written, and will not be. With attention DP one group of ranks has the request and the others never hear
   * of it: each of those says so, so that a receiver which nobody serves learns it from all of them.
   */
  #expireEarly(early: EarlyRequest): void {
    const { rid } = early.message;
    const failure = { requestId: rid.toString(), drained: true };
    const error = this.#o.self.attentionDp
      ? new NotAssignedError(
          `request ${rid} did not come to DP group ${this.#o.self.dpRank}: another group has it, or none`,
          failure,
        )
      : new TransferTimeoutError(`request ${rid} did not come while its receiver waited`, failure);
    this.#o.counters.add('early_requests_expired');
    this.answerEarly(early, 'REFUSED', error);
  }

  /** Every process that computed it still has it, or remembers how it ended. */
  #notComputedHere(rid: bigint): KvTransceiverError {
    const { attentionDp, dpRank } = this.#o.self;
    const failure = { requestId: rid.toString(), drained: true };
    return attentionDp
      ? new NotAssignedError(`request ${rid} was not computed in DP group ${dpRank}: another group has it`, failure)
      : new SessionRetiredError(
          `request ${rid} was computed, and this process does not know it: it took the place of the one that did`,
          failure,
        );
  }

  /** Not remembered, unlike other answers: the same question is kept when it comes again and there is room. */
  #noRoom(peer: Peer, rid: bigint, ticket: bigint): void {
    if (this.#roomAnswers.take(peer)) this.#o.channel.send(peer.endpoint, noRoomReport(rid, ticket));
  }

  #accepted(peer: Peer, rid: bigint, ticket: bigint): void {
    this.#o.channel.send(peer.endpoint, { type: 'ACCEPTED', rid, ticket });
  }
}
