import type { RequestId } from '../cache/kv-cache-manager.js';
import { type KvTransceiverError, ProtocolError } from '../errors.js';
import type { OfferedRequest } from '../rank-group/rank-report.js';
import { RankSet } from '../rank-group/rank-set.js';
import { BoundedMap } from '../session/bounded-map.js';
import type { RequestEvents } from './executor-events.js';
import { type LlmRequest, requestKey } from './request.js';
import { roleOf } from './request-states.js';

/** Offers that ended before every rank knew them, remembered for the ranks that come late. */
const REMEMBERED_OFFERS = 65_536;

/** This rank's copy of an offered request. */
export interface OwnCopy {
  readonly request: LlmRequest;
  readonly events: RequestEvents;
  readonly sinceMs: number;
}

/** How an offer ended that was never taken: by its user (null), or with an error. */
export type OfferEnd = { readonly error: KvTransceiverError | null };

interface Offer {
  readonly digest: number;
  readonly digestRank: number;
  readonly ranks: RankSet;
  /** Place in rank 0's order; Infinity until rank 0 offered it. */
  order: number;
  end: OfferEnd | null;
}

/** A request that may be handed to the loop now, or that ends without having been. */
export interface TakenOffer {
  readonly own: OwnCopy;
  readonly end: OfferEnd | null;
}

/**
 * Role: requests that some ranks have and that not all take yet.
 * Why: a request that reached only a part of the ranks must not hold up those that reached all.
 * Ordering: what becomes known to all at one step is taken in the order in which rank 0 got it; all ranks see the same reports, so all
 *   take the same.
 */
export class RankOffers {
  readonly #size: number;
  readonly #rank: number;
  readonly #offers = new Map<RequestId, Offer>();
  /** In order of arrival here. */
  readonly #own = new Map<RequestId, OwnCopy>();
  readonly #ended = new BoundedMap<RequestId, Offer>(REMEMBERED_OFFERS);
  /** What changed since the last `take`. */
  #touched = new Set<RequestId>();
  #nextOrder = 0;

  constructor(rank: number, size: number) {
    this.#rank = rank;
    this.#size = size;
  }

  /** Requests this rank holds and that are not taken. */
  get ownCount(): number {
    return this.#own.size;
  }

  hasOwn(id: RequestId): boolean {
    return this.#own.has(id);
  }

  /** Looked for among those that not all ranks have: few, and for a moment. */
  ownAs(request: LlmRequest): LlmRequest | undefined {
    const role = roleOf(request);
    // It never leaves this server.
    if (role === 'aggregate') return undefined;
    const key = requestKey(request);
    for (const own of this.#own.values())
      if (requestKey(own.request) === key && roleOf(own.request) === role) return own.request;
    return undefined;
  }

  own(id: RequestId, copy: OwnCopy): void {
    this.#own.set(id, copy);
  }

  /** Those that wait here since before `beforeMs`, the oldest first, and who lacks them. */
  *overdue(beforeMs: number): Iterable<{ readonly id: RequestId; readonly missing: string }> {
    for (const [id, { sinceMs }] of this.#own) {
      if (sinceMs > beforeMs) return;
      const missing = this.#offers.get(id)?.ranks ?? new RankSet(this.#size);
      yield { id, missing: missing.describeMissing() };
    }
  }

  offered(rank: number, { id, digest }: OfferedRequest): void {
    let offer = this.#offers.get(id) ?? this.#ended.get(id);
    if (offer === undefined || offer.ranks.has(rank)) {
      // The same rank again: an earlier request of this id ended, this is a new one.
      this.#ended.delete(id);
      offer = { digest, digestRank: rank, ranks: new RankSet(this.#size), order: Infinity, end: null };
      this.#offers.set(id, offer);
    }
    offer.ranks.add(rank);
    if (rank === 0) offer.order = this.#nextOrder++;
    if (offer.digest !== digest) {
      offer.end ??= {
        error: new ProtocolError(
          `request ${id} is not the same on rank ${offer.digestRank} and rank ${rank}; submit equal requests to all ranks under one id`,
        ),
      };
    }
    this.#touched.add(id);
  }

  /** False: this is no offer that waits, so that somebody else has to know it. */
  end(id: RequestId, end: OfferEnd): boolean {
    const offer = this.#offers.get(id);
    if (offer === undefined) return false;
    offer.end ??= end;
    this.#touched.add(id);
    return true;
  }

  /** This rank's copies of what can be taken, or has ended, since the last call. */
  take(): TakenOffer[] {
    const taken: { readonly id: RequestId; readonly offer: Offer }[] = [];
    for (const id of this.#touched) {
      const offer = this.#offers.get(id) ?? this.#ended.get(id);
      if (offer !== undefined && (offer.end !== null || offer.ranks.isFull)) taken.push({ id, offer });
    }
    this.#touched = new Set();
    taken.sort((a, b) => a.offer.order - b.offer.order || a.id - b.id);
    const result: TakenOffer[] = [];
    for (const { id, offer } of taken) {
      this.#offers.delete(id);
      if (offer.ranks.isFull) this.#ended.delete(id);
      else this.#ended.set(id, offer);
      // Not reported by this rank yet: its copy meets the end when it is.
      const own = offer.ranks.has(this.#rank) ? this.#own.get(id) : undefined;
      if (own === undefined) continue;
      this.#own.delete(id);
      result.push({ own, end: offer.end });
    }
    return result;
  }

  /** All copies of this rank, when the ranks part. */
  giveUp(): OwnCopy[] {
    const copies = [...this.#own.values()];
    this.#own.clear();
    this.#offers.clear();
    return copies;
  }
}
