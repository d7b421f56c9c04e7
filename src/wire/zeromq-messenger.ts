import type { Router } from 'zeromq';
import { type Clock, SystemClock } from '../clock.js';
import { ArgumentError, StateError } from '../errors.js';
import { TurnBudget } from '../turn-budget.js';
import { connectionsWithin, readDescriptorLimit } from './descriptor-budget.js';
import { parseEndpoint } from './endpoint.js';
import { HandshakeRefusals } from './handshake-refusals.js';
import { MAX_CONNECTIONS, MAX_FRAME_BYTES } from './limits.js';
import type { FrameOrigin, Messenger } from './messenger.js';
import { MessengerCounters, type MessengerCounts } from './messenger-counters.js';
import { type BindOptions, type BoundRouter, bindRouter } from './zeromq-bind.js';
import { CurveIdentity, type CurveOptions } from './zeromq-curve.js';
import { Door } from './zeromq-door.js';
import type { SocketMonitor } from './zeromq-monitor.js';
import { ZeromqPeer } from './zeromq-peer.js';
import { connectionToken, ZeromqReplies } from './zeromq-replies.js';
import { isWakeUp } from './zeromq-wake-up.js';
import { onWorkerExit } from './zeromq-worker-exit.js';

/** Where to listen, and the bounds of what may wait for peers. */
export interface ZeromqMessengerOptions extends BindOptions {
  /** Keys of this rank and who may connect; null or left out = plaintext. See `messengerOptions`. */
  readonly curve?: CurveOptions | null;
  /** Connections that were refused, by us or by a peer, each peer and cause once, with the remedy. Default: nobody is told. */
  readonly onWarning?: (message: string) => void;
  /** Frames and bytes that wait for one peer; the frame that does not fit is dropped. Defaults 4096 and 64 MiB. */
  readonly maxQueuedFrames?: number;
  readonly maxQueuedBytes?: number;
  /**
   * Connections kept; beyond it the one longest unused that is not connected makes room. Default 5120: the 4096 peers that a transceiver
   * has at most, and ranks that are only being greeted. Less bounds the peers as well, and so does `descriptorLimit`.
   */
  readonly maxPeers?: number;
  /** Open files that this process may have. Default: its soft limit, from /proc/self/limits. */
  readonly descriptorLimit?: number;
  readonly clock?: Clock;
}

/** Longer than ZeroMQ's threads take to close a socket; `close` must end all the same. */
const PORT_RELEASE_MS = 1000;

/** Of this JS thread; they share the limit of the process. */
let openMessengers = 0;

type MessengerState = 'open' | 'closing' | 'closed';

/**
 * Role: control frames over TCP: one bound ROUTER that all peers send to, one DEALER per peer that is sent to.
 * Ownership: owns its sockets. While open it keeps the process alive, as any listening server does; `close` ends that. A worker thread
 *   must close it before it is terminated from outside.
 * Threading: all callbacks on the JS thread that opened it; ZeroMQ's I/O runs on its own thread.
 * Ordering: per connection only. Peers answer each other on connections of their own; only who is no peer is answered on the one it made.
 *
 * A connection that breaks is reported at once when the kernel tells (process killed, connection reset); a peer that merely stops
 * answering is for the layer above to notice. After a break ZeroMQ reconnects by itself; `forget` ends that.
 */
export class ZeromqMessenger implements Messenger {
  readonly endpoint: string;
  readonly #router: Router;
  readonly #clock: Clock;
  readonly #monitor: SocketMonitor;
  readonly #counters: MessengerCounters;
  readonly #refusals: HandshakeRefusals;
  readonly #curve: CurveIdentity | null;
  readonly #door: Door;
  readonly #queueLimits: { readonly maxFrames: number; readonly maxBytes: number };
  readonly #maxPeers: number;
  readonly #descriptorLimit: number;
  readonly #onWarning: (message: string) => void;
  readonly #replies: ZeromqReplies;
  /** In order of last use. */
  readonly #peers = new Map<string, ZeromqPeer>();
  readonly #forgetExit: () => void;
  #state: MessengerState = 'open';
  #closed: Promise<void> | null = null;
  #toldFull = false;
  #onFrame: ((frame: Uint8Array, origin: FrameOrigin) => void) | null = null;
  #onDisconnect: ((endpoint: string) => void) | null = null;

