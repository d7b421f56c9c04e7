import type { KvCacheManager, RequestId } from '../cache/kv-cache-manager.js';
import { StateError } from '../errors.js';
import { staleBlockEnd } from '../geometry/stale-block-end.js';
import { ownedBlocks } from '../mapping/index.js';
import { PartedMap } from '../parted-map.js';
import { ALL_BLOCKS, type ContextParallelPlace } from './group-run.js';
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
 * Invariant: pins held = requests whose transfers may still touch their pages, here or, where they are shared, on any rank (I1). What was
 *   gathered out of them (bounce) does not touch them any more, though its transfer goes on.
 */
export class TransferLedger {
  readonly #cache: KvCacheManager;
  readonly #onReleased: () => void;
  readonly #place: ContextParallelPlace;
  readonly #holds = new PartedMap<RequestId, HoldState>();
  readonly #shared = new Set<RequestId>();
  #onDrained: ((request: RequestId) => void) | null = null;

  /**
   * @param onReleased pages became free, so whoever waits for blocks may look again
   * @param place default: the cache manager counts every block. A context parallel rank's counts only its own
   */
  constructor(cache: KvCacheManager, onReleased: () => void = () => {}, place: ContextParallelPlace = ALL_BLOCKS) {
    this.#cache = cache.whole ?? cache;
    this.#onReleased = onReleased;
    this.#place = place;
  }

  /** Requests whose pages a transfer of this rank may touch. */
  get heldCount(): number {
    return this.#holds.size;
  }

  /** The requests, and how far each hold is. */
  get holdStates(): Iterable<[RequestId, HoldState]> {
    return this.#holds;
  }

  holds(request: RequestId): boolean {
    return this.#holds.has(request);
  }

  /**
   * At the first slice, early prefix included; later calls for a held request change nothing.
   * @param promptLen what of a windowed group no run of this prompt will name is not held. Default: every block of the prompt is
   */
  acquire(request: RequestId, promptLen?: number): void {
    if (this.#holds.has(request)) return;
    if (!this.#shared.has(request)) this.#pin(request, promptLen);
    this.#holds.set(request, 'held');
  }

  /** @throws StateError when the request is not held, or was completed before */
  complete(request: RequestId): void {
    this.#holds.set(request, this.#next(request, 'complete'));
  }

  /**
   * Nothing of the transfer touches the pages any more: unpins, unless the ranks share the hold.
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
  share(request: RequestId, promptLen?: number): void {
    if (this.#shared.has(request)) return;
    if (!this.#holds.has(request)) this.#pin(request, promptLen);
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

  /** Runs begin with the final window (`groupRun`); the cache manager leaves out what lies beyond the prompt, and keeps sinks, by itself. */
  #pin(request: RequestId, promptLen: number | undefined): void {
    if (promptLen === undefined) {
      this.#cache.pin(request);
      return;
    }
    const { cpRank, cpSize } = this.#place;
    const firstBlocks = this.#cache.layerGroups.map(({ kind, windowSize, tokensPerBlock }) => {
      if (kind === 'state') return 0;
      const stale = staleBlockEnd(promptLen, windowSize, tokensPerBlock);
      return ownedBlocks(stale, Math.max(stale, Math.ceil(promptLen / tokensPerBlock)), cpRank, cpSize).begin;
    });
    this.#cache.pin(request, firstBlocks);
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
