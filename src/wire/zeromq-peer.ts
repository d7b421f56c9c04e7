import { lookup } from 'node:dns/promises';
import { Dealer, type Event } from 'zeromq';
import { isIpv4 } from '../config/host-address.js';
import { type EndpointParts, formatEndpoint } from './endpoint.js';
import { FrameQueue, type FrameQueueLimits } from './frame-queue.js';
import type { HandshakeRefusals } from './handshake-refusals.js';
import { LOOK_AGAIN_MS, MAX_REPLY_BYTES } from './limits.js';
import type { DropReason, MessengerCounters } from './messenger-counters.js';
import { zeromqContext } from './zeromq-context.js';
import type { CurveIdentity } from './zeromq-curve.js';
import { type SocketMonitor, watchSocket } from './zeromq-monitor.js';
import { closedByPeer, refusedByPeer } from './zeromq-refusal-texts.js';
import { isWakeUp } from './zeromq-wake-up.js';

/** The same on an encrypted connection, which adds command name, nonce and authenticator; larger than any command of a handshake. */
const MAX_READ_BYTES = MAX_REPLY_BYTES + 64;

/**
 * resolving -> connecting -> connected <-> retrying; any -> closed, also when the handshake is refused.
 * `retrying` is a peer that refused or was lost: ZeroMQ keeps trying, but nothing can be expected to get through soon.
 */
type PeerState = 'resolving' | 'connecting' | 'connected' | 'retrying' | 'closed';

export interface ZeromqPeerOptions {
  readonly parts: EndpointParts;
  readonly queueLimits: FrameQueueLimits;
  readonly counters: MessengerCounters;
  readonly refusals: HandshakeRefusals;
  /** Keys, or null for plaintext. */
  readonly curve: CurveIdentity | null;
  /** An answer that came on this connection. */
  readonly onReply: (frame: Uint8Array) => void;
  /** An established connection broke. */
  readonly onLost: () => void;
  /** The peer is of no use any more (name or socket cannot be had, handshake refused): the owner removes it, so that a later frame starts afresh. */
  readonly onUnusable: () => void;
}

/**
 * Role: the way to one peer: a DEALER, its queue and its monitor.
 * Why a queue of our own: ZeroMQ's is bounded by count only and would hold frames for a process that is gone. With `immediate` it takes
 * frames for an established connection alone; the rest waits here, bounded by bytes, and is dropped when the connection breaks, so that
 * a restarted process is not handed its predecessor's frames (at most the one that was being sent).
 * Ordering: frames of one connection arrive in the order of `send`.
 */
export class ZeromqPeer {
  readonly #options: ZeromqPeerOptions;
  readonly #queue: FrameQueue;
  #state: PeerState = 'resolving';
  #dealer: Dealer | null = null;
  #monitor: SocketMonitor | null = null;
  #pump: Promise<void> | null = null;
  /** Handshakes in a row that the peer broke off without a reason. */
  #brokenHandshakes = 0;
  #settled: (() => void)[] = [];

  constructor(options: ZeromqPeerOptions) {
    this.#options = options;
    this.#queue = new FrameQueue(options.queueLimits);
    const { host, port } = options.parts;
    if (isIpv4(host)) this.#connect(host, port);
    else void this.#resolveAndConnect(host, port);
  }

  get isConnected(): boolean {
    return this.#state === 'connected';
  }