  /**
   * @throws ConfigError for wrong options or keys, a port in use (naming it), or a bind beyond loopback in plaintext without `allowPlaintext`
   * @throws ResourceError when descriptors or sockets have run out
   * @throws CapabilityError when `curve` is given and ZeroMQ was built without it
   */
  static async open(options: ZeromqMessengerOptions = {}): Promise<ZeromqMessenger> {
    const { maxQueuedFrames = 4096, maxQueuedBytes = 64 * 1024 * 1024, maxPeers = MAX_CONNECTIONS } = options;
    const { descriptorLimit = readDescriptorLimit() } = options;
    for (const [name, value] of Object.entries({ maxQueuedFrames, maxQueuedBytes, maxPeers })) {
      if (!Number.isSafeInteger(value) || value < 1)
        throw new ArgumentError(`${name} must be a positive integer, got ${value}`);
    }
    const curve = options.curve === undefined || options.curve === null ? null : new CurveIdentity(options.curve);
    const counters = new MessengerCounters();
    const onWarning = harmless(options.onWarning);
    const refusals = new HandshakeRefusals(counters, onWarning);
    const door = await Door.open(curve, refusals);
    let bound: BoundRouter;
    try {
      bound = await bindRouter(options, door.options, (event) => door.onEvent(event));
    } catch (error) {
      await door.close();
      throw error;
    }
    return new ZeromqMessenger(bound, {
      clock: options.clock ?? new SystemClock(),
      counters,
      refusals,
      curve,
      door,
      maxQueuedFrames,
      maxQueuedBytes,
      maxPeers,
      descriptorLimit,
      onWarning,
    });
  }

  private constructor(
    { router, monitor, endpoint }: BoundRouter,
    options: {
      readonly clock: Clock;
      readonly counters: MessengerCounters;
      readonly refusals: HandshakeRefusals;
      readonly curve: CurveIdentity | null;
      readonly door: Door;
      readonly maxQueuedFrames: number;
      readonly maxQueuedBytes: number;
      readonly maxPeers: number;
      readonly descriptorLimit: number;
      readonly onWarning: (message: string) => void;
    },
  ) {
    this.#router = router;
    this.#monitor = monitor;
    this.#counters = options.counters;
    this.#refusals = options.refusals;
    this.#curve = options.curve;
    this.#door = options.door;
    this.endpoint = endpoint;
    this.#clock = options.clock;
    this.#queueLimits = { maxFrames: options.maxQueuedFrames, maxBytes: options.maxQueuedBytes };
    this.#maxPeers = options.maxPeers;
    this.#descriptorLimit = options.descriptorLimit;
    openMessengers += 1;
    this.#onWarning = options.onWarning;
    this.#replies = new ZeromqReplies(router, options.counters);
    this.#forgetExit = onWorkerExit(() => this.#closeAtExit());
  }

