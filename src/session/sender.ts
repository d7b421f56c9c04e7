import type { NoteOutcome, ReadyEvent, SubmissionNotice, TransferAgent } from '../agent/transfer-agent.js';
import type { KvCacheManager } from '../cache/kv-cache-manager.js';
import type { Clock } from '../clock.js';
import {
  ArgumentError,
  DeviceLostError,
  InternalError,
  KvTransceiverError,
  type PeerLostError,
  SessionRetiredError,
  TransferCancelledError,
  TransportError,
} from '../errors.js';
import { type LlmRequest, requestKey } from '../executor/request.js';
import { earlyPrefixSlice } from '../geometry/early-prefix-slice.js';
import { planAux, planSlice, type RankPlaceInDp, type TransferPlan } from '../mapping/index.js';
import { PartedMap } from '../parted-map.js';
import type { Message, ReportAck, RequestData, WriterOutcomeName } from '../wire/messages.js';
import { ArmedReports, doneReport } from './armed-reports.js';
import type { AuxBuffer } from './aux-buffer.js';
import { BoundedMap } from './bounded-map.js';
import type { SendReceipt, Settled } from './cache-transceiver.js';
import type { CallbackGuard } from './callback-guard.js';
import { clipText } from './clip-text.js';
import type { ControlChannel } from './control-channel.js';
import type { Counters } from './counters.js';
import { EarlyRequests } from './early-requests.js';
import type { Peer } from './peer.js';
import { planningFailure } from './planning-failure.js';
import { ReceiverQuestions } from './receiver-questions.js';
import { type ClockLimits, RequestClocks } from './request-clocks.js';
import { SendTask } from './send-task.js';
import { sendTimeout } from './send-timeout.js';
import type { SendWatch } from './send-watch.js';
import { collect, type SessionWalks } from './session-walks.js';
import { requestSlice, type SliceBounds, sourceRuns } from './slice-source.js';
import type { TransferLedger } from './transfer-ledger.js';
import { requireTransferable } from './transferable-request.js';
import { type TxEnding, TxReceiver, TxSession, type TxSlice } from './tx-session.js';
import { txTimings } from './tx-timings.js';
import { WriterReports } from './writer-reports.js';

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
  /** The peer at this endpoint. */
  readonly peerAt: (endpoint: string) => Peer | null;
  readonly greet: (endpoint: string) => void;
  readonly guard: CallbackGuard;
  readonly walks: SessionWalks;
  readonly onSettled: (settled: Settled) => void;
  /** Something `receiverReady` answers has changed. */
  readonly onReceivers: () => void;
}

/**
 * Role: the context side. Turns chunks into slices, slices into submissions, completions into reports.
 * Ordering: a receiver's report goes out after all its slices and its aux are complete at the transport, never before (I4). Aux leaves as
 *   soon as its token is known, beside the last slice: nothing but the report is left to say when that slice has arrived.
 * Ownership: a request's pages are held in the ledger from its first slice until nothing that it submitted, or will, reads them.
 */
export class Sender {
  readonly #o: SenderOptions;
  /** What receivers ask and are answered. */
  readonly questions: ReceiverQuestions;
  readonly #reports: WriterReports;
  readonly #notes: ArmedReports;
  readonly #early: EarlyRequests;
  readonly #sessions = new Map<bigint, TxSession>();
  /** Requests that had a session here, or were cancelled before: none of them gets another. */
  readonly #seen = new WeakSet<LlmRequest>();
  /** Rid -> why it ended; null = completed. */
  readonly #retired = new BoundedMap<bigint, KvTransceiverError | null>(REMEMBERED_ENDS);
  /** Ticket -> whose it is, of the receivers of live sessions. */
  readonly #owners = new PartedMap<bigint, { readonly rid: bigint; readonly peer: Peer }>();
  readonly #tasks = new Map<number, { task: SendTask; session: TxSession }>();
  /** By the submission that brought it, which may be over before its note is. */
  readonly #armed = new Map<number, { readonly session: TxSession; readonly receiver: TxReceiver }>();
  /** All that `flushAux` needs to look at: it runs at every turn of an executor, and thousands of sessions may be live. */
  readonly #auxPending = new Set<TxSession>();
  /** Those whose clocks ran out end in portions, which the next sweep waits for. */
  #sweeping: Promise<void> | null = null;
  readonly #sweepQuestions = (): void => this.questions.sweep();
  #nextTaskId = 1;
  #nextFlow = 1;

