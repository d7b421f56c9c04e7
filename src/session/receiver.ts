import type { KvCacheManager } from '../cache/kv-cache-manager.js';
import type { Clock } from '../clock.js';
import {
  ArgumentError,
  KvTransceiverError,
  type PeerLostError,
  ProtocolError,
  StateError,
  TransferCancelledError,
  TransferTimeoutError,
  TransportError,
} from '../errors.js';
import { type LlmRequest, requestKey } from '../executor/request.js';
import { expectedBytes, mapRanks, type PeerMapping, type RankInfo } from '../mapping/index.js';
import type { Cancel, SliceResult, WriterReport } from '../wire/messages.js';
import type { AuxBuffer } from './aux-buffer.js';
import type { Settled } from './cache-transceiver.js';
import { clipText } from './clip-text.js';
import type { ControlChannel } from './control-channel.js';
import type { Counters } from './counters.js';
import { destinationRuns } from './destination-runs.js';
import type { InboundSlots } from './inbound-slots.js';
import type { Peer } from './peer-registry.js';
import { Repeater } from './repeater.js';
import { type ClockLimits, RequestClocks } from './request-clocks.js';
import { RxSession, RxWriter } from './rx-session.js';
import type { TransferLedger } from './transfer-ledger.js';

export interface ReceiverOptions {
  readonly cache: KvCacheManager;
  readonly ledger: TransferLedger;
  readonly channel: ControlChannel;
  readonly clock: Clock;
  readonly counters: Counters;
  readonly limits: ClockLimits;
  readonly aux: AuxBuffer;
  readonly self: RankInfo;
  /** Where the agent scatters itself what it receives; null: it does not. */
  readonly inbound: InboundSlots | null;
  /** Never the same twice, not guessable. */
  readonly newTicket: () => bigint;
  readonly peerAt: (endpoint: string) => Peer | null;
  readonly greet: (endpoint: string) => void;
  /** This peer does not know us any more: ends it, which fails the sessions that wait for it. */
  readonly forget: (peer: Peer, why: string) => void;
  readonly onSettled: (settled: Settled) => void;
  readonly onWarning: (message: string) => void;
}

/**
 * Role: the generation side. Asks every writer for `[0, B)` once, and believes only their reports.
 * Ownership: destination pages are held in the ledger from the request on, until every asked writer is drained; bounded, after a
 *   failure, by one more transfer timeout (then released with a warning and the counter `released_unproven`).
 */
export class Receiver {
  readonly #o: ReceiverOptions;
  readonly #repeater: Repeater;
  readonly #byTicket = new Map<bigint, RxSession>();
  readonly #byRequest = new Map<number, RxSession>();
  readonly #mappings = new WeakMap<Peer, PeerMapping>();

  constructor(options: ReceiverOptions) {
    this.#o = options;
    this.#repeater = new Repeater(options.clock);
  }

  /** Sessions whose outcome is open or whose pages are retained. */
  get sessionCount(): number {
    return this.#byTicket.size;
  }

