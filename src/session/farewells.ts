import type { Clock } from '../clock.js';
import { KvTransceiverError } from '../errors.js';
import { type LlmRequest, requestKey } from '../executor/request.js';
import type { RankInfo } from '../mapping/index.js';
import { clipText } from './clip-text.js';
import type { ControlChannel } from './control-channel.js';
import type { Counters } from './counters.js';
import type { Peer } from './peer.js';
import { Repeater } from './repeater.js';
import type { RxSession } from './rx-session.js';
import { chooseWriters } from './writer-choice.js';

/** Farewells at once; what exceeds it is left to the clocks of the other side. */
const MAX_FAREWELLS = 4096;

interface Farewell {
  readonly rid: bigint;
  /** Of the writer that is told; of any rank of its instance while it is not known who writes. */
  readonly endpoint: string;
  /** Null: the rank at `endpoint` has to say first who writes. */
  readonly ticket: bigint | null;
  readonly ctxDpRank: number | null;
  readonly reason: string;
  readonly expiresAtMs: number;
}

export interface FarewellsOptions {
  readonly self: RankInfo;
  readonly channel: ControlChannel;
  readonly clock: Clock;
  readonly counters: Counters;
  readonly limits: { readonly transferQueueTimeoutMs: number };
  readonly newTicket: () => bigint;
  readonly peerAt: (endpoint: string) => Peer | null;
  readonly greet: (endpoint: string) => void;
}

/**
 * Role: tells writers that were never asked, or that refused, that they will not be asked any more. A rank of several may give up before it has
 *   asked while its siblings have all they wanted, and who refuses a question may have the request all the same: without a word the context side
 *   would wait for this rank until its queue clock runs out.
 * Ownership: nothing but a line per writer; pages do not wait for the answer, because nothing was asked for that could write them.
 * Ordering: a writer that is no peer yet is greeted first. Repeated until its report comes, for at most the time that it would wait.
 */
export class Farewells {
  readonly #o: FarewellsOptions;
  readonly #repeater: Repeater;
  readonly #open = new Map<string, Farewell>();

  constructor(options: FarewellsOptions) {
    this.#o = options;
    this.#repeater = new Repeater(options.clock);
  }

  get count(): number {
    return this.#open.size;
  }

  /**
   * The receive has ended without having completed.
   * @param unreachable an endpoint that has just refused this rank or did not answer it
   */
  begin(session: RxSession, reason: string, unreachable: string | null): void {
    const { instance, infoEndpoint, assigned } = session;
    const common = this.#about(session.request, reason);
    if (instance === null) {
      if (infoEndpoint !== unreachable) this.#add({ ...common, endpoint: infoEndpoint, ticket: null });
      return;
    }
    for (const writer of session.writers) {
      if (writer.endpoint === unreachable) continue;
      if (assigned !== null && !assigned.writers.includes(writer)) continue;
      // The answer to its ticket is the refusal, for ever: what is said now needs one of its own.
      if (writer.refusedOnly) this.#add({ ...common, endpoint: writer.endpoint, ticket: this.#o.newTicket() });
      else if (!writer.asked) this.#add({ ...common, endpoint: writer.endpoint, ticket: writer.ticket });
    }
  }

  /** A request that is over before a receive of it began. */
  beginUnasked(request: LlmRequest, reason: string): void {
    const endpoint = request.disagg?.ctxInfoEndpoint ?? null;
    if (endpoint !== null) this.#add({ ...this.#about(request, reason), endpoint, ticket: null });
  }

  onPeerReady(peer: Peer): void {
    for (const farewell of [...this.#open.values()])
      if (farewell.endpoint === peer.endpoint) this.#tell(farewell, peer);
  }

  onPeerRefused(endpoint: string): void {
    for (const farewell of [...this.#open.values()]) if (farewell.endpoint === endpoint) this.#remove(farewell);
  }

  /** A restarted process knows nothing of the request; one that was cut off is told when it is back. */
  onPeerLost(peer: Peer): void {
    let waits = false;
    for (const farewell of [...this.#open.values()]) {
      if (farewell.endpoint !== peer.endpoint) continue;
      this.#repeater.stop(keyOf(farewell));
      waits = true;
    }
    if (waits) this.#o.greet(peer.endpoint);
  }

  /** @returns false when the report answers no farewell */
  onReport(peer: Peer, ticket: bigint): boolean {
    // Naming a ticket costs more than all the rest, and there is seldom a farewell.
    const farewell = this.#open.size === 0 ? undefined : this.#open.get(ticket.toString());
    if (farewell?.endpoint !== peer.endpoint) return false;
    this.#remove(farewell);
    return true;
  }

  sweep(): void {
    if (this.#open.size === 0) return;
    const now = this.#o.clock.now();
    for (const farewell of [...this.#open.values()]) {
      if (now < farewell.expiresAtMs) continue;
      this.#o.counters.add('farewells_unanswered');
      this.#remove(farewell);
    }
  }

  close(): void {
    this.#repeater.stopAll();
    this.#open.clear();
  }

  #about(request: LlmRequest, reason: string): Pick<Farewell, 'rid' | 'ctxDpRank' | 'reason' | 'expiresAtMs'> {
    return {
      rid: requestKey(request),
      ctxDpRank: request.disagg?.ctxDpRank ?? null,
      reason: clipText(reason),
      expiresAtMs: this.#o.clock.now() + this.#o.limits.transferQueueTimeoutMs,
    };
  }

  #add(farewell: Farewell): void {
    if (this.#open.size >= MAX_FAREWELLS) {
      this.#o.counters.add('farewells_full');
      return;
    }
    this.#open.set(keyOf(farewell), farewell);
    const peer = this.#o.peerAt(farewell.endpoint);
    if (peer === null) this.#o.greet(farewell.endpoint);
    else this.#tell(farewell, peer);
  }

  #tell(farewell: Farewell, peer: Peer): void {
    const { rid, ticket, endpoint, reason } = farewell;
    if (ticket === null) {
      this.#remove(farewell);
      this.#addWriters(farewell, peer);
      return;
    }
    const { channel } = this.#o;
    this.#repeater.start(keyOf(farewell), () =>
      channel.send(endpoint, { type: 'CANCEL', rid, ticket, from: 'generation', endpoint: channel.endpoint, reason }),
    );
  }

  #addWriters(farewell: Farewell, peer: Peer): void {
    try {
      for (const { writers } of chooseWriters(this.#o.self, peer.info, farewell.ctxDpRank))
        for (const { endpoint } of writers) this.#add({ ...farewell, endpoint, ticket: this.#o.newTicket() });
    } catch (cause) {
      // Of an instance that does not fit nobody waits for this rank.
      if (!(cause instanceof KvTransceiverError)) throw cause;
    }
  }

  #remove(farewell: Farewell): void {
    this.#repeater.stop(keyOf(farewell));
    this.#open.delete(keyOf(farewell));
  }
}

/** Several requests may wait for one rank to say who writes. */
function keyOf({ rid, endpoint, ticket }: Farewell): string {
  return ticket === null ? `${rid}@${endpoint}` : ticket.toString();
}
