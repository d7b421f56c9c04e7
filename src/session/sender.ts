import type { Completion, DrainedNotice, ReadyEvent, TransferAgent } from '../agent/transfer-agent.js';
import type { KvCacheManager } from '../cache/kv-cache-manager.js';
import type { Clock } from '../clock.js';
import {
  InternalError,
  KvTransceiverError,
  NotAssignedError,
  PeerLostError,
  SessionRetiredError,
  TransferCancelledError,
  TransferTimeoutError,
  TransportError,
} from '../errors.js';
import { type LlmRequest, requestKey } from '../executor/request.js';
import { earlyPrefixSlice } from '../geometry/early-prefix-slice.js';
import { planAux, planSlice, type RankPlaceInDp, type TransferPlan } from '../mapping/index.js';
import type { Cancel, ReportAck, RequestData, StatusQuery, WriterOutcomeName, WriterReport } from '../wire/messages.js';
import type { AuxBuffer } from './aux-buffer.js';
import { BoundedMap } from './bounded-map.js';
import type { SendReceipt, Settled } from './cache-transceiver.js';
import { clipText } from './clip-text.js';
import type { ControlChannel } from './control-channel.js';
import type { Counters } from './counters.js';
import { type EarlyRequest, EarlyRequests } from './early-requests.js';
import { instanceFinding } from './instance-identity.js';
import type { PeerLink } from './peer-link.js';
import type { Peer } from './peer-registry.js';
import { planningFailure } from './planning-failure.js';
import { mayCancelUnasked, receiverRefusal } from './receiver-admission.js';
import { type ClockLimits, RequestClocks } from './request-clocks.js';
import { SendTask, sliceResultOf } from './send-task.js';
import type { SendWatch } from './send-watch.js';
import { requestSlice, type SliceBounds, sourceRuns } from './slice-source.js';
import type { TransferLedger } from './transfer-ledger.js';
import { TxReceiver, TxSession, type TxSlice } from './tx-session.js';
import { txTimings } from './tx-timings.js';
import { emptyReport, WriterReports } from './writer-reports.js';

/** Requests whose end is remembered for late frames and late slices. */
const REMEMBERED_ENDS = 65536;

export interface SenderOptions {
  readonly agent: TransferAgent;
  readonly cache: KvCacheManager;
  readonly ledger: TransferLedger;
  readonly channel: ControlChannel;
  readonly clock: Clock;
  readonly counters: Counters;
  readonly watch: SendWatch;
  readonly limits: ClockLimits;
  readonly aux: AuxBuffer;
  /** Where this rank stands in its instance. */
  readonly self: RankPlaceInDp;
  /** Whether a peer was not lost meanwhile. */
  readonly isLive: (peer: Peer) => boolean;
  readonly onSettled: (settled: Settled) => void;
  /** Something `receiverReady` answers has changed. */
  readonly onReceivers: () => void;
}

/**
 * Role: the context side. Turns chunks into slices, slices into submissions, completions into reports.
 * Ordering: a receiver's report goes out after all its slices and its aux are complete at the transport, never before (I4).
 * Ownership: a request's pages are held in the ledger from its first slice until everything it submitted has drained.
 */
export class Sender {
  readonly #o: SenderOptions;
  readonly #reports: WriterReports;
  readonly #early: EarlyRequests;
  readonly #sessions = new Map<bigint, TxSession>();
  /** Rid -> why it ended; null = completed. */
  readonly #retired = new BoundedMap<bigint, KvTransceiverError | null>(REMEMBERED_ENDS);
  /** Ticket -> whose it is, of the receivers of live sessions. */
  readonly #owners = new Map<bigint, { readonly rid: bigint; readonly peer: Peer }>();
  readonly #tasks = new Map<number, { task: SendTask; session: TxSession }>();
  /** All that `flushAux` needs to look at: it runs at every turn of an executor, and thousands of sessions may be live. */
  readonly #auxPending = new Set<TxSession>();
  #nextTaskId = 1;
  #nextFlow = 1;

  constructor(options: SenderOptions) {
    this.#o = options;
    const { channel, clock, counters, limits } = options;
    this.#reports = new WriterReports({ channel, clock, counters, repeatForMs: limits.kvTransferTimeoutMs });
    this.#early = new EarlyRequests(clock, limits.transferQueueTimeoutMs);
  }

  get sessionCount(): number {
    return this.#sessions.size;
  }