  busyEndpoints(): string[] {
    const endpoints: string[] = [];
    for (const session of this.#byTicket.values())
      for (const writer of session.writers) if (writer.peer !== null) endpoints.push(writer.endpoint);
    return endpoints;
  }

  request(request: LlmRequest): void {
    const endpoint = request.disagg?.ctxInfoEndpoint ?? null;
    if (endpoint === null)
      throw new ArgumentError(`request ${request.id} has no disagg.ctxInfoEndpoint: nobody to receive its cache from`);
    if (this.#byRequest.has(request.id)) throw new ArgumentError(`request ${request.id} is already being received`);
    const runs = destinationRuns(this.#o.cache, request);
    const wantsAux = request.disagg?.scheduleStyle === 'generation_first';
    const auxSlot = wantsAux ? this.#o.aux.allocate() : -1;
    const session = new RxSession({
      rid: requestKey(request),
      ticket: this.#o.newTicket(),
      request,
      writers: [new RxWriter(endpoint)],
      runs,
      auxSlot,
      clocks: new RequestClocks(this.#o.clock, this.#o.limits),
      nowMs: this.#o.clock.now(),
    });
    this.#o.ledger.acquire(request.id);
    this.#byTicket.set(session.ticket, session);
    this.#byRequest.set(request.id, session);
    for (const writer of session.writers) {
      const peer = this.#o.peerAt(writer.endpoint);
      if (peer === null) this.#o.greet(writer.endpoint);
      else this.#ask(session, writer, peer);
    }
  }

  cancel(request: LlmRequest, reason: string): boolean {
    const session = this.#byRequest.get(request.id);
    if (session === undefined) return true;
    const error = new TransferCancelledError(`cancelled: ${reason}`, { requestId: session.rid.toString() });
    this.#end(session, 'cancelled', error);
    return !this.#byRequest.has(request.id);
  }

  onPeerReady(peer: Peer): void {
    for (const session of [...this.#byTicket.values()]) {
      const writer = session.writerAt(peer.endpoint);
      if (writer === undefined) continue;
      if (session.outcome === null) {
        if (!writer.asked) this.#ask(session, writer, peer);
      } else if (!writer.drained && writer.peer?.incarnation === peer.incarnation) {
        // It was only away: a question it had not read when this session ended may still make it write, so it must hear the cancel now.
        writer.peer = peer;
        this.#tellCancel(session, writer, session.error?.message ?? 'the request ended');
      }
    }
  }

  onPeerRefused(endpoint: string, error: KvTransceiverError): void {
    for (const session of [...this.#byTicket.values()]) {
      const writer = session.writerAt(endpoint);
      if (writer !== undefined && !writer.asked) this.#end(session, 'failed', error);
    }
  }

  onPeerLost(peer: Peer, error: PeerLostError): void {
    let mayStillWrite = false;
    for (const session of [...this.#byTicket.values()]) {
      const writer = session.writers.find((candidate) => candidate.peer === peer);
      if (writer === undefined) continue;
      if (writer.outcome !== 'DONE') this.#end(session, 'failed', error);
      this.#stopAsking(session, writer);
      if (!writer.drained) mayStillWrite = true;
    }
    // It may only have been cut off: greeted again, it hears the cancel and can say that it stopped, before pages go without proof.
    if (mayStillWrite) this.#o.greet(peer.endpoint);
  }

  onAccepted(peer: Peer, ticket: bigint): void {
    const live = this.#live(peer, ticket, 'ACCEPTED');
    if (live === null) return;
    const { session, writer } = live;
    this.#repeater.stop(askKey(session, writer));
    writer.accepted = true;
    if (session.outcome === null) session.accepted();
  }

  onSliceResult(peer: Peer, result: SliceResult): void {
    const live = this.#live(peer, result.ticket, 'SLICE_RESULT');
    if (live === null) return;
    const { session, writer } = live;
    this.onAccepted(peer, result.ticket);
    if (session.outcome !== null) return;
    writer.sliceCount = Math.max(writer.sliceCount, result.sliceSeq + 1);
    writer.bytesSeen += Number(result.bytes);
    session.firstProgressAtMs ??= this.#o.clock.now();
    session.clocks.peerArrived();
    session.clocks.expectProgress();
    session.clocks.progress();
    // Between two slices the writer computes; only after its last one is the rest of the time the transfer's.
    session.clocks.setBusy(result.isLast);
  }

  onWriterReport(peer: Peer, report: WriterReport): void {
    // Acknowledged also when nobody remembers the ticket, so that the writer can forget it.
    this.#o.channel.send(peer.endpoint, {
      type: 'REPORT_ACK',
      rid: report.rid,
      ticket: report.ticket,
      drained: report.drained,
    });
    const live = this.#live(peer, report.ticket, 'WRITER_REPORT');
    if (live === null) return;
    const { session, writer } = live;
    this.#repeater.stop(askKey(session, writer));
    // Until it is drained a cancelled writer is asked again: its later word may have gone nowhere.
    if (report.drained) this.#repeater.stop(cancelKey(session, writer));
    if (this.#mustGreetAgain(session, writer, report)) {
      this.#greetAgain(session, writer, peer);
      return;
    }
    writer.report(report);
    session.clocks.progress();
    if (session.outcome === null) this.#judge(session, writer, report);
    this.#releaseIfDrained(session);
  }

  /** The context side cancelled. */
  onCancel(cancel: Cancel): void {
    this.#o.channel.send(cancel.endpoint, { type: 'CANCEL_ACK', rid: cancel.rid, ticket: cancel.ticket });
    const session = this.#byTicket.get(cancel.ticket);
    if (session === undefined || session.writerAt(cancel.endpoint) === undefined) {
      this.#o.counters.add('stale:CANCEL');
      return;
    }
    const text = `cancelled by ${cancel.endpoint}: ${cancel.reason}`;
    this.#end(session, 'cancelled', new TransferCancelledError(text, { requestId: session.rid.toString() }));
  }

  sweep(): void {
    const now = this.#o.clock.now();
    for (const session of [...this.#byTicket.values()]) {
      if (session.outcome === null) {
        this.#expire(session);
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
  }

  endAll(reason: string): void {
    for (const session of [...this.#byTicket.values()])
      this.#end(session, 'cancelled', new TransferCancelledError(reason, { requestId: session.rid.toString() }));
  }

  close(): void {
    this.#repeater.stopAll();
  }

  #ask(session: RxSession, writer: RxWriter, peer: Peer): void {
    writer.peer = peer;
    writer.asked = true;
    writer.bytesExpected = expectedBytes(this.#mappingFrom(peer), session.runs, session.request.promptTokens.length);
    session.asked();
    this.#expectInbound(session, peer);
    const deadlineMs = session.startedAtMs + this.#o.limits.transferQueueTimeoutMs;
    this.#repeater.start(askKey(session, writer), () =>
      this.#o.channel.send(writer.endpoint, {
        type: 'REQUEST_DATA',
        rid: session.rid,
        ticket: session.ticket,
        timeLeftMs: Math.max(1, Math.ceil(deadlineMs - this.#o.clock.now())),
        promptLen: session.request.promptTokens.length,
        cachedTokens: session.request.prepopulatedLen,
        auxSlot: session.auxSlot,
        endpoint: this.#o.channel.endpoint,
        traceparent: session.request.disagg?.traceparent ?? '',
        runs: session.runs,
      }),
    );
  }

  /** Before the writer is asked, so that it finds its slots registered. */
  #expectInbound(session: RxSession, peer: Peer): void {
    if (this.#o.inbound === null || peer.link === null) return;
    this.#o.inbound.expect(peer.link, this.#mappingFrom(peer), session.ticket, session.runs).catch((cause: unknown) => {
      if (!(cause instanceof KvTransceiverError)) throw cause;
      this.#end(session, 'failed', cause);
    });
  }

  /** From here on nothing of the ticket is scattered into pages. */
  #endInbound(session: RxSession): void {
    for (const { peer } of session.writers) {
      if (this.#o.inbound === null || peer === null || peer.link === null) continue;
      this.#o.inbound.end(peer.link, session.ticket).catch((cause: unknown) => {
        // A closed agent scatters nothing either.
        if (!(cause instanceof StateError)) throw cause;
      });
    }
  }

  /** The writer lost us and knows nothing of this ticket: nothing was written for it, so that it can be asked again once greeted. */
  #mustGreetAgain(session: RxSession, writer: RxWriter, report: WriterReport): boolean {
    const unknown = report.outcome === 'REFUSED' && report.errorCode === 'ERR_KVT_PEER_LOST' && report.drained;
    // Another writer that took the ticket would not know the next one.
    const alone = session.writers.every((other) => other === writer || !other.asked);
    return unknown && alone && session.outcome === null && !writer.accepted && writer.outcome === null;
  }

  /** With a new ticket: this refusal may arrive a second time, after the next attempt was accepted. */
  #greetAgain(session: RxSession, writer: RxWriter, peer: Peer): void {
    this.#o.counters.add('greeted_again');
    this.#byTicket.delete(session.ticket);
    this.#endInbound(session);
    session.renew(this.#o.newTicket());
    this.#byTicket.set(session.ticket, session);
    writer.peer = null;
    writer.asked = false;
    // What it wrote for other sessions ended when it lost us, and those reports went nowhere.
    this.#o.forget(peer, 'it does not know this process any more');
    this.#o.greet(writer.endpoint);
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

  #judge(session: RxSession, writer: RxWriter, report: WriterReport): void {
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
      else this.#end(session, 'failed', new TransportError(text, failure));
      return;
    }
    if (writer.reportedBytes !== writer.bytesExpected) {
      const text = `request ${session.rid}: ${writer.endpoint} wrote ${writer.reportedBytes} bytes, the plan has ${writer.bytesExpected}`;
      this.#end(session, 'failed', new ProtocolError(text));
      return;
    }
    if (session.allDone) this.#complete(session);
  }

  #complete(session: RxSession): void {
    let firstTokens = session.request.disagg?.firstGenTokens ?? [];
    if (session.auxSlot >= 0) {
      try {
        const aux = this.#o.aux.unpack(session.auxSlot);
        if (aux.promptLen !== session.request.promptTokens.length)
          throw new ProtocolError(`aux of request ${session.rid} is about ${aux.promptLen} prompt tokens`);
        firstTokens = aux.firstTokens;
      } catch (cause) {
        if (!(cause instanceof KvTransceiverError)) throw cause;
        this.#end(session, 'failed', cause);
        return;
      }
    }
    session.decide('completed', null);
    // A writer that is done is drained; one that does not say so does not hold the pages for ever.
    session.releaseAtMs = this.#o.clock.now() + this.#o.limits.kvTransferTimeoutMs;
    this.#settled(session, firstTokens);
  }

  #expire(session: RxSession): void {
    const expired = session.clocks.expired();
    if (expired === null) return;
    const writers = session.writers.map((writer) => writer.peer?.name ?? writer.endpoint).join(', ');
    const setting = {
      queue: 'transferQueueTimeoutMs',
      progress: 'noProgressTimeoutMs',
      transfer: 'kvTransferTimeoutMs',
    } as const;
    const text = `request ${session.rid} from ${writers}: nothing within ${expired.limitMs} ms (${setting[expired.clock]})`;
    const failure = { requestId: session.rid.toString(), peer: writers };
    this.#end(session, 'failed', new TransferTimeoutError(text, failure));
  }

  #end(session: RxSession, outcome: 'failed' | 'cancelled', error: KvTransceiverError): void {
    if (!session.decide(outcome, error)) return;
    session.releaseAtMs = this.#o.clock.now() + this.#o.limits.kvTransferTimeoutMs;
    this.#settled(session, []);
    for (const writer of session.writers) {
      this.#repeater.stop(askKey(session, writer));
      if (writer.asked && writer.outcome === null) this.#tellCancel(session, writer, error.message);
    }
    this.#releaseIfDrained(session);
  }

