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
 * Ownership: a held request's blocks are pinned in the cache manager, once, until its last owner lets go. The transfer is the owner that
 *   every request has (`acquire` .. `settle`); several ranks that act alike are a second one (`share` .. `unshare`), so that pages become
 *   free at the same step on all of them.
 * Invariant: pins held = requests whose transfers may still touch memory, here or, where they are shared, on any rank (I1).
 */
export class TransferLedger {
  readonly #cache: KvCacheManager;
  readonly #onReleased: () => void;
  readonly #holds = new Map<RequestId, HoldState>();
  readonly #shared = new Set<RequestId>();
  #onDrained: ((request: RequestId) => void) | null = null;

  /** `onReleased`: pages became free, so whoever waits for blocks may look again. */
  constructor(cache: KvCacheManager, onReleased: () => void = () => {}) {
    this.#cache = cache;
    this.#onReleased = onReleased;
  }

  /** Requests whose pages a transfer of this rank may touch. */
  get heldCount(): number {
    return this.#holds.size;
  }

  holds(request: RequestId): boolean {
    return this.#holds.has(request);
  }

  /** At the first slice, early prefix included; later calls for a held request change nothing. */
  acquire(request: RequestId): void {
    if (this.#holds.has(request)) return;
    if (!this.#shared.has(request)) this.#cache.pin(request);
    this.#holds.set(request, 'held');
  }

  /** @throws StateError when the request is not held, or was completed before */
  complete(request: RequestId): void {
    this.#holds.set(request, this.#next(request, 'complete'));
  }

  /**
   * Every write is drained: unpins, unless the ranks share the hold.
   * @throws StateError when the request is not held
   */
  settle(request: RequestId): void {
    this.#next(request, 'settle');
    this.#holds.delete(request);
    if (this.#shared.has(request)) {
      this.#onDrained?.(request);
      return;
    }
    this.#release(request);
  }

  /** The ranks of the instance hold the request's blocks until all of them have drained; before `acquire`, at the same step everywhere. */
  share(request: RequestId): void {
    if (this.#shared.has(request)) return;
    if (!this.#holds.has(request)) this.#cache.pin(request);
    this.#shared.add(request);
  }

  /** All ranks have drained, or this one stands alone now: unpins unless a transfer of this rank still holds. A no-op when not shared. */
  unshare(request: RequestId): void {
    if (!this.#shared.delete(request) || this.#holds.has(request)) return;
    this.#release(request);
  }

  isShared(request: RequestId): boolean {
    return this.#shared.has(request);
  }

  /** One listener, called when a shared request's transfer has drained here; null takes it away. */
  onDrained(listener: ((request: RequestId) => void) | null): void {
    this.#onDrained = listener;
  }

  #release(request: RequestId): void {
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
