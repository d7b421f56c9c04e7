import type { Clock } from '../clock.js';
import type { KvTransceiverError } from '../errors.js';
import type { CacheTransceiver } from '../session/cache-transceiver.js';
import type { CallbackGuard } from '../session/callback-guard.js';
import type { CacheAdmission } from './cache-admission.js';
import type { EventSink, RequestOutcome } from './executor-events.js';
import type { RequestEvent } from './request-states.js';
import type { Entry, RequestTable } from './request-table.js';

export interface RequestEndingsOptions {
  readonly clock: Clock;
  readonly guard: CallbackGuard;
  readonly table: RequestTable;
  readonly admission: CacheAdmission;
  readonly transceiver: CacheTransceiver;
  readonly events: EventSink;
}

/** Several ranks that act alike: none ends a request by itself. */
export interface SharedEndings {
  /** False: the failure takes effect now. */
  defersFailure(entry: Entry, error: KvTransceiverError): boolean;
  ended(entry: Entry): void;
}

/**
 * Role: the only way a request ends: outcome, then its blocks, then the caller hears, each once.
 * Ordering: a request whose pages forwards are writing gets its outcome at once and gives the pages up when the last of them ended. Its
 *   caller hears then, too, or when the executor closes and does not wait for them any more.
 */
export class RequestEndings {
  readonly #o: RequestEndingsOptions;
  #ranks: SharedEndings | null = null;

  constructor(options: RequestEndingsOptions) {
    this.#o = options;
  }

  /** From now on failures are agreed with the other ranks. */
  shareWith(ranks: SharedEndings): void {
    this.#ranks = ranks;
  }

  complete(entry: Entry): void {
    this.#end(entry, entry.role === 'context' ? 'transfer_completed' : 'finished', 'completed');
  }

  cancel(entry: Entry): void {
    this.#end(entry, entry.role === 'context' ? 'context_cancelled' : 'generation_cancelled', 'cancelled');
  }

  /** The transfer itself ended, or there is none: nobody else has to be told. */
  fail(entry: Entry, error: KvTransceiverError): void {
    if (entry.outcome !== null || this.#ranks?.defersFailure(entry, error) === true) return;
    entry.request.error = error;
    this.#end(entry, 'failed', 'failed');
  }

  /** The executor gives up on a request that the other side may wait for: it hears of it, also when no transfer has begun here. */
  abandon(entry: Entry, error: KvTransceiverError): void {
    if (entry.outcome !== null) return;
    if (isAwaited(entry)) this.tellOther(entry, error.message);
    this.fail(entry, error);
  }

  /** The other side hears that the request is over. Whatever the transceiver says: here it is, and those behind it have their turn. */
  tellOther({ request }: Entry, reason: string): void {
    this.#o.guard.run(`the cancel of request ${request.id}`, () => this.#o.transceiver.cancelRequest(request, reason));
  }

  /** Gives up the pages of an ended request and tells the caller. */
  release(entry: Entry): void {
    const { request, outcome } = entry;
    if (outcome === null) return;
    // Whatever the cache manager says: the request is over, and its caller hears that.
    this.#o.guard.run(`the pages of request ${request.id}`, () => this.#o.admission.free(request));
    this.#o.table.remove(entry);
    this.#ranks?.ended(entry);
    this.tell(entry);
  }

  /** The caller hears of the end, once: with the release, or before it of one whose pages a forward holds that may never end. */
  tell(entry: Entry): void {
    const { request, outcome, events } = entry;
    if (outcome === null || entry.isTold) return;
    entry.isTold = true;
    this.#o.events.emit(events, 'onFinished', request, outcome, this.#o.clock.now());
  }

  #end(entry: Entry, event: RequestEvent, outcome: RequestOutcome): void {
    this.#o.table.advance(entry, event);
    entry.outcome = outcome;
    if (entry.stepsInFlight === 0) this.release(entry);
  }
}

/** Whether the other side may wait for this request: one that was not asked for yet, too. */
export function isAwaited(entry: Entry): boolean {
  return hasTransfer(entry) || (entry.role === 'generation' && entry.request.state === 'DISAGG_GENERATION_INIT');
}

/** Whether the transceiver may know the request. A context request counts from its submission: its receivers may have asked already. */
function hasTransfer(entry: Entry): boolean {
  if (entry.role === 'context') return true;
  return entry.role === 'generation' && entry.request.state === 'DISAGG_GENERATION_TRANS_IN_PROGRESS';
}