  constructor(options: SenderOptions) {
    this.#o = options;
    const { channel, clock, counters, limits } = options;
    this.#reports = new WriterReports({ channel, clock, counters, repeatForMs: limits.kvTransferTimeoutMs });
    this.#notes = new ArmedReports(options);
    this.#early = new EarlyRequests(clock, limits.transferQueueTimeoutMs);
    this.questions = new ReceiverQuestions({
      ...options,
      reports: this.#reports,
      early: this.#early,
      sessionOf: (rid) => this.#sessions.get(rid),
      endOf: (rid) => this.#retired.get(rid),
      ownerOf: (ticket) => this.#owners.get(ticket),
      register: (session, peer, message) => this.#register(session, peer, message),
      cancel: (session, error) => this.#end(session, 'cancelled', error),
    });
  }

  get sessionCount(): number {
    return this.#sessions.size;
  }

  get inspected(): { readonly sessions: readonly TxSession[]; readonly early: number; readonly openReports: number } {
    return { sessions: this.#all, early: this.#early.count, openReports: this.#reports.openCount };
  }

  /** Somebody has not acknowledged how his request ended. */
  hasOpenReports(isLive: (endpoint: string) => boolean): boolean {
    return this.#reports.hasOpen(isLive);
  }

  /** Takes the endpoints out whose silence matters now, until none is left. */
  takeBusy(endpoints: Set<string>): void {
    for (const session of this.#sessions.values()) {
      if (endpoints.size === 0) return;
      for (const receiver of session.receivers.values()) endpoints.delete(receiver.peer.endpoint);
    }
  }

  /**
   * False until every expected receiver asked, and once the request has ended. One that can never be sent settles as failed instead, or has no
   * session at all: nothing would end a wait for that.
   * @throws SessionRetiredError when another request of this id has ended
   */
  receiverReady(request: LlmRequest): boolean {
    const rid = requestKey(request);
    const session = this.#liveOf(rid, request);
    if (session?.request === request) return session.outcome === null && session.receiverReady;
    if (this.#seen.has(request)) return false;
    if (session !== undefined || this.#retired.has(rid)) throw this.#retiredError(rid, request);
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
    const { beginBlock, endBlock } = prefix;
    const receipt = this.#addSlice(session, { beginBlock, endBlock, isLast: false }, after);
    session.prefixSent = true;
    return receipt;
  }

  cancel(request: LlmRequest, reason: string): boolean {
    const rid = requestKey(request);
    const session = this.#sessions.get(rid);
    // Another request of the same id was refused, and nothing of the one that is here is its to end.
    if (session !== undefined && session.request !== request) return true;
    if (session === undefined) {
      this.#seen.add(request);
      if (!this.#retired.has(rid)) {
        const error = new TransferCancelledError(`cancelled: ${reason}`, { requestId: rid.toString(), drained: true });
        this.#retired.set(rid, error);
        for (const early of this.#early.take(rid)) this.questions.answerEarly(early, 'CANCELLED', error);
      }
      return true;
    }
    this.#end(session, 'cancelled', new TransferCancelledError(`cancelled: ${reason}`, { requestId: rid.toString() }));
    return !this.#sessions.has(rid);
  }

  onReportAck(peer: Peer, { ticket, drained }: ReportAck): void {
    this.#reports.acknowledged(peer.endpoint, ticket, drained);
  }

  onPeerReady(peer: Peer): void {
    for (const session of this.#all) this.#guarded(session, (one) => this.questions.onPeerReady(peer, one));
  }

  onPeerLost(peer: Peer, error: PeerLostError): void {
    this.#early.dropPeer(peer);
    for (const session of this.#all)
      this.#guarded(session, (one) => {
        for (const receiver of one.receivers.values()) {
          if (receiver.peer !== peer) continue;
          if (!one.delivered(receiver)) this.#end(one, 'failed', error);
        }
      });
  }

  /** What this receiver said could not be dealt with. */
  failed(peer: Peer, message: Extract<Message, { readonly ticket: bigint }>, error: KvTransceiverError): void {
    const owner = this.#owners.get(message.ticket);
    const session = owner?.peer === peer ? this.#sessions.get(owner.rid) : undefined;
    if (session !== undefined) this.#end(session, 'failed', error);
    else if (owner === undefined && message.type === 'REQUEST_DATA') this.questions.refuse(peer, message, error);
  }

  onCompletions(batch: readonly SubmissionNotice[]): void {
    for (const notice of batch) {
      const entry = (notice.kind === 'note' ? this.#armed : this.#tasks).get(notice.submission);
      if (entry === undefined) this.#o.counters.add('unknown_completion');
      else this.#guarded(entry.session, () => this.#onNotice(notice));
    }
  }

  #onNotice(notice: SubmissionNotice): void {
    if (notice.kind === 'note') {
      this.#onNote(notice);
      return;
    }
    const entry = this.#tasks.get(notice.submission);
    if (entry === undefined) return;
    const { task, session } = entry;
    if (notice.kind === 'released') task.sourceReleased();
    else if (notice.kind === 'drained') task.becameDrained();
    else task.settled(notice);
    if (task.drained) this.#tasks.delete(notice.submission);
    session.clocks.progress();
    if (notice.kind === 'completion') {
      task.heardAtMs = this.#o.clock.now();
      this.#onTaskEnded(session, task);
    }
    this.#advance(session);
  }

  /** What goes wrong with one request under a timer or a completion ends that one, and the others of the batch are still heard. */
  #guarded(session: TxSession, action: (session: TxSession) => void): void {
    this.#o.guard.runFor(session, action, (failed, error) => this.#end(failed, 'failed', error));
  }

  #onNote({ submission, isSent }: NoteOutcome): void {
    const armed = this.#armed.get(submission);
    if (armed === undefined) return;
    const { session, receiver } = armed;
    this.#armed.delete(submission);
    receiver.noted(isSent ? 'send' : 'drop');
    if (isSent) this.#o.counters.add('notes_sent');
    else this.#o.counters.add('notes_unsent');
    // A request that failed or was cancelled meanwhile has waited for this to say so.
    this.#advance(session);
  }

  /** Aux waits for the first token, which the executor learns after it handed over the last slice. Costs a comparison when none waits. */
  flushAux(): void {
    if (this.#auxPending.size === 0) return;
    const pending = [...this.#auxPending];
    this.#auxPending.clear();
    for (const session of pending)
      this.#guarded(session, (one) => {
        for (const receiver of one.receivers.values()) if (one.outcome === null) this.#sendAux(one, receiver);
      });
  }

  sweep(): void {
    // What goes wrong with it must not stop the clocks of requests.
    this.#o.guard.run('a sweep of questions', this.#sweepQuestions);
    if (this.#sessions.size === 0) return;
    // Read once: with thousands of sessions, reading the time is most of a sweep.
    const now = this.#o.clock.now();
    // What the executor computed since the last event counts from now on. Without a submission under way nothing can have become busy.
    for (const { session } of this.#tasks.values())
      if (session.outcome === null) session.clocks.setBusy(session.transferBusy, now);
    if (this.#sweeping === null) {
      const expiredOf = ({ outcome, clocks }: TxSession) => (outcome === null ? clocks.expired(now) : null);
      this.#sweeping = this.#o.walks.run<TxSession>({
        what: 'a sweep of what is sent',
        begin: () => collect(this.#sessions.values(), (session) => expiredOf(session) !== null),
        each: (session) =>
          this.#guarded(session, (one) => {
            const expired = expiredOf(one);
            if (expired !== null) this.#end(one, 'failed', sendTimeout(one, expired));
          }),
        end: () => {
          this.#sweeping = null;
        },
      });
    }
    this.flushAux();
  }

  /** @returns null: all have ended. Else when they have */
  endAll(reason: string): Promise<void> | null {
    const errorOf = ({ rid }: TxSession) => new TransferCancelledError(reason, { requestId: rid.toString() });
    return this.#o.walks.run<TxSession>({
      what: 'the end of all sends',
      begin: () => this.#all,
      each: (session) => this.#guarded(session, (one) => this.#end(one, 'cancelled', errorOf(one))),
    });
  }

  close(): void {
    this.#reports.close();
  }

  /** A copy: what is done with a session may end others. */
  get #all(): readonly TxSession[] {
    return [...this.#sessions.values()];
  }

  #session(request: LlmRequest): TxSession {
    const rid = requestKey(request);
    const hasEnded = this.#retired.has(rid) || this.#seen.has(request);
    const session = this.#liveOf(rid, request) ?? (hasEnded ? undefined : this.#create(rid, request));
    if (session !== undefined && session.outcome === null) return session;
    throw this.#retiredError(rid, request);
  }

  #retiredError(rid: bigint, request: LlmRequest): SessionRetiredError {
    const why = this.#sessions.get(rid)?.error ?? this.#retired.get(rid) ?? null;
    const ended = this.#seen.has(request)
      ? 'its transfer already ended'
      : `a request of this id already ended here: an id is for one request, submit it again under a new one`;
    return new SessionRetiredError(`request ${rid}: ${ended}${why === null ? '' : ` (${why.message})`}`, {
      requestId: rid.toString(),
      cause: why ?? undefined,
    });
  }

  /** @throws ArgumentError when the id is another request's: its slices would be taken for this one's */
  #liveOf(rid: bigint, request: LlmRequest): TxSession | undefined {
    const session = this.#sessions.get(rid);
    if (session?.outcome === null && session.request !== request)
      throw new ArgumentError(
        `request ${request.id}: its disaggregated id ${rid} is that of request ${session.request.id}, which is being sent; ids are unique among live requests`,
      );
    return session;
  }

  /** @throws ArgumentError, RequestTooLargeError for what cannot travel */
  #create(rid: bigint, request: LlmRequest): TxSession {
    requireTransferable(request);
    this.#seen.add(request);
    const clocks = new RequestClocks(this.#o.clock, this.#o.limits);
    const session = new TxSession(rid, request, clocks, this.#o.clock.now());
    this.#sessions.set(rid, session);
    this.#o.watch.started(session);
    const cancelled = this.questions.onCreated(session);
    if (cancelled !== null) this.#end(session, 'cancelled', cancelled);
    return session;
  }

  #register(session: TxSession, peer: Peer, message: RequestData): void {
    const flows = { pages: this.#nextFlow++, aux: this.#nextFlow++ };
    const receiver = new TxReceiver(peer, message.ticket, message.runs, message.auxSlot, flows);
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
    session.pages = 'held';
    if (bounds.isLast) this.#o.ledger.complete(request.id);
    const { beginBlock, endBlock, isLast } = bounds;
    const [seq, submittedAtMs] = [session.slices.length, this.#o.clock.now()];
    const slice: TxSlice = { seq, beginBlock, endBlock, isLast, runs, after, submittedAtMs };
    session.addSlice(slice);
    for (const receiver of session.receivers.values()) this.#dispatch(session, receiver, slice);
    this.#advance(session);
    return { beginBlock, endBlock, isLast };
  }

  #dispatch(session: TxSession, receiver: TxReceiver, slice: TxSlice): void {
    if (session.outcome !== null) return;
    const link = receiver.link;
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
      this.questions.sliceResult(task, session.rid);
      return;
    }
    this.#submit(session, task, plan, slice.after);
  }

  #submit(session: TxSession, task: SendTask, plan: TransferPlan, after: ReadyEvent | null): void {
    const { receiver } = task;
    const link = receiver.link;
    try {
      const groups = link.submissionGroups(plan);
      // Aux goes into a slot that no receive registers; an agent that does not bounce is spared the rest.
      const ticket = this.#o.agent.bounces === true && task.slice !== null ? { ticket: receiver.ticket } : {};
      const flow = task.slice === null ? receiver.auxFlow : receiver.flow;
      const note = this.#notes.of(session, task);
      this.#o.agent.submit({ id: task.id, peer: link.handle, flow, groups, after, ...ticket, ...note });
      if (note !== null) {
        receiver.noted('arm');
        this.#armed.set(task.id, { session, receiver });
      }
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
      // The report, which follows at once, says the same; a frame before it would only make it later.
      if (session.outcome !== null || !session.delivered(receiver)) this.questions.sliceResult(task, session.rid);
      return;
    }
    if (session.outcome !== null) return;
    const what = task.slice === null ? 'aux' : `slice ${task.slice.seq}`;
    const cause = task.error ?? undefined;
    const text = `request ${session.rid}, ${what} to ${receiver.peer.name}: ${cause?.message ?? 'the agent dropped it'}`;
    const Failure = cause instanceof DeviceLostError ? DeviceLostError : TransportError;
    this.#end(
      session,
      'failed',
      new Failure(text, {
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
    const { ending } = session;
    if (session.outcome === null && ending !== null && !session.isBeingTold) {
      this.#end(session, ending.outcome, ending.error);
      return;
    }
    session.clocks.setBusy(session.transferBusy);
    if (session.sourceUnneeded) this.#releasePages(session);
    // A submission that failed above ended, and may have closed, the session already.
    if (session.outcome !== null && session.drained && this.#sessions.has(session.rid)) this.#close(session);
  }

  #sendAux(session: TxSession, receiver: TxReceiver): void {
    if (receiver.remoteAuxSlot < 0 || receiver.auxTask !== null || !session.lastSliceSubmitted) return;
    // Only the token, or a slot, can be missing now, and neither announces itself. What leaves below is found gone at the next flush.
    this.#auxPending.add(session);
    const { request } = session;
    const firstToken = request.outputTokens[0];
    if (firstToken === undefined) return;
    if (session.auxSlot === null) {
      // Every slot is in use: the next completion frees one and the sweep tries again; the transfer clock bounds it.
      if (this.#o.aux.freeCount === 0) return;
      const slot = this.#o.aux.allocate();
      try {
        this.#o.aux.pack(slot, {
          firstTokens: [firstToken],
          firstLogProbs: request.outputLogProbs?.slice(0, 1) ?? [],
          draftTokens: request.disagg?.draftTokens ?? [],
          promptLen: request.promptTokens.length,
          cachedTokens: request.prepopulatedLen,
        });
        session.auxSlot = slot;
      } catch (cause) {
        // Nothing was sent out of it, nor will be: what it holds is not this request's.
        this.#o.aux.free(slot);
        this.#end(session, 'failed', this.#o.guard.caught(`aux of request ${session.rid}`, cause));
        return;
      }
    }
    const plan = planAux(receiver.link.mapping, session.auxSlot, receiver.remoteAuxSlot);
    receiver.auxTask = new SendTask(this.#nextTaskId++, receiver, null, plan.stats.bytes);
    this.#submit(session, receiver.auxTask, plan, null);
  }

  #end(session: TxSession, outcome: TxEnding['outcome'], error: KvTransceiverError): void {
    if (session.outcome === null && session.isBeingTold) session.endOnceTold(outcome, error);
    else if (session.decide(outcome, error)) this.#settled(session);
    else return;
    for (const task of session.tasks) if (!task.ended) this.#o.agent.cancel(task.id);
    this.#advance(session);
  }

  #settled(session: TxSession): void {
    this.#retired.set(session.rid, session.error);
    if (session.outcome === null) throw new InternalError(`request ${session.rid} settled without an outcome`);
    this.questions.onEnded(session);
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

  /** Outcome decided and nothing can touch memory: the session is gone. */
  #close(session: TxSession): void {
    session.close();
    this.#sessions.delete(session.rid);
    for (const ticket of session.receivers.keys()) this.#owners.delete(ticket);
    this.#auxPending.delete(session);
    if (session.auxSlot !== null) this.#o.aux.free(session.auxSlot);
    this.#releasePages(session);
  }

  #releasePages(session: TxSession): void {
    if (session.pages !== 'held') return;
    session.pages = 'released';
    this.#o.ledger.settle(session.request.id);
  }

  #maybeReport(session: TxSession, receiver: TxReceiver): void {
    let outcome: WriterOutcomeName;
    // Its agent may be saying DONE right now, or has: nothing else may be said beside it. It answers at once after a cancel.
    if (receiver.note === 'armed') return;
    const isToldDone = receiver.note === 'sent';
    if (isToldDone && !session.delivered(receiver)) return;
    // The outcome first: a task that was on its way when the request was cancelled may still arrive, and a report that said CANCELLED
    // must not be followed by one that says DONE, or the receiver's outcome would depend on which of them it sees first.
    if (isToldDone) outcome = 'DONE';
    else if (session.outcome === 'failed') outcome = 'FAILED';
    else if (session.outcome === 'cancelled') outcome = 'CANCELLED';
    else if (session.delivered(receiver)) outcome = 'DONE';
    else return;
    const { drained } = receiver;
    const last = this.#reports.newest(receiver.ticket);
    if (last !== undefined && (last.outcome === 'DONE' || last.drained === drained)) return;
    const error = outcome === 'DONE' ? null : session.error;
    const report =
      outcome === 'DONE'
        ? doneReport(session.rid, receiver, receiver.bytesDone)
        : {
            ...doneReport(session.rid, receiver, receiver.bytesDone),
            outcome,
            drained,
            errorCode: error?.code ?? '',
            message: clipText(error?.message ?? ''),
          };
    if (this.#o.isLive(receiver.peer)) this.#reports.publish(receiver.peer.endpoint, report);
    else this.#reports.record(receiver.peer.endpoint, report);
    receiver.reportedAtMs ??= this.#o.clock.now();
  }
}
