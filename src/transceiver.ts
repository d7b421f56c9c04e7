import type { ReadyEvent, TransferAgent } from './agent/transfer-agent.js';
import type { KvCacheManager } from './cache/kv-cache-manager.js';
import type { Clock, Timer } from './clock.js';
import { checkDeadline } from './deadline.js';
import { ArgumentError, type PeerLostError, StateError, TransportError } from './errors.js';
import type { LlmRequest } from './executor/request.js';
import type { RankInfo } from './mapping/rank-info.js';
import type { AuxBuffer } from './session/aux-buffer.js';
import type { CacheTransceiver, SendReceipt, Settled } from './session/cache-transceiver.js';
import { CallbackGuard } from './session/callback-guard.js';
import { ControlChannel } from './session/control-channel.js';
import { Counters } from './session/counters.js';
import { GuardedClock } from './session/guarded-clock.js';
import { InboundNotes } from './session/inbound-notes.js';
import { InboundSlots } from './session/inbound-slots.js';
import { LogShare } from './session/log-share.js';
import { PeerComplaints } from './session/peer-complaints.js';
import { type Peer, PeerRegistry } from './session/peer-registry.js';
import { Receiver } from './session/receiver.js';
import type { ClockLimits } from './session/request-clocks.js';
import { SendWatch } from './session/send-watch.js';
import { Sender } from './session/sender.js';
import { SessionWalks } from './session/session-walks.js';
import { type TransceiverDump, transceiverDump } from './session/transceiver-dump.js';
import { type Inspected, type TransceiverStats, transceiverStats } from './session/transceiver-stats.js';
import { TransferLedger } from './session/transfer-ledger.js';
import { type FallbackNotice, type TransferObserver, TransferObservers } from './session/transfer-observer.js';
import { WriterFences } from './session/writer-fences.js';
import { type Frame, type FrameOrigin, parseEndpoint } from './wire/index.js';
import type { Cancel } from './wire/messages.js';
import type { Messenger } from './wire/messenger.js';

/** How often clocks, liveness and repeats without a timer of their own are looked at. */
const SWEEP_INTERVAL_MS = 100;
/** Fallbacks that are remembered; each is told once, and there are few kinds. */
const MAX_FALLBACKS = 64;
/** The counter of handlers that threw; not told to observers, who would only throw again. */
const OBSERVER_FAILURES = 'observer_failures';
/** How long `close` lets the last control frames leave. */
const GOODBYE_LINGER_MS = 200;

/** Where the transceiver writes what an operator should see. */
export interface TransceiverLog {
  warn(message: string): void;
  info(message: string): void;
}

/** What a transceiver is put together from; `openTransceiver` does it for one rank. */
export interface TransceiverParts {
  readonly agent: TransferAgent;
  readonly messenger: Messenger;
  readonly cache: KvCacheManager;
  readonly aux: AuxBuffer;
  readonly clock: Clock;
  readonly limits: ClockLimits;
  /**
   * What this rank publishes; covers every pool of `agent`. `rankEndpoints` is empty for a rank of several: `joinInstance` brings them.
   */
  readonly rankInfo: RankInfo;
  /** Never the same twice, not guessable. */
  readonly newTicket: () => bigint;
  readonly log: TransceiverLog;
  /** What fell back to something else before the transceiver was there. Default: nothing. */
  readonly fallbacks?: readonly FallbackNotice[];
}

export type { TransceiverDump, TransceiverStats };

/** What `KvCacheTransceiver.close` left. */
export interface TransceiverCloseReport {
  /** False: something may still touch memory, which therefore stays mapped and registered. */
  readonly drained: boolean;
  readonly outstanding: number;
}

/**
 * Role: moves the KV cache of requests between this rank and its peers, in both directions.
 * Why: one object owns the control plane, the ledger and the agent, so that there is one answer to who may touch a page.
 * Ownership: owns messenger and agent from construction on; `close` ends them.
 * Threading: everything here runs on the JS thread and never waits; the agent's progress thread does the work.
 * Ordering: nothing rests on the order of frames between peers, nor between frames and data.
 */
