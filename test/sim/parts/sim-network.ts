import { MAX_CONNECTIONS, MAX_REPLY_BYTES } from '../../../src/wire/limits.js';
import { MessageType, type ReceivedMessage } from '../../../src/wire/messages.js';
import type { FrameOrigin, Messenger } from '../../../src/wire/messenger.js';
import type { Journal } from '../core/journal.js';
import { Random } from '../core/random.js';
import type { Scheduler, SimProcess } from '../core/scheduler.js';
import { FrameRoom } from './frame-room.js';

export type MessageName = ReceivedMessage['type'];

const NAMES: readonly string[] = (() => {
  const names: string[] = [];
  for (const [name, number] of Object.entries(MessageType)) names[number] = name;
  return names;
})();

type AcceptedOrigin = Extract<FrameOrigin, { kind: 'accepted' }>;

/** What the network does to one frame. */
export interface FrameFate {
  readonly copies: number;
  readonly delayMs: number;
  /** The bytes that arrive, when not those that were sent. */
  readonly bytes?: Uint8Array;
}

export interface FrameInFlight {
  readonly from: string;
  readonly to: string;
  readonly type: MessageName;
  readonly bytes: Uint8Array;
  readonly atMs: number;
  /** Frames of this link before it. */
  readonly index: number;
  readonly random: Random;
}

/** One direction between two endpoints. */
interface Link {
  /** Frames so far. */
  index: number;
  readonly random: Random;
  readonly id: number;
}

/** Null: the frame travels as usual. */
export type FrameRule = (frame: FrameInFlight) => FrameFate | null;

const TYPE_OFFSET = 6;
const LATENCY_MS = [0.05, 0.4] as const;

/**
 * Role: the wires between simulated processes. Frames are bytes; the network looks at their type and at nothing else.
 * Ordering: none is promised: every frame has its own latency. A frame on its way survives the connection it was sent on or not, as the
 *   seed says, and may reach a later process at the same endpoint.
 */
export class SimNetwork {
  readonly #scheduler: Scheduler;
  readonly #journal: Journal;
  readonly #seed: number;
  readonly #bound = new Map<string, SimMessenger>();
  readonly #links = new Map<string, Map<string, Link>>();
  readonly #frames = new FrameRoom();
  #rule: FrameRule = () => null;
  #nextConnection = 1;

  constructor(scheduler: Scheduler, journal: Journal, seed: number) {
    this.#scheduler = scheduler;
    this.#journal = journal;
    this.#seed = seed;
  }

  setRule(rule: FrameRule): void {
    this.#rule = rule;
  }

  bind(endpoint: string, process: SimProcess): SimMessenger {
    const messenger = new SimMessenger(this, endpoint, process);
    this.#bound.set(endpoint, messenger);
    return messenger;
  }

  /** The process is gone. Peers notice soon, or not at all. */
  unbind(messenger: SimMessenger, noticed: boolean): void {
    if (this.#bound.get(messenger.endpoint) === messenger) this.#bound.delete(messenger.endpoint);
    if (!noticed) return;
    for (const other of this.#bound.values()) other.loseConnection(messenger.endpoint);
  }

  breakConnection(from: string, to: string): void {
    this.#journal.note(1, from.length, to.length, () => `connection ${from} -> ${to} breaks`);
    this.#bound.get(from)?.loseConnection(to);
  }

  /** Bytes from nowhere, as a stranger would send them. */
  inject(to: string, bytes: Uint8Array): void {
    this.#bound.get(to)?.deliver(bytes.slice(), { kind: 'accepted', connection: 'nowhere' });
  }

  /** What the process at `from` might say itself: on the connection that it has. False when it has none to `to`. */
  sayAs(from: string, to: string, bytes: Uint8Array): boolean {
    const origin = this.#bound.get(from)?.connectionTo(to);
    if (origin === undefined) return false;
    this.#bound.get(to)?.deliver(bytes.slice(), origin);
    return true;
  }

  /** A new connection from this endpoint: never the same token twice, for a new process there either. */
  connection(endpoint: string): AcceptedOrigin {
    return { kind: 'accepted', connection: `${this.#nextConnection++}@${endpoint}` };
  }

  transmit(from: SimMessenger, to: string, bytes: Uint8Array, origin: AcceptedOrigin): void {
    this.#carry(from, to, bytes, (survives, arrived) => {
      if (survives || from.connectionTo(to) === origin) this.#bound.get(to)?.deliver(arrived, origin);
    });
  }

