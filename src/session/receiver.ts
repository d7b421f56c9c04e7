import type { KvCacheManager } from '../cache/kv-cache-manager.js';
import type { Clock } from '../clock.js';
import {
  ArgumentError,
  KvTransceiverError,
  ProtocolError,
  RequestTooLargeError,
  TransferCancelledError,
  TransferTimeoutError,
  TransportError,
} from '../errors.js';
import { type LlmRequest, requestKey } from '../executor/request.js';
import type { RankInfo } from '../mapping/index.js';
import type { FrameOrigin } from '../wire/index.js';
import type { Accepted, Cancel, SliceResult, WriterReport } from '../wire/messages.js';
import { formatTraceparent } from '../wire/trace-context.js';
import type { AuxBuffer } from './aux-buffer.js';
import type { Settled } from './cache-transceiver.js';
import type { CallbackGuard } from './callback-guard.js';
import { answeredBefore } from './context-answer.js';
import type { ControlChannel } from './control-channel.js';
import type { Counters } from './counters.js';
import { destinationRuns } from './destination-runs.js';
import { Farewells } from './farewells.js';
import type { InboundSlots } from './inbound-slots.js';
import type { Peer } from './peer.js';
import { ReceiveBook, type TicketFrame } from './receive-book.js';
import { ReceiverPeers } from './receiver-peers.js';
import { type ClockLimits, RequestClocks } from './request-clocks.js';
import { type RxGroup, RxSession } from './rx-session.js';
import { rxTimings } from './rx-timings.js';
import type { RxWriter } from './rx-writer.js';
import { salvageableTokens } from './salvage.js';
import { collect, type SessionWalks } from './session-walks.js';
import { readTrace } from './trace-reader.js';
import type { TransferLedger } from './transfer-ledger.js';
import type { TransferObservers } from './transfer-observer.js';
import { requireTransferable } from './transferable-request.js';
import { WriterAsking } from './writer-asking.js';
import { isNoRoom } from './writer-reports.js';
import { WriterTalk } from './writer-talk.js';

export interface ReceiverOptions {
  readonly cache: KvCacheManager;
  readonly ledger: TransferLedger;
  readonly channel: ControlChannel;
  readonly clock: Clock;
  readonly counters: Counters;
  readonly observers: TransferObservers;
  readonly limits: ClockLimits;
  readonly aux: AuxBuffer;
  readonly self: RankInfo;
  /** Where the agent scatters itself what it receives; null: it does not. */
  readonly inbound: InboundSlots | null;
  /** Never the same twice, not guessable. */
  readonly newTicket: () => bigint;
  readonly peerAt: (endpoint: string) => Peer | null;
  /** The same, if it is known to be there still. */
  readonly askableAt: (endpoint: string) => Peer | null;
  readonly greet: (endpoint: string) => void;
  /** What the peer at this endpoint said of its instance did not prove true. */
  readonly doubt: (endpoint: string) => void;
  /** This peer does not know us any more: ends it, which fails the sessions that wait for it. */
  readonly forget: (peer: Peer, why: string) => void;
  readonly onSettled: (settled: Settled) => void;
  readonly onWarning: (message: string) => void;
  readonly guard: CallbackGuard;
  readonly walks: SessionWalks;
}

/**
 * Role: the generation side. Learns from any rank of the context instance who writes, asks each writer for `[0, B)` once, and believes
 *   only their reports.
 * Ownership: destination pages are held in the ledger from the request on, until every asked writer is drained; bounded, after a
 *   failure, by one more transfer timeout (then released with a warning and the counter `released_unproven`).
 */
export class Receiver {
  readonly #o: ReceiverOptions;
  readonly #talk: WriterTalk;
  readonly #book: ReceiveBook;
  readonly #asking: WriterAsking;
  readonly #farewells: Farewells;
  /** What becomes of receives when peers come and go. */
  readonly peers: ReceiverPeers;
  /** Requests that were asked for, or given up before: nothing more is said of them. */
  readonly #known = new WeakSet<LlmRequest>();
  /** Sessions that wait for an aux slot, first come, first served: ranks that act alike give slots to the same requests. */
  readonly #auxWaiters = new Set<RxSession>();
  /** Those for which something is due have it in portions, which the next sweep waits for. */
  #sweeping: Promise<void> | null = null;