  send(frame: Uint8Array): void {
    if (this.#state === 'closed') this.#options.counters.dropped('closed');
    else if (!this.#queue.push(frame)) this.#options.counters.dropped('queue-full');
    else this.#startPump();
  }

  /** Resolves when nothing waits any more, or nothing can be expected to be sent. */
  settled(): Promise<void> {
    if (this.#isSettled()) return Promise.resolve();
    return new Promise((resolve) => this.#settled.push(resolve));
  }

  /** What ZeroMQ has taken goes on being sent in the background for `lingerMs`; what waits here is dropped and counted. */
  close(reason: DropReason, lingerMs: number): void {
    if (this.#state === 'closed') return;
    this.#state = 'closed';
    this.#drop(reason);
    if (this.#dealer !== null) {
      this.#dealer.linger = lingerMs;
      this.#dealer.close();
    }
    this.#notifySettled();
  }

  /** As `close`, without leaving anything pending for later turns of the event loop, for there are none. */
  closeAtExit(): void {
    this.close('closed', 0);
    this.#monitor?.closeAtExit();
  }

  /** Names are resolved off ZeroMQ's I/O thread: there a slow resolver would hold up the frames of every peer. */
  async #resolveAndConnect(host: string, port: number): Promise<void> {
    let address: string;
    try {
      address = (await lookup(host, { family: 4 })).address;
    } catch {
      // Counted, and the next frame to this endpoint asks again: an unknown name is a peer that is gone, which `send` never reports.
      this.#abandon('unresolved-host');
      return;
    }
    if (this.#state === 'resolving') this.#connect(address, port);
  }

  #connect(address: string, port: number): void {
    try {
      this.#dealer = new Dealer({
        context: zeromqContext(),
        immediate: true,
        linger: 0,
        ipv6: false,
        sendHighWaterMark: 64,
        sendTimeout: LOOK_AGAIN_MS,
        // Only short answers come here: a peer that sends more on this connection must not fill our memory.
        maxMessageSize: MAX_READ_BYTES,
        receiveHighWaterMark: 16,
        reconnectInterval: 100,
        reconnectMaxInterval: 1000,
        connectTimeout: 5000,
        handshakeInterval: 5000,
        ...this.#options.curve?.clientOptions(this.#options.parts),
      });
      this.#state = 'connecting';
      this.#monitor = watchSocket(this.#dealer, (event) => this.#onMonitorEvent(event));
      void this.#readReplies(this.#dealer);
      this.#dealer.connect(`tcp://${address}:${port}`);
    } catch {
      // Out of sockets or descriptors. `send` never throws for a peer that cannot be reached; the counter says why.
      this.#abandon('socket-error');
      return;
    }
    this.#startPump();
  }

  #abandon(reason: DropReason): void {
    if (this.#state === 'closed') return;
    this.close(reason, 0);
    // Later, because this can run inside the constructor, before the owner knows this peer.
    queueMicrotask(() => this.#options.onUnusable());
  }

  async #readReplies(dealer: Dealer): Promise<void> {
    while (!dealer.closed) {
      let parts: Buffer[] | undefined;
      try {
        // Resolves with undefined when the socket is closed with a receive under way, whatever its type says.
        parts = await dealer.receive();
      } catch (error) {
        if (dealer.closed) return;
        // A wake-up without a message.
        if (isWakeUp(error)) continue;
        throw error;
      }
      if (parts === undefined || this.#state === 'closed') return;
      const frame = parts[0];
      if (parts.length !== 1 || frame === undefined) this.#options.counters.dropped('malformed-message');
      else this.#options.onReply(frame);
    }
  }

  #onMonitorEvent(event: Event): void {
    if (this.#state === 'closed') return;
    switch (event.type) {
      case 'handshake':
        this.#state = 'connected';
        this.#brokenHandshakes = 0;
        break;
      case 'handshake:error:auth':
      case 'handshake:error:protocol':
      case 'handshake:error:other':
        this.#onHandshakeError(event);
        break;
      case 'disconnect': {
        const wasConnected = this.#state === 'connected';
        this.#state = 'retrying';
        if (wasConnected) {
          this.#drop('disconnected');
          this.#options.onLost();
        }
        this.#notifySettled();
        break;
      }
      case 'connect:retry':
        if (this.#state === 'connecting') this.#state = 'retrying';
        this.#notifySettled();
        break;
      default:
        // Steps of connecting, and events of bound sockets: nothing is decided by them.
        break;
    }
  }

  /**
   * After a refusal ZeroMQ either gives up for good or tries ten times a second for ever. Neither is right: this peer ends, and the next
   * frame tries again, at the pace of those who send.
   */
  #onHandshakeError(event: Event): void {
    const { parts, curve, refusals } = this.#options;
    const endpoint = formatEndpoint(parts);
    let refused = refusedByPeer(event, endpoint, curve);
    if (refused === null) {
      // Once may be a process that just ended.
      if (++this.#brokenHandshakes < 2) return;
      refused = closedByPeer(endpoint, curve?.serverKeyOf(parts) ?? null);
    }
    refusals.add(refused.cause, endpoint, refused.message);
    this.#abandon('refused');
  }

  #startPump(): void {
    if (this.#pump !== null || this.#dealer === null || this.#queue.size === 0) return;
    this.#pump = this.#sendAll(this.#dealer).finally(() => {
      this.#pump = null;
      // A frame may have come between the last look into the queue and here.
      this.#startPump();
      this.#notifySettled();
    });
  }

  /** One send at a time: the library allows no second one while the first waits for the connection. */
  async #sendAll(dealer: Dealer): Promise<void> {
    for (let frame = this.#queue.shift(); frame !== undefined; frame = this.#queue.shift()) {
      try {
        await this.#sendOne(dealer, frame);
        this.#options.counters.sent(frame.length);
      } catch {
        // The socket was closed under the send, or refused it: lost and counted, as any frame may be.
        this.#options.counters.dropped(dealer.closed ? 'closed' : 'socket-error');
      }
    }
  }

  async #sendOne(dealer: Dealer, frame: Uint8Array): Promise<void> {
    for (;;) {
      try {
        await dealer.send(frame);
        return;
      } catch (error) {
        if (dealer.closed || !isWakeUp(error)) throw error;
      }
    }
  }

  #drop(reason: DropReason): void {
    const dropped = this.#queue.clear();
    if (dropped > 0) this.#options.counters.dropped(reason, dropped);
  }

  #isSettled(): boolean {
    if (this.#state === 'closed' || this.#state === 'retrying') return true;
    return this.#queue.size === 0 && this.#pump === null;
  }

  #notifySettled(): void {
    if (!this.#isSettled()) return;
    const waiting = this.#settled;
    this.#settled = [];
    for (const resolve of waiting) resolve();
  }
}
