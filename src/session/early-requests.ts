import type { Clock } from '../clock.js';
import type { RequestData } from '../wire/messages.js';
import { BoundedMap } from './bounded-map.js';
import type { Peer } from './peer-registry.js';

/** Cancels of requests that are not here yet. */
const REMEMBERED_CANCELS = 16384;
/** REQUEST_DATA of requests that are not here yet; beyond it a receiver is not answered and repeats. */
const MAX_EARLY_REQUESTS = 16384;
/** Slots that they name together: 64 MiB. */
const MAX_EARLY_SLOTS = 16 * 1024 * 1024;

export interface EarlyRequest {
  readonly peer: Peer;
  readonly message: RequestData;
  readonly expiresAtMs: number;
}

/** Role: what generation ranks said of requests before the executor brought them. Bounded, and swept by each one's own deadline. */
export class EarlyRequests {
  readonly #clock: Clock;
  readonly #requests = new Map<bigint, Map<bigint, EarlyRequest>>();
  readonly #cancels = new BoundedMap<bigint, string>(REMEMBERED_CANCELS);
  #count = 0;
  #slotCount = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get count(): number {
    return this.#count;
  }

  has(rid: bigint, ticket: bigint): boolean {
    return this.#requests.get(rid)?.has(ticket) === true;
  }

  /** False when there is no room. */
  keep(peer: Peer, message: RequestData): boolean {
    const { rid, ticket, timeLeftMs } = message;
    if (this.has(rid, ticket)) return true;
    const slots = slotsOf(message);
    if (this.#count >= MAX_EARLY_REQUESTS || this.#slotCount + slots > MAX_EARLY_SLOTS) return false;
    const entries = this.#requests.get(rid) ?? new Map<bigint, EarlyRequest>();
    entries.set(ticket, { peer, message, expiresAtMs: this.#clock.now() + timeLeftMs });
    this.#requests.set(rid, entries);
    this.#count += 1;
    this.#slotCount += slots;
    return true;
  }

  take(rid: bigint): EarlyRequest[] {
    const entries = [...(this.#requests.get(rid)?.values() ?? [])];
    this.#requests.delete(rid);
    this.#count -= entries.length;
    for (const { message } of entries) this.#slotCount -= slotsOf(message);
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
    this.#cancels.set(rid, message);
    return this.take(rid);
  }

  takeCancel(rid: bigint): string | null {
    const message = this.#cancels.get(rid) ?? null;
    this.#cancels.delete(rid);
    return message;
  }

  dropPeer(peer: Peer): void {
    for (const rid of [...this.#requests.keys()]) this.#dropWhere(rid, (entry) => entry.peer === peer);
  }

  /** Forgets the questions whose time is over, and says which. */
  sweep(): EarlyRequest[] {
    const now = this.#clock.now();
    const expired: EarlyRequest[] = [];
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
      this.#count -= 1;
      this.#slotCount -= slotsOf(entry.message);
    }
    if (entries.size === 0) this.#requests.delete(rid);
  }
}

function slotsOf({ runs }: RequestData): number {
  return runs.reduce((sum, run) => sum + run.slots.length, 0);
}
