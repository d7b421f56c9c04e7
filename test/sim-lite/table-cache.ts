import type {
  CacheGroupStats,
  CachePrompt,
  KvCacheManager,
  LayerGroup,
  RequestId,
} from '../../src/cache/kv-cache-manager.js';
import { StateError } from '../../src/errors.js';
import type { BlockRun } from '../../src/geometry/block-run.js';

/** A cache manager for session tests: slots are set by the test, pins are counted, nothing else happens. */
export class TableCache implements KvCacheManager {
  readonly tokensPerBlock: number;
  readonly layerGroups: readonly LayerGroup[];
  readonly pins = new Set<RequestId>();
  /** Pin and unpin calls in order, for exactly-once checks. */
  readonly history: string[] = [];
  readonly #slots = new Map<RequestId, readonly number[]>();

  constructor(layerGroups: readonly LayerGroup[], tokensPerBlock: number) {
    this.layerGroups = layerGroups;
    this.tokensPerBlock = tokensPerBlock;
  }

  /** The same slots in every group. */
  place(request: RequestId, slots: readonly number[]): void {
    this.#slots.set(request, slots);
  }

  addRequest(_request: RequestId, _prompt: CachePrompt): { readonly prepopulatedLen: number } {
    return { prepopulatedLen: 0 };
  }

  ensureCapacity(): boolean {
    return true;
  }

  markComputed(): void {}

  getBlockIdsRange(request: RequestId, _group: number, begin: number, end: number): BlockRun {
    const slots = this.#slots.get(request) ?? [];
    if (end > slots.length)
      throw new RangeError(`[${begin}, ${end}) is beyond the ${slots.length} blocks of ${request}`);
    return { begin, slots: Int32Array.from(slots.slice(begin, end)) };
  }

  pin(request: RequestId): void {
    if (this.pins.has(request)) throw new StateError(`request ${request} is pinned`);
    this.pins.add(request);
    this.history.push(`pin ${request}`);
  }

  unpin(request: RequestId): void {
    if (!this.pins.delete(request)) throw new StateError(`request ${request} is not pinned`);
    this.history.push(`unpin ${request}`);
  }

  isPinned(request: RequestId): boolean {
    return this.pins.has(request);
  }

  freeRequest(): void {}

  stats(): readonly CacheGroupStats[] {
    return [];
  }
}
