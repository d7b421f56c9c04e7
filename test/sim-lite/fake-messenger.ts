import { decodeFrame } from '../../src/wire/frame-codec.js';
import { WIRE_VERSIONS, type WireVersions } from '../../src/wire/frame-header.js';
import { MAX_CONNECTIONS, MAX_REPLY_BYTES } from '../../src/wire/limits.js';
import type { ReceivedMessage } from '../../src/wire/messages.js';
import type { FrameOrigin, Messenger } from '../../src/wire/messenger.js';
import type { FakeClock } from './fake-clock.js';
import { seededRandom } from './seeded-random.js';

/** One frame on its way, as rules and the log see it. */
export interface FrameInFlight {
  readonly from: string;
  readonly to: string;
  readonly bytes: Uint8Array;
  readonly message: ReceivedMessage;
  readonly sentAt: number;
  /** Counts frames of the network, from 0. */
  readonly index: number;
}

/** What happens to a frame: how often it arrives and how much later than usual. Missing: once, without extra delay. */
export interface Fate {
  readonly copies?: number;
  readonly delayMs?: number;
}

export const DROP: Fate = { copies: 0 };

/** First rule that answers decides; null or undefined passes on. */
export type FaultRule = (frame: FrameInFlight) => Fate | null | undefined;

export interface NetworkOptions {
  readonly seed?: number;
  readonly latencyMs?: number;
  /** Probabilities of the random faults, applied to frames that no rule decided. */
  readonly loss?: number;
  readonly duplication?: number;
  /** Extra delay, uniform in [0, jitterMs): reorders. */
  readonly jitterMs?: number;
  /** Of each messenger. */
  readonly maxConnections?: number;
}

/**
 * Role: an in-memory network of Messengers under one FakeClock; frames arrive by its timers only.
 * Ordering: without faults frames of a pair keep their order; equal seeds and equal calls give equal histories.
 */
export class FakeNetwork {
  readonly clock: FakeClock;
  /** What may be on the wires; tests of other versions widen it. */
  versions: WireVersions = WIRE_VERSIONS;
  /** Every frame sent, with its fate. */
  readonly log: (FrameInFlight & { readonly fate: Required<Fate> })[] = [];
  readonly #options: Required<NetworkOptions>;
  readonly #random: () => number;
  readonly #live = new Map<string, FakeMessenger>();
  #rules: FaultRule[] = [];
  #nextPort = 20_000;
  #nextConnection = 1;

  constructor(clock: FakeClock, options: NetworkOptions = {}) {
    this.clock = clock;
    const defaults = { seed: 1, latencyMs: 0.1, loss: 0, duplication: 0, jitterMs: 0, maxConnections: MAX_CONNECTIONS };
    this.#options = { ...defaults, ...options };
    this.#random = seededRandom(this.#options.seed);
  }

  /** A messenger bound to `endpoint`; the endpoint of one that was killed or closed may be taken again. */
  bind(endpoint = `tcp://127.0.0.1:${this.#nextPort++}`): FakeMessenger {
    if (this.#live.has(endpoint)) throw new Error(`${endpoint} is in use`);
    const messenger = new FakeMessenger(this, endpoint, this.#options.maxConnections);
    this.#live.set(endpoint, messenger);
    return messenger;
  }

  /** @returns a function that removes the rule */
  addRule(rule: FaultRule): () => void {
    this.#rules.push(rule);
    return () => {
      this.#rules = this.#rules.filter((other) => other !== rule);
    };
  }

  /** Drops the next `count` frames of this message type. */
  dropNext(type: ReceivedMessage['type'], count = 1): void {
    let left = count;
    this.addRule((frame) => {
      if (left === 0 || frame.message.type !== type) return null;
      left--;
      return DROP;
    });
  }

  /** The process is gone: nothing is sent or received any more, and whoever had sent to it notices. */
  kill(endpoint: string): void {
    const dead = this.#live.get(endpoint);
    if (dead === undefined) throw new Error(`${endpoint} is not bound`);
    dead.die();
    this.#unbind(endpoint);
  }

  /** Breaks the connection from `from` to `to` without killing either: frames under way are lost, `from` notices. */
  breakConnection(from: string, to: string): void {
    this.#live.get(from)?.loseConnection(to);
  }

  /** Types of the frames sent so far, e.g. for an expectation; `filter` narrows. */
  sentTypes(filter: (frame: FrameInFlight) => boolean = () => true): string[] {
    return this.log.filter(filter).map((frame) => frame.message.type);
  }

  /** What the process at `from` might say as well: on its own connection, past rules and log. It has to have sent something to `to` before. */
  sayAs(from: string, to: string, bytes: Uint8Array): void {
    const origin = this.originOf(from, to);
    this.clock.setTimer(this.#options.latencyMs, () => this.#live.get(to)?.deliver(bytes.slice(), origin));
  }

  /** How the process at `to` sees frames of the one at `from`. */
  originOf(from: string, to: string): FrameOrigin {
    const sender = this.#live.get(from);
    const connection = sender?.connectionTo(to);
    if (sender === undefined || connection === undefined) throw new Error(`${from} has no connection to ${to}`);
    return { kind: 'accepted', connection: tokenOf(sender, connection) };
  }

  /** Internal to FakeMessenger: never the same twice, for a new process at an old endpoint either. */
  nextConnection(): number {
    return this.#nextConnection++;
  }

  /** Internal to FakeMessenger: an answer on the connection that another one made to `from`. */
  transmitReply(from: FakeMessenger, token: string, bytes: Uint8Array): void {
    const to = this.#live.get(token.slice(token.indexOf('@') + 1));
    if (to === undefined || bytes.length > MAX_REPLY_BYTES) return;
    const { endpoint } = from;
    const { frame, fate } = this.#sent(from, to.endpoint, bytes);
    for (let copy = 0; copy < fate.copies; copy++) {
      this.clock.setTimer(this.#options.latencyMs + fate.delayMs, () => {
        const connection = to.connectionTo(endpoint);
        if (connection !== undefined && tokenOf(to, connection) === token)
          to.deliver(frame.bytes.slice(), { kind: 'dialed', endpoint });
      });
    }
  }

  /** Internal to FakeMessenger. */
  transmit(from: FakeMessenger, to: string, bytes: Uint8Array, connection: number): void {
    const { frame, fate } = this.#sent(from, to, bytes);
    for (let copy = 0; copy < fate.copies; copy++) {
      this.clock.setTimer(this.#options.latencyMs + fate.delayMs, () => {
        if (from.connectionTo(to) !== connection) return;
        this.#live.get(to)?.deliver(frame.bytes.slice(), { kind: 'accepted', connection: tokenOf(from, connection) });
      });
    }
  }

  /** Internal to FakeMessenger. */
  closed(endpoint: string): void {
    this.#unbind(endpoint);
  }

  #sent(from: FakeMessenger, to: string, bytes: Uint8Array): { frame: FrameInFlight; fate: Required<Fate> } {
    const frame: FrameInFlight = {
      from: from.endpoint,
      to,
      bytes: bytes.slice(),
      message: decodeFrame(bytes, this.versions).message,
      sentAt: this.clock.now(),
      index: this.log.length,
    };
    const fate = this.#decide(frame);
    this.log.push({ ...frame, fate });
    return { frame, fate };
  }