  /** What the limit of open files leaves to each messenger of this JS thread. */
  get maxConnections(): number {
    return Math.min(this.#maxPeers, connectionsWithin(this.#descriptorLimit, openMessengers));
  }

  /** The frame must not be changed afterwards: ZeroMQ sends from its memory. */
  send(endpoint: string, frame: Uint8Array): void {
    if (this.#state !== 'open') this.#counters.dropped('closed');
    else if (frame.length > MAX_FRAME_BYTES) this.#counters.dropped('frame-too-large');
    else this.#peerFor(endpoint)?.send(frame);
  }

  reply(origin: FrameOrigin, frame: Uint8Array): void {
    if (origin.kind === 'dialed') this.send(origin.endpoint, frame);
    else if (this.#state !== 'open') this.#counters.dropped('closed');
    else this.#replies.send(origin.connection, frame);
  }

  /** Frames that arrive before there is a listener wait in ZeroMQ. */
  onFrame(listener: (frame: Uint8Array, origin: FrameOrigin) => void): void {
    if (this.#onFrame !== null) throw new StateError('onFrame takes one listener, and it is set');
    this.#onFrame = listener;
    void this.#receiveLoop();
  }

  onDisconnect(listener: (endpoint: string) => void): void {
    if (this.#onDisconnect !== null) throw new StateError('onDisconnect takes one listener, and it is set');
    this.#onDisconnect = listener;
  }

  forget(endpoint: string): void {
    this.#peers.get(endpoint)?.close('forgotten', 0);
    this.#peers.delete(endpoint);
  }

  counts(): MessengerCounts {
    return this.#counters.snapshot();
  }

  /**
   * Receives nothing more; waits at most `lingerMs` for what is queued to peers that can be reached, and then for the port to be free.
   * Idempotent.
   * Bytes that ZeroMQ took are sent in the background for the rest of that time, also while the process ends.
   */
  close(lingerMs: number): Promise<void> {
    this.#closed ??= this.#close(Math.max(0, lingerMs));
    return this.#closed;
  }

  async #close(lingerMs: number): Promise<void> {
    this.#state = 'closing';
    this.#router.close();
    const deadline = this.#clock.now() + lingerMs;
    const doorClosed = this.#door.close();
    if (lingerMs > 0) await this.#settleWithin(lingerMs);
    const remainingMs = Math.ceil(Math.max(0, deadline - this.#clock.now()));
    for (const peer of this.#peers.values()) peer.close('closed', remainingMs);
    this.#peers.clear();
    await Promise.all([doorClosed, this.#within(PORT_RELEASE_MS, this.#monitor.ended)]);
    this.#state = 'closed';
    openMessengers -= 1;
    this.#forgetExit();
  }

  #closeAtExit(): void {
    this.#state = 'closed';
    this.#router.close();
    this.#monitor.closeAtExit();
    this.#door.closeAtExit();
    for (const peer of this.#peers.values()) peer.closeAtExit();
  }

  #settleWithin(lingerMs: number): Promise<void> {
    return this.#within(lingerMs, Promise.all([...this.#peers.values()].map((peer) => peer.settled())));
  }

  #within(limitMs: number, done: Promise<unknown>): Promise<void> {
    return new Promise((resolve) => {
      const timer = this.#clock.setTimer(limitMs, resolve, { keepAlive: true });
      void done.then(() => {
        timer.cancel();
        resolve();
      });
    });
  }

  #peerFor(endpoint: string): ZeromqPeer | null {
    const known = this.#peers.get(endpoint);
    if (known !== undefined) {
      this.#peers.delete(endpoint);
      this.#peers.set(endpoint, known);
      return known;
    }
    const parts = parseEndpoint(endpoint);
    if (parts === null) {
      this.#counters.dropped('bad-endpoint');
      return null;
    }
    if (this.#peers.size >= this.maxConnections && !this.#evictUnreachable()) {
      this.#counters.dropped('too-many-peers');
      this.#tellFull();
      return null;
    }
    const peer: ZeromqPeer = new ZeromqPeer({
      parts,
      queueLimits: this.#queueLimits,
      counters: this.#counters,
      refusals: this.#refusals,
      curve: this.#curve,
      onReply: (frame) => this.#received(frame, { kind: 'dialed', endpoint }),
      onLost: () => this.#lost(endpoint),
      onUnusable: () => {
        if (this.#peers.get(endpoint) === peer) this.#peers.delete(endpoint);
      },
    });
    this.#peers.set(endpoint, peer);
    return peer;
  }

  /** Endpoints come from peers, so a liar could fill the table with addresses that nobody listens on. */
  #evictUnreachable(): boolean {
    for (const [endpoint, peer] of this.#peers) {
      if (peer.isConnected) continue;
      this.forget(endpoint);
      return true;
    }
    return false;
  }

  #tellFull(): void {
    if (this.#toldFull) return;
    this.#toldFull = true;
    this.#onWarning(
      `${this.maxConnections} connections are in use and no more are made: raise the limit of open files (ulimit -n), or spread the ` +
        'instances over more servers',
    );
  }

  #received(frame: Uint8Array, origin: FrameOrigin): void {
    if (this.#state !== 'open') return;
    this.#counters.received(frame.length);
    const listener = this.#onFrame;
    if (listener !== null) callListener(() => listener(frame, origin));
  }

  #lost(endpoint: string): void {
    this.#counters.connectionLost();
    const listener = this.#onDisconnect;
    if (this.#state === 'open' && listener !== null) callListener(() => listener(endpoint));
  }

  /** In portions: ZeroMQ hands over up to 512 frames that have come without a turn of the event loop between them. */
  async #receiveLoop(): Promise<void> {
    const turns = new TurnBudget(this.#clock);
    while (!this.#router.closed) {
      if (turns.isSpent()) await turns.nextTurn();
      if (this.#router.closed) return;
      let parts: Buffer[];
      try {
        parts = await this.#router.receive();
      } catch (error) {
        if (this.#state !== 'open') return;
        // A wake-up without a message; everything else is not expected and must not leave the rank deaf in silence.
        if (isWakeUp(error)) continue;
        throw error;
      }
      if (this.#state !== 'open') return;
      const [routingId, frame] = parts;
      if (parts.length !== 2 || routingId === undefined || frame === undefined)
        this.#counters.dropped('malformed-message');
      else this.#received(frame, { kind: 'accepted', connection: connectionToken(routingId) });
    }
  }
}

/** Told of what sockets do, where an exception would end the process, or leave a socket without its reader. */
function harmless(onWarning: ZeromqMessengerOptions['onWarning']): (message: string) => void {
  return (message) => {
    try {
      onWarning?.(message);
    } catch (error) {
      process.emitWarning(`kv-transceiver: onWarning threw: ${String(error)}`);
    }
  };
}

/** A listener's exception is its owner's bug: it surfaces as an uncaught exception, and the socket goes on being served. */
function callListener(call: () => void): void {
  try {
    call();
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}