  /** An answer on the connection that another one made to `from`. */
  transmitReply(from: SimMessenger, { connection }: AcceptedOrigin, bytes: Uint8Array): void {
    const to = connection.slice(connection.indexOf('@') + 1);
    if (bytes.length > MAX_REPLY_BYTES) return;
    this.#carry(from, to, bytes, (_, arrived) => {
      const asker = this.#bound.get(to);
      if (asker?.connectionTo(from.endpoint)?.connection === connection)
        asker.deliver(arrived, { kind: 'dialed', endpoint: from.endpoint });
    });
  }

  #carry(
    from: SimMessenger,
    to: string,
    said: Uint8Array,
    arrive: (survives: boolean, arrived: Uint8Array) => void,
  ): void {
    const bytes = this.#frames.copy(said);
    const type = (NAMES[bytes[TYPE_OFFSET] as number] ?? 'UNKNOWN') as MessageName;
    const link = this.#link(from.endpoint, to);
    const { random, index } = link;
    link.index += 1;
    const latency = random.real(...LATENCY_MS);
    const survives = random.chance(0.5);
    const frame = { from: from.endpoint, to, type, bytes, atMs: this.#scheduler.now, index, random };
    const fate = this.#rule(frame);
    const copies = fate?.copies ?? 1;
    const delayMs = fate?.delayMs ?? 0;
    this.#journal.note(
      2,
      (bytes[TYPE_OFFSET] as number) | (link.id << 8),
      bytes.length | (copies << 24),
      () => `${from.process.name} -> ${this.#nameAt(to)}  ${type}${rid(bytes)}${told(copies, delayMs)}`,
    );
    for (let copy = 0; copy < copies; copy++) {
      const arrives = latency + delayMs + (copy === 0 ? 0 : random.real(0, 5));
      const owner = this.#bound.get(to)?.process ?? null;
      this.#scheduler.at(arrives, owner === null || owner.state === 'dead' ? null : owner, () => {
        arrive(survives, this.#frames.copy(fate?.bytes ?? bytes));
      });
    }
  }

  later(process: SimProcess, ms: number, run: () => void): void {
    this.#scheduler.at(ms, process, run);
  }

  #nameAt(endpoint: string): string {
    return this.#bound.get(endpoint)?.process.name ?? endpoint;
  }

  #link(from: string, to: string): Link {
    let links = this.#links.get(from);
    if (links === undefined) {
      links = new Map();
      this.#links.set(from, links);
    }
    let link = links.get(to);
    if (link === undefined) {
      const [a, b] = [portOf(from), portOf(to)];
      link = { index: 0, random: new Random(this.#seed, 1, a, b), id: (a % 64) * 64 + (b % 64) };
      links.set(to, link);
    }
    return link;
  }
}

/** One process's messenger. */
export class SimMessenger implements Messenger {
  readonly endpoint: string;
  readonly maxConnections = MAX_CONNECTIONS;
  readonly process: SimProcess;
  readonly #network: SimNetwork;
  #open = true;
  #onFrame: (frame: Uint8Array, origin: FrameOrigin) => void = () => {};
  #onDisconnect: (endpoint: string) => void = () => {};
  readonly #connections = new Map<string, AcceptedOrigin>();

  constructor(network: SimNetwork, endpoint: string, process: SimProcess) {
    this.#network = network;
    this.endpoint = endpoint;
    this.process = process;
  }

  send(endpoint: string, frame: Uint8Array): void {
    if (!this.#open) return;
    let connection = this.#connections.get(endpoint);
    if (connection === undefined) {
      connection = this.#network.connection(this.endpoint);
      this.#connections.set(endpoint, connection);
    }
    this.#network.transmit(this, endpoint, frame, connection);
  }

  reply(origin: FrameOrigin, frame: Uint8Array): void {
    if (!this.#open) return;
    if (origin.kind === 'dialed') this.send(origin.endpoint, frame);
    else this.#network.transmitReply(this, origin, frame);
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

  close(): Promise<void> {
    if (this.#open) {
      this.#open = false;
      this.#network.unbind(this, true);
    }
    return Promise.resolve();
  }

  connectionTo(endpoint: string): AcceptedOrigin | undefined {
    return this.#connections.get(endpoint);
  }

  deliver(frame: Uint8Array, origin: FrameOrigin): void {
    if (this.#open && this.process.state !== 'dead') this.#onFrame(frame, origin);
  }

  loseConnection(endpoint: string): void {
    if (!this.#open || !this.#connections.delete(endpoint)) return;
    this.#network.later(this.process, 0.1, () => {
      if (this.#open) this.#onDisconnect(endpoint);
    });
  }
}

function portOf(endpoint: string): number {
  return Number(endpoint.slice(endpoint.lastIndexOf(':') + 1));
}

/** The request's number, which the simulator keeps in the low bits. */
function rid(bytes: Uint8Array): string {
  if (bytes.length < 24) return '';
  const value = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).readBigUInt64LE(16);
  return value === 0n ? '' : ` rid ${value.toString(16)}`;
}

function told(copies: number, delayMs: number): string {
  if (copies === 0) return '  (lost)';
  const late = delayMs > 0 ? `, ${delayMs.toFixed(1)} ms late` : '';
  return copies > 1 || late !== '' ? `  (${copies}x${late})` : '';
}
