import type { KvCacheManager, RequestId } from '../cache/kv-cache-manager.js';
import { StateError } from '../errors.js';
import { TransitionTable } from './transition-table.js';

export type HoldState = 'held' | 'completing' | 'settled';
export type HoldEvent = 'complete' | 'settle';

/** `complete` = the last slice was submitted: context work is over, the fabric's is not. */
export const HOLD_TRANSITIONS: TransitionTable<HoldState, HoldEvent> = new TransitionTable<HoldState, HoldEvent>(
  'transfer hold',
  {
    held: { complete: 'completing', settle: 'settled' },
    completing: { settle: 'settled' },
    settled: {},
  },
);

/**
 * Role: the one answer to "may these pages be freed?".
 * Why: pipelining separates the first read of a request's pages from the end of its work; several records that each know a part
 *   disagree sooner or later. Cancel, timeouts, executor, metrics and shutdown ask here; nothing mirrors it.
 * Ownership: a held request's blocks are pinned in the cache manager, once, until `settle`.
 * Invariant: pins held = requests whose transfers may still touch memory (I1).
 */
export class TransferLedger {
  readonly #cache: KvCacheManager;
  readonly #onReleased: () => void;
  readonly #holds = new Map<RequestId, HoldState>();

  /** `onReleased`: pages became free, so whoever waits for blocks may look again. */
  constructor(cache: KvCacheManager, onReleased: () => void = () => {}) {
    this.#cache = cache;
    this.#onReleased = onReleased;
  }

  /** Requests whose pages a transfer may touch. */
  get heldCount(): number {
    return this.#holds.size;
  }

  holds(request: RequestId): boolean {
    return this.#holds.has(request);
  }

  /** At the first slice, early prefix included; later calls for a held request change nothing. */
  acquire(request: RequestId): void {
    if (this.#holds.has(request)) return;
    this.#cache.pin(request);
    this.#holds.set(request, 'held');
  }

  /** @throws StateError when the request is not held, or was completed before */
  complete(request: RequestId): void {
    this.#holds.set(request, this.#next(request, 'complete'));
  }

  /**
   * Every write is drained: unpins.
   * @throws StateError when the request is not held
   */
  settle(request: RequestId): void {
    this.#next(request, 'settle');
    this.#holds.delete(request);
    this.#cache.unpin(request);
    this.#onReleased();
  }

  #next(request: RequestId, event: HoldEvent): HoldState {
    const state = this.#holds.get(request);
    if (state === undefined || !HOLD_TRANSITIONS.allows(state, event))
      throw new StateError(`request ${request}: cannot ${event} a hold that is ${state ?? 'not there'}`);
    return HOLD_TRANSITIONS.next(state, event);
  }
}