  /** Until its drained report comes: that is the answer to a cancel. */
  #tellCancel(session: RxSession, writer: RxWriter, reason: string): void {
    if (this.#o.peerAt(writer.endpoint) !== writer.peer) return;
    this.#repeater.start(cancelKey(session, writer), () =>
      this.#o.channel.send(writer.endpoint, {
        type: 'CANCEL',
        rid: session.rid,
        ticket: session.ticket,
        from: 'generation',
        endpoint: this.#o.channel.endpoint,
        reason: clipText(reason),
      }),
    );
  }

  #stopAsking(session: RxSession, writer: RxWriter): void {
    this.#repeater.stop(askKey(session, writer));
    this.#repeater.stop(cancelKey(session, writer));
  }

  #settled(session: RxSession, firstTokens: readonly number[]): void {
    if (session.outcome === null) return;
    this.#endInbound(session);
    const slices = Math.max(0, ...session.writers.map((writer) => writer.reportedSlices));
    this.#o.onSettled({
      request: session.request,
      side: 'generation',
      outcome: session.outcome,
      error: session.error,
      firstTokens,
      timings: {
        startedAtMs: session.startedAtMs,
        firstPostAtMs: session.firstProgressAtMs,
        lastSliceSubmittedAtMs: null,
        settledAtMs: this.#o.clock.now(),
        slices,
        bytesPlanned: session.bytesExpected,
        bytesDone: session.bytesReported,
        perSlice: [],
      },
    });
  }

  #releaseIfDrained(session: RxSession): void {
    if (session.outcome !== null && session.drained) this.#release(session);
  }

  #release(session: RxSession): void {
    if (session.state === 'released') return;
    session.release();
    for (const writer of session.writers) this.#stopAsking(session, writer);
    this.#byTicket.delete(session.ticket);
    this.#byRequest.delete(session.request.id);
    if (session.auxSlot >= 0) this.#o.aux.free(session.auxSlot);
    this.#o.ledger.settle(session.request.id);
  }

  /** The session a frame is about, if its ticket is live and its sender is one of the writers. */
  #live(peer: Peer, ticket: bigint, what: string): { session: RxSession; writer: RxWriter } | null {
    const session = this.#byTicket.get(ticket);
    const writer = session?.writers.find((candidate) => candidate.peer === peer);
    if (session === undefined || writer === undefined) {
      this.#o.counters.add(`stale:${what}`);
      return null;
    }
    return { session, writer };
  }
}

function askKey(session: RxSession, writer: RxWriter): string {
  return `ask:${session.ticket}:${writer.endpoint}`;
}

function cancelKey(session: RxSession, writer: RxWriter): string {
  return `cancel:${session.ticket}:${writer.endpoint}`;
}
