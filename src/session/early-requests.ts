import type { Clock } from '../clock.js';
import type { RequestData } from '../wire/messages.js';
import type { Peer } from './peer.js';
import { SharedBoundedMap } from './shared-bounded-map.js';

/** Requests whose cancel came before they did. Who cancels much pushes out its own. */
const REMEMBERED_CANCELS = 16384;
/** Peers that cancelled one of them: all but one guessed its id, unless they are of one instance. */
const MAX_CANCELLERS = 8;
/** REQUEST_DATA of requests that are not here yet. A receiver beyond it is told so, and repeats until there is room, or cancels. */
const MAX_EARLY_REQUESTS = 16384;
/** Slots that they name together: 64 MiB. */
const MAX_EARLY_SLOTS = 16 * 1024 * 1024;
/** One peer gets this part of both, so that it cannot keep the others out. */
const PEER_PART = 1 / 8;

export interface EarlyRequest {
  readonly peer: Peer;
  readonly message: RequestData;
  readonly expiresAtMs: number;
}

/** A peer gave up before the request came. */
export interface EarlyCancel {
  readonly peer: Peer;
  readonly message: string;
}

interface Load {
  requests: number;
  slots: number;
}

/** Role: what generation ranks said of requests before the executor brought them. Bounded, and swept by each one's own deadline. */
export class EarlyRequests {
  readonly #clock: Clock;
  readonly #maxWaitMs: number;
  readonly #requests = new Map<bigint, Map<bigint, EarlyRequest>>();
  readonly #byTicket = new Map<bigint, EarlyRequest>();
  readonly #cancels = new SharedBoundedMap<bigint, readonly EarlyCancel[]>(REMEMBERED_CANCELS);
  readonly #load: Load = { requests: 0, slots: 0 };
  readonly #loads = new Map<Peer, Load>();

  /** @param maxWaitMs what a question waits at most, whatever its receiver says */
  constructor(clock: Clock, maxWaitMs: number) {
    this.#clock = clock;
    this.#maxWaitMs = maxWaitMs;
  }

  get count(): number {
    return this.#load.requests;
  }

  /** Peers with a question here. */
  get peerCount(): number {
    return this.#loads.size;
  }

  has(rid: bigint, ticket: bigint): boolean {
    return this.#byTicket.get(ticket)?.message.rid === rid;
  }

  of(ticket: bigint): EarlyRequest | undefined {
    return this.#byTicket.get(ticket);
  }

  /** @returns why there is no room: the table's, or this peer's part of it, is full */
  keep(peer: Peer, message: RequestData): 'kept' | 'full' | 'peer_full' {
    const { rid, ticket, timeLeftMs } = message;
    if (this.has(rid, ticket)) return 'kept';
    const slots = slotsOf(message);
    if (isFull(this.#load, slots, 1)) return 'full';
    const load = this.#loads.get(peer) ?? { requests: 0, slots: 0 };
    if (isFull(load, slots, PEER_PART)) return 'peer_full';
    this.#add({ peer, message, expiresAtMs: this.#clock.now() + Math.min(timeLeftMs, this.#maxWaitMs) });
    return 'kept';
  }

  /** One that was taken, and waits for the rest of its time: there is room, because it has just gone. */
  keepAgain(entry: EarlyRequest): void {
    this.#add(entry);
  }

  #add(entry: EarlyRequest): void {
    const { peer, message } = entry;
    const { rid, ticket } = message;
    const load = this.#loads.get(peer) ?? { requests: 0, slots: 0 };
    const entries = this.#requests.get(rid) ?? new Map<bigint, EarlyRequest>();
    entries.set(ticket, entry);
    this.#requests.set(rid, entries);
    this.#byTicket.set(ticket, entry);
    this.#loads.set(peer, load);
    for (const each of [this.#load, load]) {
      each.requests += 1;
      each.slots += slotsOf(message);
    }
  }

  take(rid: bigint): EarlyRequest[] {
    const entries = [...(this.#requests.get(rid)?.values() ?? [])];
    this.#requests.delete(rid);
    for (const entry of entries) this.#gone(entry);
    return entries;
  }

  /**
   * Remembered unless somebody else asked for the same request: nobody cancels what is not his.
   * @param isOurs whether another asker is of one instance with the canceller, so that the request is cancelled for both
   * @returns the questions that end with it
   */
  cancel(
    rid: bigint,
    peer: Peer,
    ticket: bigint,
    message: string,
    isOurs: (asker: Peer) => boolean = () => false,
  ): EarlyRequest[] {
    this.#dropWhere(rid, (entry) => entry.peer === peer && entry.message.ticket === ticket);
    const others = [...(this.#requests.get(rid)?.values() ?? [])];
    if (!others.every((entry) => isOurs(entry.peer))) return [];
    this.keepCancel(rid, { peer, message });
    return this.take(rid);
  }

  keepCancel(rid: bigint, cancel: EarlyCancel): void {
    const cancels = [...(this.#cancels.get(rid) ?? []), cancel].slice(-MAX_CANCELLERS);
    this.#cancels.set(rid, cancels, cancel.peer.endpoint);
  }

  takeCancels(rid: bigint): readonly EarlyCancel[] {
    const cancels = this.#cancels.get(rid) ?? [];
    this.#cancels.delete(rid);
    return cancels;
  }

  askers(rid: bigint): Peer[] {
    return [...(this.#requests.get(rid)?.values() ?? [])].map(({ peer }) => peer);
  }

  dropPeer(peer: Peer): void {
    if (!this.#loads.has(peer)) return;
    for (const rid of [...this.#requests.keys()]) this.#dropWhere(rid, (entry) => entry.peer === peer);
  }

  /** Forgets the questions whose time is over, and says which. */
  sweep(): EarlyRequest[] {
    const expired: EarlyRequest[] = [];
    if (this.#requests.size === 0) return expired;
    const now = this.#clock.now();
    for (const rid of [...this.#requests.keys()])
      this.#dropWhere(rid, (entry) => {
        const isOver = now >= entry.expiresAtMs;
        if (isOver) expired.push(entry);
        return isOver;
      });
    return expired;
  }

  #dropWhere(rid: bigint, gone: (entry: EarlyRequest) => boolean): void {
    const entries = this.#requests.get(rid);
    if (entries === undefined) return;
    for (const [ticket, entry] of entries) {
      if (!gone(entry)) continue;
      entries.delete(ticket);
      this.#gone(entry);
    }
    if (entries.size === 0) this.#requests.delete(rid);
  }

  #gone({ peer, message }: EarlyRequest): void {
    this.#byTicket.delete(message.ticket);
    const load = this.#loads.get(peer);
    if (load === undefined) return;
    for (const each of [this.#load, load]) {
      each.requests -= 1;
      each.slots -= slotsOf(message);
    }
    if (load.requests === 0) this.#loads.delete(peer);
  }
}

function slotsOf({ runs }: RequestData): number {
  return runs.reduce((sum, run) => sum + run.slots.length, 0);
}

function isFull({ requests, slots }: Load, moreSlots: number, part: number): boolean {
  return requests >= MAX_EARLY_REQUESTS * part || slots + moreSlots > MAX_EARLY_SLOTS * part;
}