  constructor(options: ReceiverOptions) {
    this.#o = options;
    this.#talk = new WriterTalk({
      ...options,
      onUnsendable: (session, writer, error) => {
        // It heard nothing, so that there is nothing to take back.
        writer.asked = false;
        this.#writerFailed(session, writer, error);
      },
    });
    this.#book = new ReceiveBook(options.counters);
    this.#farewells = new Farewells(options);
    this.#asking = new WriterAsking({
      ...options,
      book: this.#book,
      talk: this.#talk,
      onFailed: (session, writer, error) => this.#failed(session, writer, error, null),
    });
    this.peers = new ReceiverPeers({
      ...options,
      book: this.#book,
      talk: this.#talk,
      asking: this.#asking,
      farewells: this.#farewells,
      guarded: (session, action) => this.#guarded(session, action),
      awaitsAux: (session) => this.#auxWaiters.has(session),
      tellCancel: (session, writer, reason) => this.#tellCancel(session, writer, reason),
      releaseIfDrained: (session) => this.#releaseIfDrained(session),
      onFailed: (session, writer, error, unreachable) => this.#failed(session, writer, error, unreachable),
    });
  }

  /** Sessions whose outcome is open or whose pages are retained. */
  get sessionCount(): number {
    return this.#book.size;
  }

  get sessions(): Iterable<RxSession> {
    return this.#book.sessions;
  }

  /** Takes the endpoints out whose silence matters now, until none is left. */
  takeBusy(endpoints: Set<string>): void {
    for (const session of this.#book.uncopied) {
      if (endpoints.size === 0) return;
      for (const writer of session.writers) if (writer.peer !== null) endpoints.delete(writer.endpoint);
    }
  }

  request(request: LlmRequest): void {
    const endpoint = request.disagg?.ctxInfoEndpoint ?? null;
    if (endpoint === null)
      throw new ArgumentError(`request ${request.id} has no disagg.ctxInfoEndpoint: nobody to receive its cache from`);
    requireTransferable(request);
    if (this.#book.has(request.id)) throw new ArgumentError(`request ${request.id} is already being received`);
    const rid = requestKey(request);
    const other = this.#book.openOf(rid);
    if (other !== undefined)
      throw new ArgumentError(
        `request ${request.id}: its disaggregated id ${rid} is that of request ${other.request.id}, which is being received; ids are unique among live requests`,
      );
    const wantsAux = request.disagg?.scheduleStyle === 'generation_first';
    if (wantsAux && this.#o.aux.slotCount === 0)
      throw new RequestTooLargeError(
        `request ${request.id} is generation first and needs an aux slot, this server has none: raise auxSlotCount`,
      );
    const session = new RxSession({
      rid,
      request,
      infoEndpoint: endpoint,
      runs: destinationRuns(this.#o.cache, request, this.#o.self),
      wantsAux,
      clocks: new RequestClocks(this.#o.clock, this.#o.limits),
      nowMs: this.#o.clock.now(),
    });
    this.#o.ledger.acquire(request.id, request.promptTokens.length);
    this.#book.add(session);
    this.#known.add(request);
    const { startedAtMs: atMs } = session;
    const trace = readTrace(request.disagg?.traceparent, 'request', this.#o.counters);
    session.traceparent =
      this.#o.observers.current?.onStarted({ request, rid, side: 'generation', atMs, trace }) ??
      (trace === null ? '' : formatTraceparent(trace));
    if (wantsAux) {
      this.#auxWaiters.add(session);
      this.#giveAuxSlots();
    } else this.#asking.start(session);
  }

  cancel(request: LlmRequest, reason: string): boolean {
    const session = this.#book.of(request.id);
    if (session === undefined) {
      // Another request of the same id was refused, and nothing of the one that is here is its to end.
      if (this.#book.openOf(requestKey(request)) !== undefined) return true;
      this.#neverAsked(request, reason);
      return true;
    }
    const error = new TransferCancelledError(`cancelled: ${reason}`, { requestId: session.rid.toString() });
    this.#end(session, 'cancelled', error);
    return !this.#book.has(request.id);
  }

  onAccepted(peer: Peer, accepted: Accepted): void {
    const live = this.#book.live(peer, accepted);
    if (live === null) return;
    const { session, writer } = live;
    this.#heard(writer);
    writer.accepted = true;
    if (session.outcome !== null) return;
    session.accepted();
    // Said again when it was asked how it goes: the request is waited for over there, and that is no silence.
    session.clocks.signOfLife();
    this.#setClocks(session);
  }

  onSliceResult(peer: Peer, result: SliceResult): void {
    const live = this.#book.live(peer, result);
    if (live === null) return;
    const { session, writer } = live;
    if (result.endBlock > Math.ceil(session.request.promptTokens.length / (writer.blockTokens ?? 1))) {
      this.#o.counters.add('protocol_error:slice_beyond_prompt');
      return;
    }
    this.#heard(writer);
    writer.accepted = true;
    if (session.outcome !== null || !this.#assign(session, writer)) return;
    session.accepted();
    session.clocks.expectProgress();
    if (writer.slice(result)) session.clocks.progress();
    else session.clocks.signOfLife();
    session.firstProgressAtMs ??= this.#o.clock.now();
    this.#setClocks(session);
  }

  onWriterReport(peer: Peer, report: WriterReport): void {
    const { rid, ticket, drained } = report;
    // In the next turn, for somebody waits for what the report brings. Also when nobody remembers the ticket, so that the writer can forget it.
    this.#o.guard.after('REPORT_ACK', this.#o.clock.nextTurn(), () => {
      this.#o.channel.send(peer.endpoint, { type: 'REPORT_ACK', rid, ticket, drained });
    });
    this.#takeReport(peer, report);
  }

  /** Ahead of the frame that says the same, which is acknowledged when it comes. */
  onNotedReport(peer: Peer, report: WriterReport): void {
    this.#book.noted(peer, report.ticket);
    this.#takeReport(peer, report);
  }

  /**
   * The writer's agent means to say this when it is true, within some milliseconds: what reading it will run and look at is run once, so that it
   * is in the processor's caches then. Changes nothing.
   */
  onReportSoon(peer: Peer, report: WriterReport): void {
    const live = this.#book.find(peer, report);
    if (live === null || live.session.outcome !== null) return;
    const { session, writer } = live;
    if (session.wants(writer) && session.auxSlot >= 0) this.#o.aux.warm(session.auxSlot);
  }

  #takeReport(peer: Peer, report: WriterReport): void {
    if (this.#farewells.onReport(peer, report.ticket)) return;
    const live = this.#book.live(peer, report);
    if (live === null) return;
    const { session, writer } = live;
    if (isNoRoom(report)) {
      writer.heardAtMs = this.#o.clock.now();
      writer.hadNoRoom = true;
      return;
    }
    this.#heard(writer);
    // Until it is drained a cancelled writer is asked again: its later word may have gone nowhere.
    if (report.drained) this.#talk.stopCancelling(writer);
    if (this.#mustGreetAgain(session, writer, report)) {
      this.#asking.again(session, writer, peer);
      return;
    }
    writer.report(report);
    const wasOpen = session.outcome === null;
    if (wasOpen) this.#judge(session, writer, report);
    // Giving back costs time with each block of the prompt, and somebody waits for what has just arrived.
    if (wasOpen && session.outcome !== null) this.#releaseSoon(this.#o.clock.nextTurn(), session);
    else this.#releaseIfDrained(session);
  }

  /** The context side cancelled. A stranger is answered but changes nothing. */
  onCancel(peer: Peer | null, cancel: Cancel, origin: FrameOrigin): void {
    const ack = { type: 'CANCEL_ACK', rid: cancel.rid, ticket: cancel.ticket } as const;
    if (peer === null) this.#o.channel.reply(origin, ack);
    else this.#o.channel.send(peer.endpoint, ack);
    const live = peer === null ? null : this.#book.live(peer, cancel);
    if (live === null) return;
    const { session } = live;
    const text = `cancelled by ${live.writer.endpoint}: ${cancel.reason}`;
    this.#end(session, 'cancelled', new TransferCancelledError(text, { requestId: session.rid.toString() }));
  }

  sweep(): void {
    this.#giveAuxSlots();
    this.#farewells.sweep();
    if (this.#sweeping !== null) return;
    const now = this.#o.clock.now();
    const isDue = ({ sweepNotBeforeMs, state }: RxSession): boolean => now >= sweepNotBeforeMs && state !== 'released';
    this.#sweeping = this.#o.walks.run<RxSession>({
      what: 'a sweep of what is received',
      begin: () => collect(this.#book.uncopied, isDue),
      each: (session) => this.#guarded(session, (one) => isDue(one) && this.#sweepOne(one, now)),
      end: () => {
        this.#sweeping = null;
      },
    });
  }

  #sweepOne(session: RxSession, now: number): void {
    if (session.outcome === null) {
      this.#expire(session, now);
      if (session.outcome !== null) return;
      session.sweepNotBeforeMs = Math.min(session.clocks.notBeforeMs, this.#talk.askSilent(session, now, this.#asking));
    } else if (session.releaseAtMs !== null && now >= session.releaseAtMs) {
      const writers = session.writers.filter((writer) => !writer.drained).map((writer) => writer.endpoint);
      this.#o.counters.add('released_unproven');
      this.#o.onWarning(
        `request ${session.rid}: pages released without proof that ${writers.join(', ')} stopped writing, ` +
          `${this.#o.limits.kvTransferTimeoutMs} ms after it ${session.outcome}`,
      );
      this.#release(session);
    }
  }

  /** What goes wrong with one receive under a timer ends that one. */
  #guarded(session: RxSession, action: (session: RxSession) => void): void {
    this.#o.guard.runFor(session, action, (failed, error) => this.#end(failed, 'failed', error));
  }

  /** What this writer said could not be dealt with. */
  failed(peer: Peer, frame: TicketFrame, error: KvTransceiverError): void {
    const live = this.#book.find(peer, frame);
    if (live !== null) this.#end(live.session, 'failed', error);
  }

  /** @returns null: all have ended. Else when they have */
  endAll(reason: string): Promise<void> | null {
    const errorOf = ({ rid }: RxSession) => new TransferCancelledError(reason, { requestId: rid.toString() });
    return this.#o.walks.run<RxSession>({
      what: 'the end of all receives',
      begin: () => this.#book.sessions,
      each: (session) => this.#guarded(session, (one) => this.#end(one, 'cancelled', errorOf(one))),
    });
  }

  close(): void {
    this.#talk.close();
    this.#farewells.close();
  }

  /** A request that is over before its pages were asked for: the context side would wait for this rank until its queue clock runs out. */
  #neverAsked(request: LlmRequest, reason: string): void {
    if (this.#known.has(request)) return;
    this.#known.add(request);
    this.#farewells.beginUnasked(request, `cancelled: ${reason}`);
  }

  /** Aux slots are given before anybody is asked, so that an asked writer can be told its own. The queue clock bounds the wait. */
  #giveAuxSlots(): void {
    if (this.#auxWaiters.size === 0) return;
    for (const session of this.#auxWaiters) {
      if (this.#o.aux.freeCount === 0) return;
      this.#auxWaiters.delete(session);
      session.auxSlot = this.#o.aux.allocate();
      this.#guarded(session, (one) => this.#asking.start(one));
    }
  }

  #heard(writer: RxWriter): void {
    this.#talk.stopAsking(writer);
    writer.heardAtMs = this.#o.clock.now();
  }

  /** Waiting ends when no writer is waited for; between two slices the writers compute, only after a last one the time is the transfer's. */
  #setClocks(session: RxSession): void {
    if (session.allArrived && session.clocks.peerArrived()) {
      const waitedMs = this.#o.clock.now() - session.startedAtMs;
      this.#o.observers.current?.onPeersArrived(session.request, 'generation', waitedMs);
    }
    session.clocks.setBusy(session.reportDue);
  }

  /**
   * This writer writes, so that its group has the request and the others hear that they can forget it.
   * @returns false when its word changes nothing: another group has the request, or the request has just ended
   */
  #assign(session: RxSession, writer: RxWriter): boolean {
    const { assigned } = session;
    const group = session.groupOf(writer);
    if (assigned !== null) return assigned === group;
    if (group.standing === 'out') {
      const text = `request ${session.rid}: DP group ${group.dpRank} writes, but not all of its ranks can`;
      this.#end(session, 'failed', new TransportError(text, { requestId: session.rid.toString() }));
      return false;
    }
    group.standing = 'assigned';
    for (const other of session.groups) if (other !== group) this.#dismiss(session, other);
    return true;
  }

  /** Its ranks need not keep the question any longer. Pages are held until each of them said that it wrote nothing. */
  #dismiss(session: RxSession, group: RxGroup): void {
    group.standing = 'out';
    for (const writer of group.writers) {
      this.#talk.stopAsking(writer);
      if (writer.asked && writer.outcome === null)
        this.#tellCancel(session, writer, `DP group ${group.dpRank} is not the one that has the request`);
    }
  }

  /** @param writer null: none can do its part */
  #failed(session: RxSession, writer: RxWriter | null, error: KvTransceiverError, unreachable: string | null): void {
    if (writer === null) this.#end(session, 'failed', error, unreachable);
    else this.#writerFailed(session, writer, error, unreachable);
  }

  /** A writer cannot do its part. While several groups may have the request that only rules out its group. */
  #writerFailed(
    session: RxSession,
    writer: RxWriter,
    error: KvTransceiverError,
    unreachable: string | null = null,
  ): void {
    const { assigned } = session;
    const group = session.groupOf(writer);
    if (assigned === group) this.#end(session, 'failed', error, unreachable);
    if (assigned !== null || session.outcome !== null) return;
    this.#dismiss(session, group);
    if (session.groups.every(({ standing }) => standing === 'out')) this.#end(session, 'failed', error, unreachable);
  }

  /** The writer lost us and knows nothing of this ticket: nothing was written for it, so that it can be asked again once greeted. */
  #mustGreetAgain(session: RxSession, writer: RxWriter, report: WriterReport): boolean {
    const unknown = report.outcome === 'REFUSED' && report.errorCode === 'ERR_KVT_PEER_LOST' && report.drained;
    return unknown && session.outcome === null && !writer.started && writer.mayTryAgain;
  }

  #judge(session: RxSession, writer: RxWriter, report: WriterReport): void {
    if (!session.wants(writer) && report.outcome !== 'DONE' && report.outcome !== 'FAILED') return;
    if (report.outcome === 'DONE' || report.outcome === 'FAILED') {
      if (!this.#assign(session, writer)) return;
      const now = this.#o.clock.now();
      session.clocks.progress(now);
      session.reportedAtMs = now;
      session.firstProgressAtMs ??= now;
    }
    if (report.outcome !== 'DONE') {
      const from = writer.peer?.name ?? writer.endpoint;
      const failure = {
        requestId: session.rid.toString(),
        peer: from,
        bytesDone: writer.reportedBytes,
        drained: report.drained,
        details: { remoteCode: report.errorCode },
      };
      const text = `${from} reported ${report.outcome} for request ${session.rid}: ${report.message}`;
      if (report.outcome === 'CANCELLED') this.#end(session, 'cancelled', new TransferCancelledError(text, failure));
      else if (report.errorCode === 'ERR_KVT_NOT_ASSIGNED')
        this.#writerFailed(session, writer, new TransportError(text, failure));
      else this.#end(session, 'failed', new TransportError(text, failure));
      return;
    }
    if (writer.reportedBytes !== writer.bytesExpected) {
      const text = `request ${session.rid}: ${writer.endpoint} wrote ${writer.reportedBytes} bytes, the plan has ${writer.bytesExpected}`;
      this.#end(session, 'failed', new ProtocolError(text));
      return;
    }
    this.#setClocks(session);
    if (session.allDone) this.#complete(session);
  }

  #complete(session: RxSession): void {
    let answer = answeredBefore(session.request);
    if (session.auxSlot >= 0) {
      try {
        answer = this.#o.aux.unpack(session.auxSlot);
        if (answer.promptLen !== session.request.promptTokens.length)
          throw new ProtocolError(`aux of request ${session.rid} is about ${answer.promptLen} prompt tokens`);
        if (answer.cachedTokens > answer.promptLen)
          throw new ProtocolError(`aux of request ${session.rid} says that ${answer.cachedTokens} of them were cached`);
      } catch (cause) {
        if (!(cause instanceof KvTransceiverError)) throw cause;
        this.#end(session, 'failed', cause);
        return;
      }
    }
    session.decide('completed', null);
    // A writer that is done is drained; one that does not say so does not hold the pages for ever.
    session.releaseAtMs = this.#o.clock.now() + this.#o.limits.kvTransferTimeoutMs;
    session.request.contextAnswer = answer;
    this.#settled(session, answer.firstTokens);
  }

  #expire(session: RxSession, now: number): void {
    const expired = session.clocks.expired(now);
    if (expired === null) return;
    const silent = session.writers.filter((writer) => writer.outcome === null);
    const writers = silent.map((writer) => writer.peer?.name ?? writer.endpoint).join(', ') || session.infoEndpoint;
    const setting = {
      queue: 'transferQueueTimeoutMs',
      progress: 'noProgressTimeoutMs',
      transfer: 'kvTransferTimeoutMs',
    } as const;
    const hadNoRoom = silent.some((writer) => writer.hadNoRoom && !writer.accepted);
    const what = this.#auxWaiters.has(session)
      ? 'no aux slot became free'
      : hadNoRoom
        ? 'no room for its question, and no request,'
        : 'nothing';
    const text = `request ${session.rid} from ${writers}: ${what} within ${expired.limitMs} ms (${setting[expired.clock]})`;
    const failure = { requestId: session.rid.toString(), peer: writers, details: { clock: expired.clock } };
    this.#end(session, 'failed', new TransferTimeoutError(text, failure));
  }

  /** @param unreachable an endpoint that is the reason, so that nothing more is said there */
  #end(
    session: RxSession,
    outcome: 'failed' | 'cancelled',
    error: KvTransceiverError,
    unreachable: string | null = null,
  ): void {
    if (!session.decide(outcome, error)) return;
    this.#auxWaiters.delete(session);
    session.releaseAtMs = this.#o.clock.now() + this.#o.limits.kvTransferTimeoutMs;
    this.#settled(session, []);
    for (const writer of session.writers) {
      this.#talk.stopAsking(writer);
      if (writer.asked && writer.outcome === null) this.#tellCancel(session, writer, error.message);
    }
    this.#farewells.begin(session, error.message, unreachable);
    this.#releaseIfDrained(session);
  }

  #tellCancel(session: RxSession, writer: RxWriter, reason: string): void {
    if (this.#asking.isReachable(writer)) this.#talk.cancel(session, writer, reason);
  }

  #settled(session: RxSession, firstTokens: readonly number[]): void {
    if (session.outcome === null) return;
    for (const { ticket } of session.writers)
      if (this.#o.inbound !== null) this.#releaseSoon(this.#o.inbound.end(ticket), session);
    this.#o.onSettled({
      request: session.request,
      side: 'generation',
      outcome: session.outcome,
      error: session.error,
      firstTokens,
      salvageableTokens: salvageableTokens(session, this.#o.cache.layerGroups, (writer, endBlock) =>
        this.#asking.plannedBytes(session, writer, endBlock),
      ),
      timings: rxTimings(session, this.#o.clock.now()),
    });
  }

  #releaseSoon(when: Promise<unknown>, session: RxSession): void {
    this.#o.guard.after(`the pages of request ${session.rid}`, when, () => this.#releaseIfDrained(session));
  }

  #releaseIfDrained(session: RxSession): void {
    if (session.outcome === null || !session.drained) return;
    // What its writers sent in time may still be on its way from the arena to the pages.
    if (session.writers.some(({ ticket }) => this.#o.inbound?.isOpen(ticket))) return;
    this.#release(session);
  }

  #release(session: RxSession): void {
    if (session.state === 'released') return;
    session.release();
    for (const writer of session.writers) this.#talk.stop(writer);
    this.#book.remove(session);
    if (session.auxSlot >= 0) this.#o.aux.free(session.auxSlot);
    this.#o.ledger.settle(session.request.id);
    this.#giveAuxSlots();
  }
}