  get inspected(): { readonly sessions: readonly TxSession[]; readonly early: number; readonly openReports: number } {
    return { sessions: [...this.#sessions.values()], early: this.#early.count, openReports: this.#reports.openCount };
  }

  /** Adds the endpoints whose silence matters now. */
  addBusyEndpoints(endpoints: Set<string>): void {
    for (const session of this.#sessions.values())
      for (const receiver of session.receivers.values()) endpoints.add(receiver.peer.endpoint);
  }

  /** False until every expected receiver asked. A request that can never be sent settles as failed instead. */
  receiverReady(request: LlmRequest): boolean {
    const rid = requestKey(request);
    const session = this.#sessions.get(rid);
    if (session !== undefined) return session.outcome === null && session.receiverReady;
    if (this.#retired.has(rid)) return false;
    return this.#create(rid, request).receiverReady;
  }

  send(request: LlmRequest, after: ReadyEvent | null): SendReceipt | null {
    const session = this.#session(request);
    return this.#addSlice(session, requestSlice(request, this.#o.cache.tokensPerBlock, session.prefixSent), after);
  }

  sendEarlyPrefix(request: LlmRequest, after: ReadyEvent | null): SendReceipt | null {
    const prefix = earlyPrefixSlice({
      prepopulatedLen: request.prepopulatedLen,
      tokensPerBlock: this.#o.cache.tokensPerBlock,
      isFirstChunk: request.chunkStart === request.prepopulatedLen,
      cancelled: request.cancelRequested,
      pipelined: request.transferPolicy.pipelined && request.transferPolicy.earlyPrefix,
    });
    if (prefix === null) return null;
    const session = this.#session(request);
    const receipt = this.#addSlice(session, { ...prefix, isLast: false }, after);
    session.prefixSent = true;
    return receipt;
  }

  cancel(request: LlmRequest, reason: string): boolean {
    const rid = requestKey(request);
    const session = this.#sessions.get(rid);
    if (session === undefined) {
      if (!this.#retired.has(rid)) {
        const error = new TransferCancelledError(`cancelled: ${reason}`, { requestId: rid.toString(), drained: true });
        this.#retired.set(rid, error);
        for (const early of this.#early.take(rid)) this.#answerEarly(early, 'CANCELLED', error);
      }
      return true;
    }
    this.#end(session, 'cancelled', new TransferCancelledError(`cancelled: ${reason}`, { requestId: rid.toString() }));
    return !this.#sessions.has(rid);
  }

  onRequestData(peer: Peer, message: RequestData): void {
    const { rid, ticket } = message;
    // It accepted our HELLO, but never sent its own: its memory is not loaded.
    if (peer.link === null) {
      this.#refuseUnknown(message, peer);
      return;
    }
    if (this.#reports.repeat(peer.endpoint, ticket)) return;
    if (this.#isForeign(message, peer)) return;
    const session = this.#sessions.get(rid);
    if (session?.receivers.has(ticket) === true) {
      this.#accepted(peer, rid, ticket);
      return;
    }
    const refusal = receiverRefusal(message, peer, session, this.#retired.get(rid));
    if (refusal !== null) {
      this.#o.counters.add('request_data_refused');
      this.#reports.answer(peer.endpoint, emptyReport(rid, ticket, 'REFUSED', refusal));
      return;
    }
    if (session !== undefined) this.#register(session, peer, message);
    else {
      const kept = this.#early.keep(peer, message);
      if (kept !== 'kept') {
        this.#o.counters.add(`early_requests_${kept}`);
        return;
      }
    }
    // #register may have reported already (a session that was born to fail); then that is the answer.
    if (this.#reports.newest(ticket) === undefined) this.#accepted(peer, rid, ticket);
  }

  /**
   * It never greeted this process (which may be a restarted one), or this process lost it. What was reported of its ticket is still the
   * answer, `drained` included. A ticket that is new here moved nothing, and never will: the refusal is remembered, so that a late copy of
   * the question gets it too. The receiver greets and asks again with a new ticket.
   */
  refuseStranger(message: RequestData | StatusQuery): void {
    this.#refuseUnknown(message, null);
  }

  #refuseUnknown(message: RequestData | StatusQuery, peer: Peer | null): void {
    const { rid, ticket } = message;
    const endpoint = peer?.endpoint ?? message.endpoint;
    if (this.#reports.repeat(endpoint, ticket)) return;
    if (this.#isForeign(message, peer)) return;
    const text = `request ${rid}: ${endpoint} is no peer of this process, send HELLO first`;
    const error = new PeerLostError(text, { requestId: rid.toString(), drained: true });
    this.#reports.answer(endpoint, emptyReport(rid, ticket, 'REFUSED', error));
  }

  /** A generation rank gave up. It is answered whatever is known of the request. */
  onCancel(peer: Peer | null, cancel: Cancel): void {
    const { rid, ticket } = cancel;
    const endpoint = peer?.endpoint ?? cancel.endpoint;
    if (this.#reports.repeat(endpoint, ticket)) return;
    if (this.#isForeign(cancel, peer)) return;
    const session = this.#sessions.get(rid);
    const error = new TransferCancelledError(`cancelled by ${endpoint}: ${cancel.reason}`, {
      requestId: rid.toString(),
    });
    if (session?.receivers.has(ticket) === true) {
      this.#end(session, 'cancelled', error);
      return;
    }
    const report = emptyReport(rid, ticket, 'CANCELLED', error);
    // A stranger is answered but changes nothing: ids of requests can be guessed.
    if (peer === null) {
      this.#o.channel.send(endpoint, report);
      return;
    }
    if (session?.outcome === null && mayCancelUnasked(peer, session)) this.#end(session, 'cancelled', error);
    // The session, if it comes, is born cancelled.
    if (session === undefined && !this.#retired.has(rid)) this.#cancelEarly(peer, cancel, error);
    this.#reports.answer(endpoint, report);
  }

  onReportAck(peer: Peer, { ticket, drained }: ReportAck): void {
    this.#reports.acknowledged(peer.endpoint, ticket, drained);
  }

  onStatus(peer: Peer, query: StatusQuery): void {
    const { rid, ticket } = query;
    if (this.#reports.repeat(peer.endpoint, ticket)) return;
    if (this.#isForeign(query, peer)) return;
    const receiver = this.#sessions.get(rid)?.receivers.get(ticket);
    const task = receiver?.tasks.findLast((candidate) => candidate.state === 'transferred');
    if (task !== undefined) this.#sliceResult(task, rid);
    else if (receiver !== undefined || this.#early.has(rid, ticket)) this.#accepted(peer, rid, ticket);
    else {
      const error = new SessionRetiredError(`request ${rid} is not known here`, {
        requestId: rid.toString(),
        drained: true,
      });
      this.#reports.answer(peer.endpoint, emptyReport(rid, ticket, 'REFUSED', error));
    }
  }

  /**
   * The ticket is live and another process's, or another request's. No answer: it would be a report about that ticket, which may be believed,
   * and would stand in the way of the true one.
   */
  #isForeign({ type, rid, ticket }: RequestData | StatusQuery | Cancel, peer: Peer | null): boolean {
    const early = this.#early.of(ticket);
    const owner = this.#owners.get(ticket) ?? (early && { rid: early.message.rid, peer: early.peer });
    if (owner === undefined || (owner.rid === rid && owner.peer.incarnation === peer?.incarnation)) return false;
    this.#o.counters.add(`foreign_ticket:${type}`);
    return true;
  }

  onPeerLost(peer: Peer, error: PeerLostError): void {
    this.#early.dropPeer(peer);
    for (const session of [...this.#sessions.values()]) {
      for (const receiver of session.receivers.values()) {
        if (receiver.peer !== peer) continue;
        if (!session.delivered(receiver)) this.#end(session, 'failed', error);
      }
    }
  }

  onCompletions(batch: readonly (Completion | DrainedNotice)[]): void {
    for (const notice of batch) {
      const entry = this.#tasks.get(notice.submission);
      if (entry === undefined) {
        this.#o.counters.add('unknown_completion');
        continue;
      }
      const { task, session } = entry;
      if (notice.kind === 'drained') task.becameDrained();
      else task.settled(notice);
      if (task.drained) this.#tasks.delete(notice.submission);
      session.clocks.progress();
      if (notice.kind === 'completion') this.#onTaskEnded(session, task);
      this.#advance(session);
    }
  }

  /** Aux waits for the first token, which the executor learns after it handed over the last slice. */
  flushAux(): void {
    if (this.#auxPending.size === 0) return;
    const pending = [...this.#auxPending];
    this.#auxPending.clear();
    for (const session of pending)
      if (session.outcome === null) for (const receiver of session.receivers.values()) this.#sendAux(session, receiver);
  }

  sweep(): void {
    for (const early of this.#early.sweep()) this.#expireEarly(early);
    this.#reports.sweep();
    // Read once: with thousands of sessions, reading the time is most of a sweep.
    const now = this.#o.clock.now();
    // What the executor computed since the last event counts from now on. Without a submission under way nothing can have become busy.
    for (const { session } of this.#tasks.values())
      if (session.outcome === null) session.clocks.setBusy(session.transferBusy, now);
    for (const session of this.#sessions.values()) {
      if (session.outcome !== null) continue;
      const expired = session.clocks.expired(now);
      if (expired === null) continue;
      const peer = [...session.receivers.values()][0]?.peer.name ?? 'any generation server';
      const text =
        expired.clock === 'queue'
          ? `request ${session.rid}: ${missingReceivers(session)} asked within ${expired.limitMs} ms (transferQueueTimeoutMs)`
          : `request ${session.rid} to ${peer}: the ${expired.clock} clock of ${expired.limitMs} ms ran out`;
      this.#end(session, 'failed', new TransferTimeoutError(text, { requestId: session.rid.toString(), peer }));
    }
    this.flushAux();
  }

  endAll(reason: string): void {
    for (const session of [...this.#sessions.values()])
      this.#end(session, 'cancelled', new TransferCancelledError(reason, { requestId: session.rid.toString() }));
  }

  close(): void {
    this.#reports.close();
  }

  #session(request: LlmRequest): TxSession {
    const rid = requestKey(request);
    const session = this.#sessions.get(rid) ?? (this.#retired.has(rid) ? undefined : this.#create(rid, request));
    if (session !== undefined && session.outcome === null) return session;
    const why = session?.error ?? this.#retired.get(rid) ?? null;
    throw new SessionRetiredError(
      `request ${rid}: its transfer already ended${why === null ? '' : ` (${why.message})`}`,
      { requestId: rid.toString(), cause: why ?? undefined },
    );
  }

  #create(rid: bigint, request: LlmRequest): TxSession {
    const clocks = new RequestClocks(this.#o.clock, this.#o.limits);
    const session = new TxSession(rid, request, clocks, this.#o.clock.now());
    this.#sessions.set(rid, session);
    this.#o.watch.started(session);
    const cancelled = this.#early.takeCancel(rid);
    if (cancelled !== null) {
      this.#end(
        session,
        'cancelled',
        new TransferCancelledError(cancelled, { requestId: rid.toString(), drained: true }),
      );
      for (const early of this.#early.take(rid))
        this.#answerEarly(
          early,
          'CANCELLED',
          new TransferCancelledError(cancelled, { requestId: rid.toString(), drained: true }),
        );
      return session;
    }
    for (const early of this.#early.take(rid)) {
      const refusal = receiverRefusal(early.message, early.peer, session, undefined);
      if (refusal === null) this.#register(session, early.peer, early.message);
      else this.#answerEarly(early, 'REFUSED', refusal);
    }
    return session;
  }

  #register(session: TxSession, peer: Peer, message: RequestData): void {
    const receiver = new TxReceiver(peer, message.ticket, message.runs, message.auxSlot, this.#nextFlow++);
    session.receivers.set(message.ticket, receiver);
    this.#owners.set(message.ticket, { rid: session.rid, peer });
    this.#o.watch.asked(session, peer, message);
    if (session.receiverReady && session.clocks.peerArrived()) this.#o.watch.arrived(session);
    for (const slice of session.slices) this.#dispatch(session, receiver, slice);
    this.#advance(session);
    this.#o.onReceivers();
  }

  #addSlice(session: TxSession, bounds: SliceBounds | null, after: ReadyEvent | null): SendReceipt | null {
    if (bounds === null) return null;
    const { request } = session;
    const runs = sourceRuns(this.#o.cache, request, bounds, this.#o.self);
    this.#o.ledger.acquire(request.id, request.promptTokens.length);
    if (bounds.isLast) this.#o.ledger.complete(request.id);
    const slice: TxSlice = { ...bounds, seq: session.slices.length, runs, after, submittedAtMs: this.#o.clock.now() };
    session.addSlice(slice);
    for (const receiver of session.receivers.values()) this.#dispatch(session, receiver, slice);
    this.#advance(session);
    return { beginBlock: bounds.beginBlock, endBlock: bounds.endBlock, isLast: bounds.isLast };
  }

  #dispatch(session: TxSession, receiver: TxReceiver, slice: TxSlice): void {
    if (session.outcome !== null) return;
    const link = linkOf(receiver);
    let plan: TransferPlan;
    try {
      plan = planSlice(link.mapping, slice.runs, receiver.runs);
    } catch (cause) {
      const what = `request ${session.rid}: slice ${slice.seq} to ${receiver.peer.name} cannot be planned`;
      this.#end(session, 'failed', planningFailure(cause, what));
      return;
    }
    const task = new SendTask(this.#nextTaskId++, receiver, slice, plan.stats.bytes);
    receiver.tasks.push(task);
    this.#o.watch.planned(task, link, plan);
    if (plan.stats.bytes === 0) {
      task.completedEmpty(this.#o.clock.now());
      this.#sliceResult(task, session.rid);
      return;
    }
    this.#submit(session, task, plan, slice.after);
  }

  #submit(session: TxSession, task: SendTask, plan: TransferPlan, after: ReadyEvent | null): void {
    const { receiver } = task;
    const link = linkOf(receiver);
    try {
      const groups = link.submissionGroups(plan);
      // Aux goes into a slot that no receive registers; an agent that does not bounce is spared the rest.
      const ticket = this.#o.agent.bounces === true && task.slice !== null ? { ticket: receiver.ticket } : {};
      this.#o.agent.submit({ id: task.id, peer: link.handle, flow: receiver.flow, groups, after, ...ticket });
    } catch (cause) {
      if (!(cause instanceof KvTransceiverError)) throw cause;
      task.refused(cause);
      this.#onTaskEnded(session, task);
      return;
    }
    task.submitted();
    this.#tasks.set(task.id, { task, session });
  }

  #onTaskEnded(session: TxSession, task: SendTask): void {
    const { receiver } = task;
    this.#o.watch.ended(task, session);
    if (task.state === 'transferred') {
      this.#sliceResult(task, session.rid);
      return;
    }
    if (session.outcome !== null) return;
    const what = task.slice === null ? 'aux' : `slice ${task.slice.seq}`;
    const cause = task.error ?? undefined;
    const text = `request ${session.rid}, ${what} to ${receiver.peer.name}: ${cause?.message ?? 'the agent dropped it'}`;
    this.#end(
      session,
      'failed',
      new TransportError(text, {
        cause,
        requestId: session.rid.toString(),
        peer: receiver.peer.name,
        bytesDone: receiver.bytesDone,
        drained: task.drained,
      }),
    );
  }

  /** Whatever just changed: what does it allow now? */
  #advance(session: TxSession): void {
    if (session.state === 'closed') return;
    for (const receiver of session.receivers.values()) {
      if (session.outcome === null) this.#sendAux(session, receiver);
      this.#maybeReport(session, receiver);
    }
    if (session.outcome === null && session.allDelivered) {
      session.decide('completed', null);
      this.#settled(session);
    }
    session.clocks.setBusy(session.transferBusy);
    // A submission that failed above ended, and may have closed, the session already.
    if (session.outcome !== null && session.drained && this.#sessions.has(session.rid)) this.#close(session);
  }

  #sendAux(session: TxSession, receiver: TxReceiver): void {
    if (receiver.remoteAuxSlot < 0 || receiver.auxTask !== null || !session.pagesDelivered(receiver)) return;
    // Only the token, or a slot, can be missing now, and neither announces itself. What leaves below is found gone at the next flush.
    this.#auxPending.add(session);
    const { request } = session;
    const firstToken = request.outputTokens[0];
    if (firstToken === undefined) return;
    if (session.auxSlot === null) {
      // Every slot is in use: the next completion frees one and the sweep tries again; the transfer clock bounds it.
      if (this.#o.aux.freeCount === 0) return;
      session.auxSlot = this.#o.aux.allocate();
      this.#o.aux.pack(session.auxSlot, {
        firstTokens: [firstToken],
        draftTokens: request.disagg?.draftTokens ?? [],
        promptLen: request.promptTokens.length,
        cachedTokens: request.prepopulatedLen,
      });
    }
    const plan = planAux(linkOf(receiver).mapping, session.auxSlot, receiver.remoteAuxSlot);
    receiver.auxTask = new SendTask(this.#nextTaskId++, receiver, null, plan.stats.bytes);
    this.#submit(session, receiver.auxTask, plan, null);
  }

  #end(session: TxSession, outcome: 'failed' | 'cancelled', error: KvTransceiverError): void {
    if (!session.decide(outcome, error)) return;
    this.#settled(session);
    for (const task of session.tasks) if (!task.ended) this.#o.agent.cancel(task.id);
    this.#advance(session);
  }

  #settled(session: TxSession): void {
    this.#retired.set(session.rid, session.error);
    if (session.outcome === null) throw new InternalError(`request ${session.rid} settled without an outcome`);
    this.#o.onSettled({
      request: session.request,
      side: 'context',
      outcome: session.outcome,
      error: session.error,
      firstTokens: [],
      salvageableTokens: 0,
      timings: txTimings(session, this.#o.clock.now()),
    });
  }

  /** Outcome decided and nothing can touch memory: the pages are free, the session is gone. */
  #close(session: TxSession): void {
    session.close();
    this.#sessions.delete(session.rid);
    for (const ticket of session.receivers.keys()) this.#owners.delete(ticket);
    this.#auxPending.delete(session);
    if (session.auxSlot !== null) this.#o.aux.free(session.auxSlot);
    if (this.#o.ledger.holds(session.request.id)) this.#o.ledger.settle(session.request.id);
  }

  #maybeReport(session: TxSession, receiver: TxReceiver): void {
    let outcome: WriterOutcomeName;
    // The outcome first: a task that was on its way when the request was cancelled may still arrive, and a report that said CANCELLED
    // must not be followed by one that says DONE, or the receiver's outcome would depend on which of them it sees first.
    if (session.outcome === 'failed') outcome = 'FAILED';
    else if (session.outcome === 'cancelled') outcome = 'CANCELLED';
    else if (session.delivered(receiver)) outcome = 'DONE';
    else return;
    const { drained } = receiver;
    const last = this.#reports.newest(receiver.ticket);
    if (last !== undefined && (last.outcome === 'DONE' || last.drained === drained)) return;
    const error = outcome === 'DONE' ? null : session.error;
    const report: WriterReport = {
      type: 'WRITER_REPORT',
      rid: session.rid,
      ticket: receiver.ticket,
      outcome,
      slices: receiver.tasks.length,
      bytes: BigInt(receiver.bytesDone),
      drained,
      errorCode: error?.code ?? '',
      message: clipText(error?.message ?? ''),
    };
    if (this.#o.isLive(receiver.peer)) this.#reports.publish(receiver.peer.endpoint, report);
    else this.#reports.record(report);
  }

  #answerEarly(early: EarlyRequest, outcome: WriterOutcomeName, error: KvTransceiverError): void {
    const { rid, ticket } = early.message;
    this.#reports.answer(early.peer.endpoint, emptyReport(rid, ticket, outcome, error));
  }

  /**
   * One rank of the receiving instance ends the request for all of them. Not with attention DP: there a receiver also cancels at the groups
   * that do not have the request, and its siblings may not have heard yet which one does.
   */
  #cancelEarly(peer: Peer, { rid, ticket }: Cancel, error: KvTransceiverError): void {
    const isOurs = (asker: Peer): boolean =>
      !this.#o.self.attentionDp && instanceFinding(peer.info, asker.info) === null;
    for (const early of this.#early.cancel(rid, peer, ticket, error.message, isOurs))
      this.#answerEarly(early, 'CANCELLED', error);
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
    this.#answerEarly(early, 'REFUSED', error);
  }

  #accepted(peer: Peer, rid: bigint, ticket: bigint): void {
    this.#o.channel.send(peer.endpoint, { type: 'ACCEPTED', rid, ticket });
  }

  #sliceResult(task: SendTask, rid: bigint): void {
    const result = sliceResultOf(task, rid);
    if (result !== null) this.#o.channel.send(task.receiver.peer.endpoint, result);
  }
}

function missingReceivers({ receivers, expectedReceivers }: TxSession): string {
  if (expectedReceivers === null) return 'no receiver';
  return `only ${receivers.size} of ${expectedReceivers.size} receivers`;
}

function linkOf(receiver: TxReceiver): PeerLink {
  const { link, name } = receiver.peer;
  if (link === null) throw new InternalError(`${name} asked for pages but its memory is not loaded`);
  return link;
}