export class KvCacheTransceiver implements CacheTransceiver {
  readonly #parts: TransceiverParts;
  readonly #counters = new Counters();
  readonly #ledger: TransferLedger;
  readonly #channel: ControlChannel;
  readonly #peers: PeerRegistry;
  readonly #complaints: PeerComplaints;
  readonly #lossLines: LogShare;
  readonly #guard: CallbackGuard;
  readonly #walks: SessionWalks;
  readonly #sender: Sender;
  readonly #receiver: Receiver;
  #rankInfo: RankInfo;
  readonly #observers = new TransferObservers(() => this.#counters.add(OBSERVER_FAILURES));
  readonly #fallbacks: FallbackNotice[];
  readonly #settled: Settled[] = [];
  #listener: (() => void) | null = null;
  #activityPending = false;
  readonly #tellListener = (): void => {
    this.#activityPending = false;
    const listener = this.#listener;
    if (listener !== null) this.#guard.run('the listener of onActivity', listener);
  };
  readonly #sweeps = {
    sent: (): void => this.#sender.sweep(),
    received: (): void => this.#receiver.sweep(),
    peers: (): void => this.#peers.sweep(this.#load()),
  };
  #sweepTimer: Timer;
  #lifecycle: 'open' | 'closing' | 'closed' = 'open';
  #closing: Promise<TransceiverCloseReport> | null = null;

  constructor(parts: TransceiverParts) {
    const counters = this.#counters;
    const guard = new CallbackGuard({ clock: parts.clock, counters, warn: (message) => parts.log.warn(message) });
    const clock = new GuardedClock(parts.clock, guard);
    const log = guardedLog(parts.log, guard);
    this.#guard = guard;
    const walks = new SessionWalks({ clock, guard });
    this.#walks = walks;
    this.#parts = { ...parts, clock, log };
    this.#rankInfo = parts.rankInfo;
    this.#fallbacks = [...(parts.fallbacks ?? [])];
    const observers = this.#observers;
    this.#counters.onAdded = (name) => {
      if (name !== OBSERVER_FAILURES) observers.current?.onCounted(name);
    };
    const { agent, messenger, cache, aux, limits, rankInfo, newTicket } = parts;
    this.#ledger = new TransferLedger(cache, () => this.#signalActivity(), rankInfo);
    this.#lossLines = new LogShare(clock);
    this.#complaints = new PeerComplaints({ clock, counters, onWarning: (message) => log.warn(message) });
    this.#channel = new ControlChannel({
      messenger,
      incarnation: rankInfo.incarnation,
      clock,
      counters,
      guard,
      listeners: {
        onMessage: (frame, origin) => this.#onGuardedFrame(frame, origin),
        onBadFrame: (error, origin) => this.#peers.onBadFrame(error, origin),
      },
    });
    const onFenced = (peer: Peer): void => {
      counters.add('writers_fenced');
      const known = this.#peers.at(peer.endpoint);
      if (known?.incarnation === peer.incarnation) this.#peers.lose(known, 'its process has ended');
      this.#receiver.peers.onFenced(peer);
    };
    const fences = new WriterFences(agent, (peer) => guard.run(`the end of ${peer.name}`, () => onFenced(peer)));
    this.#peers = new PeerRegistry({
      channel: this.#channel,
      agent,
      clock,
      self: () => (this.#rankInfo.rankEndpoints.length === 0 ? null : this.#rankInfo),
      newNonce: newTicket,
      idle: (endpoints) => this.#idleOf(endpoints),
      counters,
      guard,
      events: {
        onReady: (peer) => {
          fences.watch(peer);
          observers.current?.onPeerReady(peer.name);
          // One that has not accepted our HELLO yet refuses questions as a stranger's; it is ready again when it has.
          if (peer.greeted) this.#receiver.peers.onReady(peer);
          this.#sender.onPeerReady(peer);
        },
        onRefused: (endpoint, error) => this.#receiver.peers.onRefused(endpoint, error),
        onLost: (peer, error) => this.#onPeerLost(peer, error),
        onWarning: (message) => log.warn(message),
      },
    });
    const publish = (settled: Settled): void => {
      observers.current?.onSettled(settled);
      this.#settled.push(settled);
      this.#signalActivity();
    };
    const onSettled = (settled: Settled): void => {
      const isReceived = settled.side === 'generation' && settled.outcome === 'completed';
      const flushed = isReceived ? (agent.flushInbound?.() ?? null) : null;
      if (flushed === null) publish(settled);
      else
        guard.after(
          `the outcome of request ${settled.request.id}`,
          // Undefined: the pages are visible. What it fails with may itself be nothing.
          flushed.catch((cause: unknown) => cause ?? null),
          (cause) => publish(cause === undefined ? settled : unreadable(settled, cause)),
        );
    };
    const [ledger, channel] = [this.#ledger, this.#channel];
    const shared = { cache, ledger, channel, clock, counters, observers, limits, aux, onSettled, guard, walks };
    this.#sender = new Sender({
      ...shared,
      watch: new SendWatch(observers, counters, clock, agent),
      agent,
      self: rankInfo,
      isLive: (peer) => this.#peers.at(peer.endpoint) === peer,
      peerAt: (endpoint) => this.#peers.at(endpoint),
      greet: (endpoint) => this.#peers.greet(endpoint),
      onReceivers: () => this.#signalActivity(),
    });
    this.#receiver = new Receiver({
      ...shared,
      self: rankInfo,
      inbound: InboundSlots.of(agent),
      newTicket,
      peerAt: (endpoint) => this.#peers.greetedAt(endpoint),
      askableAt: (endpoint) => this.#peers.askableAt(endpoint),
      greet: (endpoint) => this.#peers.greet(endpoint),
      doubt: (endpoint) => this.#peers.doubt(endpoint),
      forget: (peer, why) => this.#peers.lose(peer, why),
      onWarning: (message) => log.warn(message),
    });
    agent.onAdvice?.((message) => guard.run('advice', () => this.#onAdvice(message)));
    agent.onCompletions((batch) => guard.run('completions', () => this.#sender.onCompletions(batch)));
    const notes = new InboundNotes({
      counters,
      decode: (bytes) => channel.decode(bytes),
      speaker: (peerId) => {
        const watched = fences.of(peerId);
        return watched === null ? null : this.#peers.speaker(watched);
      },
      onReport: (peer, report) =>
        guard.runFor(
          report,
          () => this.#receiver.onNotedReport(peer, report),
          (_, error) => this.#receiver.failed(peer, report, error),
        ),
      onReportSoon: (peer, report) => this.#receiver.onReportSoon(peer, report),
    });
    agent.onNote?.((peerId, bytes) => {
      if (this.#lifecycle !== 'closed') guard.run('a note', () => notes.take(peerId, bytes));
    });
    agent.onNoteSoon?.((peerId, bytes) => {
      if (this.#lifecycle !== 'closed') guard.run('a note', () => notes.readAhead(peerId, bytes));
    });
    messenger.onDisconnect((endpoint) => guard.run('a broken connection', () => this.#peers.disconnected(endpoint)));
    this.#sweepTimer = this.#armSweep();
  }

  get endpoint(): string {
    return this.#channel.endpoint;
  }

  get ledger(): TransferLedger {
    return this.#ledger;
  }

  /**
   * Tells a rank of several who the others are. Once, when all ranks of the instance are open; until then this rank answers no HELLO and
   * sends none: peers repeat theirs for 5 s, and requests wait.
   * @param rankEndpoints control endpoint of every rank, by flat rank `pp * (TP * CP) + tp * CP + cp`
   * @throws ArgumentError for a list that does not fit the instance, or that has another endpoint at this rank
   * @throws StateError when the rank has joined with another list
   */
  joinInstance(rankEndpoints: readonly string[]): void {
    this.#requireOpen();
    const { tpSize, ppSize, cpSize, rank, rankEndpoints: known } = this.#rankInfo;
    const ranks = tpSize * ppSize * cpSize;
    const refuse = (text: string): never => {
      throw new ArgumentError(`rankEndpoints ${text}`);
    };
    if (rankEndpoints.length !== ranks) refuse(`has ${rankEndpoints.length} entries, the instance has ${ranks} ranks`);
    for (const [index, endpoint] of rankEndpoints.entries())
      if (parseEndpoint(endpoint) === null)
        refuse(`[${index}] must be tcp://host:port, got ${JSON.stringify(endpoint)}`);
    if (rankEndpoints[rank] !== this.endpoint)
      refuse(`[${rank}] is ${rankEndpoints[rank]}, but rank ${rank} is here, at ${this.endpoint}`);
    if (new Set(rankEndpoints).size !== ranks) refuse('names an endpoint twice');
    if (known.length > 0) {
      if (known.every((endpoint, index) => endpoint === rankEndpoints[index])) return;
      throw new StateError(`rank ${rank} at ${this.endpoint} has joined its instance with other endpoints`);
    }
    this.#rankInfo = { ...this.#rankInfo, rankEndpoints: [...rankEndpoints] };
    this.#peers.joined();
  }

  respondAndSendAsync(request: LlmRequest, options: { readonly after: ReadyEvent | null }): SendReceipt | null {
    this.#requireOpen();
    return this.#sender.send(request, options.after);
  }

  sendEarlyPrefix(request: LlmRequest, options: { readonly after: ReadyEvent | null }): SendReceipt | null {
    this.#requireOpen();
    return this.#sender.sendEarlyPrefix(request, options.after);
  }

  requestAndReceiveAsync(request: LlmRequest): void {
    this.#requireOpen();
    this.#receiver.request(request);
  }

  receiverReady(request: LlmRequest): boolean {
    this.#requireOpen();
    return this.#sender.receiverReady(request);
  }

  cancelRequest(request: LlmRequest, reason: string): boolean {
    const receiving = request.disagg?.requestType === 'generation_only';
    return receiving ? this.#receiver.cancel(request, reason) : this.#sender.cancel(request, reason);
  }

  firstTokensKnown(): void {
    this.#sender.flushAux();
  }

  takeSettled(): readonly Settled[] {
    this.#sender.flushAux();
    return this.#settled.splice(0);
  }

  onActivity(listener: () => void): void {
    this.#listener = listener;
  }

  /**
   * Lets an observer hear what happens from now on, and at once which fallbacks there were. Without one the hooks cost a comparison each.
   * @returns takes it away again; idempotent
   */
  observe(observer: TransferObserver): () => void {
    const detach = this.#observers.attach(observer);
    for (const notice of this.#fallbacks) observer.onFallback?.(notice);
    return detach;
  }

  /** Counts and sizes, without any request's own data; JSON-serialisable. Costs O(live sessions). */
  stats(): TransceiverStats {
    return transceiverStats(this.#inspected());
  }

  /**
   * Every live session with its state, clocks and peers, for an operator who asks why something does not end; JSON-serialisable. No page
   * content, tokens, keys or metadata.
   * @param options.maxEntries of each list; what is left out is counted. Default 100
   */
  dump(options: { readonly maxEntries?: number } = {}): TransceiverDump {
    return transceiverDump(this.#inspected(), options.maxEntries);
  }

  #inspected(): Inspected {
    const { agent, messenger, cache, aux, clock } = this.#parts;
    return {
      endpoint: this.endpoint,
      incarnation: this.#rankInfo.incarnation,
      lifecycle: this.#lifecycle,
      nowMs: clock.now(),
      sender: this.#sender,
      receiver: this.#receiver,
      peers: this.#peers,
      ledger: this.#ledger,
      counters: this.#counters,
      fallbacks: this.#fallbacks,
      observers: this.#observers,
      agent,
      messenger,
      cache,
      aux,
    };
  }

  /**
   * Cancels what runs, tells the peers, waits until nothing of ours can touch memory and every peer has acknowledged what it was told, or
   * `deadlineMs` has passed, then closes agent and messenger. Idempotent.
   * @throws ArgumentError, and nothing is closed, when `deadlineMs` is no number of milliseconds
   */
  async close(deadlineMs = 2000): Promise<TransceiverCloseReport> {
    checkDeadline(deadlineMs);
    this.#closing ??= this.#close(deadlineMs);
    return this.#closing;
  }

  async #close(deadlineMs: number): Promise<TransceiverCloseReport> {
    const { clock, agent, messenger } = this.#parts;
    const deadline = clock.now() + deadlineMs;
    this.#lifecycle = 'closing';
    for (const side of [this.#sender, this.#receiver]) {
      // Whatever the deadline says: each request has an outcome, and takes back what it has under way.
      const ending = side.endAll('the server is shutting down');
      if (ending !== null) await ending;
    }
    // Also for reports: a peer that has not heard of a DONE would take the GOODBYE for the end of its request.
    while ((this.#ledger.heldCount > 0 || this.#hasOpenReports()) && clock.now() < deadline)
      await new Promise<void>((resolve) => clock.setTimer(5, resolve, { keepAlive: true }));
    this.#lifecycle = 'closed';
    this.#sweepTimer.cancel();
    for (const peer of this.#peers.peers)
      this.#channel.send(peer.endpoint, {
        type: 'GOODBYE',
        endpoint: this.#channel.endpoint,
        drainMs: 0,
        reason: 'shutting down',
      });
    this.#channel.close();
    this.#peers.close();
    this.#walks.close();
    this.#sender.close();
    this.#receiver.close();
    const report = await agent.close(Math.max(1, deadline - clock.now()));
    await messenger.close(GOODBYE_LINGER_MS);
    return { drained: report.drained && this.#ledger.heldCount === 0, outstanding: report.outstanding };
  }

  /** Of peers that are there to acknowledge them. */
  #hasOpenReports(): boolean {
    return this.#sender.hasOpenReports((endpoint) => this.#peers.at(endpoint) !== null);
  }

  /** What a frame of a peer sets off ends the request that it is about, and no other. */
  #onGuardedFrame(frame: Frame, origin: FrameOrigin): void {
    const { message, incarnation } = frame;
    if (!('ticket' in message)) {
      this.#guard.run(message.type, () => this.#onFrame(frame, origin));
      return;
    }
    this.#guard.runFor(
      message,
      () => this.#onFrame(frame, origin),
      (_, error) => {
        const from = this.#peers.sender(incarnation, origin);
        if (from === null) return;
        this.#sender.failed(from, message, error);
        this.#receiver.failed(from, message, error);
      },
    );
  }

  #onAdvice(message: string): void {
    this.#parts.log.warn(message);
    const notice: FallbackNotice = { source: 'agent', message };
    if (this.#fallbacks.push(notice) > MAX_FALLBACKS) this.#fallbacks.pop();
    this.#observers.current?.onFallback(notice);
  }

  #onFrame(frame: Frame, origin: FrameOrigin): void {
    if (this.#lifecycle === 'closed') return;
    const { message, incarnation, major, minor } = frame;
    if (message.type === 'HELLO') {
      if (message.rankInfo.incarnation !== incarnation) this.#counters.add('protocol_error:hello_incarnation');
      else this.#peers.onHello(message, { major, minor }, origin);
      return;
    }
    if (message.type === 'HELLO_ACK') {
      this.#peers.onHelloAck(message, { incarnation, major, minor }, origin);
      return;
    }
    const peer = this.#peers.sender(incarnation, origin);
    if (peer === null) {
      this.#onStrangersFrame(message, origin);
      return;
    }
    switch (message.type) {
      case 'REQUEST_DATA':
        this.#sender.questions.onRequestData(peer, message);
        break;
      case 'ACCEPTED':
        this.#receiver.onAccepted(peer, message);
        break;
      case 'SLICE_RESULT':
        this.#receiver.onSliceResult(peer, message);
        break;
      case 'WRITER_REPORT':
        this.#receiver.onWriterReport(peer, message);
        break;
      case 'REPORT_ACK':
        this.#sender.onReportAck(peer, message);
        break;
      case 'STATUS':
        this.#sender.questions.onStatus(peer, message);
        break;
      case 'CANCEL':
        this.#onCancel(peer, message, origin);
        break;
      case 'PING':
        this.#peers.onPing(peer, origin, this.#load());
        break;
      case 'GOODBYE':
        this.#peers.onGoodbye(peer, message);
        break;
      case 'ERROR':
        this.#complaints.on(peer, message);
        break;
      case 'CANCEL_ACK':
      case 'PONG':
        break;
      default:
        this.#counters.add('unknown_message');
    }
  }

  /** Answered on the connection that it made, and nowhere else: a rank that remembers nothing must not leave the asker waiting. */
  #onStrangersFrame(message: Frame['message'], origin: FrameOrigin): void {
    this.#counters.add(`unknown_peer:${message.type}`);
    if (origin.kind === 'dialed') {
      // Another process answers where a peer was.
      this.#peers.doubt(origin.endpoint);
      return;
    }
    if ('endpoint' in message && this.#peers.isTaken(message.endpoint)) return;
    if (message.type === 'REQUEST_DATA' || message.type === 'STATUS')
      this.#sender.questions.refuseStranger(message, origin);
    else if (message.type === 'CANCEL') this.#onCancel(null, message, origin);
    else if (message.type === 'PING') this.#peers.onPing(null, origin, this.#load());
  }

  #onCancel(peer: Peer | null, cancel: Cancel, origin: FrameOrigin): void {
    if (cancel.from === 'generation') this.#sender.questions.onCancel(peer, cancel, origin);
    else this.#receiver.onCancel(peer, cancel, origin);
  }

  #onPeerLost(peer: Peer, error: PeerLostError): void {
    // A peer that leaves while nothing runs to or from it is news, not trouble.
    const isBusy = this.#idleOf([peer.endpoint]).size === 0;
    const more = this.#lossLines.take();
    if (more !== null) this.#parts.log[isBusy ? 'warn' : 'info'](`${error.message}${more}`);
    this.#observers.current?.onPeerLost(peer.name, error.message, isBusy);
    this.#sender.onPeerLost(peer, error);
    this.#receiver.peers.onLost(peer, error);
  }

  /**
   * After a stop (SIGSTOP, a suspended machine) timers run before the frames that arrived meanwhile are read: a deadline that passed then
   * is judged one sweep later, or a request would fail whose pages are all here. Once in a row, so that a busy loop still sweeps.
   */
  #armSweep(postponed = false): Timer {
    const { clock } = this.#parts;
    const dueMs = clock.now() + SWEEP_INTERVAL_MS;
    return clock.setTimer(SWEEP_INTERVAL_MS, () => {
      if (this.#lifecycle === 'closed') return;
      const isLate = clock.now() - dueMs >= SWEEP_INTERVAL_MS;
      const postpone = isLate && !postponed;
      this.#sweepTimer = this.#armSweep(postpone);
      if (postpone) {
        this.#counters.add('sweeps_postponed');
        return;
      }
      const { sent, received, peers } = this.#sweeps;
      this.#guard.run('a sweep of what is sent', sent);
      this.#guard.run('a sweep of what is received', received);
      this.#guard.run('a sweep of the peers', peers);
    });
  }

  /** Those that no session needs. With many sessions and few peers the first sessions tell. */
  #idleOf(endpoints: Iterable<string>): ReadonlySet<string> {
    const idle = new Set(endpoints);
    this.#sender.takeBusy(idle);
    this.#receiver.takeBusy(idle);
    return idle;
  }

  #load(): { readonly sessions: number; readonly freeAuxSlots: number } {
    return {
      sessions: this.#sender.sessionCount + this.#receiver.sessionCount,
      freeAuxSlots: this.#parts.aux.freeCount,
    };
  }

  #signalActivity(): void {
    if (this.#activityPending) return;
    this.#activityPending = true;
    queueMicrotask(this.#tellListener);
  }

  #requireOpen(): void {
    if (this.#lifecycle !== 'open') throw new StateError(`the transceiver at ${this.endpoint} is ${this.#lifecycle}`);
  }
}

/** A line that cannot be written costs nothing but itself. */
function guardedLog(log: TransceiverLog, guard: CallbackGuard): TransceiverLog {
  return {
    warn: (message) => void guard.run('the log', () => log.warn(message)),
    info: (message) => void guard.run('the log', () => log.info(message)),
  };
}

/** The pages arrived, but nothing says that this GPU's kernels would see them. */
function unreadable(settled: Settled, cause: unknown): Settled {
  const why = cause instanceof Error ? cause.message : String(cause);
  const error = new TransportError(`what was received cannot be made visible to the GPU: ${why}`, {
    cause,
    drained: true,
  });
  return { ...settled, outcome: 'failed', error };
}