  #unbind(endpoint: string): void {
    this.#live.delete(endpoint);
    for (const other of this.#live.values()) other.loseConnection(endpoint);
  }

  #decide(frame: FrameInFlight): Required<Fate> {
    for (const rule of this.#rules) {
      const fate = rule(frame);
      if (fate !== null && fate !== undefined) return { copies: 1, delayMs: 0, ...fate };
    }
    const { loss, duplication, jitterMs } = this.#options;
    if (this.#random() < loss) return { copies: 0, delayMs: 0 };
    return { copies: this.#random() < duplication ? 2 : 1, delayMs: this.#random() * jitterMs };
  }
}

/** One rank's messenger in a FakeNetwork. */
export class FakeMessenger implements Messenger {
  readonly endpoint: string;
  readonly maxConnections: number;
  readonly #network: FakeNetwork;
  #state: 'open' | 'closed' = 'open';
  #onFrame: ((frame: Uint8Array, origin: FrameOrigin) => void) | null = null;
  #onDisconnect: ((endpoint: string) => void) | null = null;
  /** Peers sent to, and the number of the connection; a frame of an older connection never arrives. */
  readonly #connections = new Map<string, number>();

  constructor(network: FakeNetwork, endpoint: string, maxConnections: number) {
    this.#network = network;
    this.endpoint = endpoint;
    this.maxConnections = maxConnections;
  }

  send(endpoint: string, frame: Uint8Array): void {
    if (this.#state === 'closed') return;
    let connection = this.#connections.get(endpoint);
    if (connection === undefined) {
      connection = this.#network.nextConnection();
      this.#connections.set(endpoint, connection);
    }
    this.#network.transmit(this, endpoint, frame, connection);
  }

  reply(origin: FrameOrigin, frame: Uint8Array): void {
    if (this.#state === 'closed') return;
    if (origin.kind === 'dialed') this.send(origin.endpoint, frame);
    else this.#network.transmitReply(this, origin.connection, frame);
  }

  onFrame(listener: (frame: Uint8Array, origin: FrameOrigin) => void): void {
    this.#onFrame = listener;
  }

  onDisconnect(listener: (endpoint: string) => void): void {
    this.#onDisconnect = listener;
  }

  forget(endpoint: string): void {
    this.#connections.delete(endpoint);
  }

  async close(): Promise<void> {
    if (this.#state === 'closed') return;
    this.#state = 'closed';
    this.#network.closed(this.endpoint);
  }

  connectionTo(endpoint: string): number | undefined {
    return this.#connections.get(endpoint);
  }

  deliver(frame: Uint8Array, origin: FrameOrigin): void {
    if (this.#state === 'open') this.#onFrame?.(frame, origin);
  }

  die(): void {
    this.#state = 'closed';
    this.#connections.clear();
  }

  /** The notice comes through the clock, as everything a messenger reports does. */
  loseConnection(endpoint: string): void {
    if (this.#state === 'closed' || !this.#connections.delete(endpoint)) return;
    this.#network.clock.setTimer(0, () => {
      if (this.#state === 'open') this.#onDisconnect?.(endpoint);
    });
  }
}

function tokenOf(from: FakeMessenger, connection: number): string {
  return `${connection}@${from.endpoint}`;
}
