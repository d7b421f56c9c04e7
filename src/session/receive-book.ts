import type { RequestId } from '../cache/kv-cache-manager.js';
import { PartedMap } from '../parted-map.js';
import { BoundedMap } from './bounded-map.js';
import type { Counters } from './counters.js';
import type { Peer } from './peer-registry.js';
import type { RxSession } from './rx-session.js';
import type { RxWriter } from './rx-writer.js';

/** Tickets that notes spoke of: their frames are a few milliseconds behind, and repeated for seconds. */
const REMEMBERED_NOTES = 4096;

/** What a frame of a writer says it is about. */
export interface TicketFrame {
  readonly type: string;
  readonly rid: bigint;
  readonly ticket: bigint;
}

/** A ticket belongs to one writer of one receive. */
export interface TicketHolder {
  readonly session: RxSession;
  readonly writer: RxWriter;
}

/** Role: the receives that are not released, by request and by ticket. A ticket that is not here fences off the frame that names it. */
export class ReceiveBook {
  readonly #counters: Counters;
  /** In the order in which they came: who came first asks first. */
  readonly #byRequest = new Map<RequestId, RxSession>();
  /** The newest of each id. */
  readonly #byRid = new PartedMap<bigint, RxSession>();
  readonly #byTicket = new PartedMap<bigint, TicketHolder>();
  readonly #noted = new BoundedMap<bigint, Peer>(REMEMBERED_NOTES);

  constructor(counters: Counters) {
    this.#counters = counters;
  }

  get size(): number {
    return this.#byRequest.size;
  }

  /** For a look at many of which few are touched. One that ends meanwhile is not met any more. */
  get uncopied(): Iterable<RxSession> {
    return this.#byRequest.values();
  }

  /** A copy: what is done with a session may end others. */
  get sessions(): readonly RxSession[] {
    return [...this.#byRequest.values()];
  }

  has(request: RequestId): boolean {
    return this.#byRequest.has(request);
  }

  /** The receive of this id that has no outcome yet: one that only waits for its writers to drain is over, and may be tried again. */
  openOf(rid: bigint): RxSession | undefined {
    const session = this.#byRid.get(rid);
    return session?.outcome === null ? session : undefined;
  }

  of(request: RequestId): RxSession | undefined {
    return this.#byRequest.get(request);
  }

  /** The receive that a frame is about, if its ticket is live for that request and its sender is the writer that it was given to. */
  live(peer: Peer, frame: TicketFrame): TicketHolder | null {
    const { type, ticket } = frame;
    const live = this.find(peer, frame);
    if (live !== null) return live;
    // What its writer said before and after its note is expected to come, and news to nobody.
    const isKnown = !this.#byTicket.has(ticket) && this.#noted.get(ticket) === peer;
    if (isKnown) this.#counters.add(`after_note:${type}`);
    else this.#counters.add(`stale:${type}`);
    return null;
  }

  /** The same of what nobody has said yet: it is not counted. */
  find(peer: Peer, { rid, ticket }: Pick<TicketFrame, 'rid' | 'ticket'>): TicketHolder | null {
    const live = this.#byTicket.get(ticket);
    return live === undefined || live.writer.peer !== peer || live.session.rid !== rid ? null : live;
  }

  /** This peer's agent spoke of its ticket: frames about it may come when it is over. */
  noted(peer: Peer, ticket: bigint): void {
    if (this.#byTicket.get(ticket)?.writer.peer === peer) this.#noted.set(ticket, peer);
  }

  add(session: RxSession): void {
    this.#byRequest.set(session.request.id, session);
    this.#byRid.set(session.rid, session);
  }

  /** From now on the writer's ticket is live. */
  admit(session: RxSession, writer: RxWriter): void {
    this.#byTicket.set(writer.ticket, { session, writer });
  }

  fence(writer: RxWriter): void {
    this.#byTicket.delete(writer.ticket);
  }

  remove(session: RxSession): void {
    for (const writer of session.writers) this.fence(writer);
    this.#byRequest.delete(session.request.id);
    if (this.#byRid.get(session.rid) === session) this.#byRid.delete(session.rid);
  }
}
