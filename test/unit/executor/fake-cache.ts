import type { CacheGroupStats, CachePrompt, KvCacheManager, LayerGroup } from '../../../src/cache/kv-cache-manager.js';
import { ArgumentError } from '../../../src/errors.js';
import type { BlockRun } from '../../../src/geometry/block-run.js';

interface Held {
  blocks: number;
  computed: number;
}

/** Counts blocks of one full-attention group; prefix hits are scripted per request. */
export class FakeCache implements KvCacheManager {
  readonly tokensPerBlock: number;
  readonly layerGroups: readonly LayerGroup[];
  readonly #log: string[];
  readonly #slotCount: number;
  readonly #held = new Map<number, Held>();
  readonly #pinned = new Map<number, number>();
  readonly hits = new Map<number, number>();
  refusal: Error | null = null;
  /** Blocks somebody outside took. */
  stolen = 0;

  constructor(log: string[], options: { tokensPerBlock: number; slotCount: number }) {
    this.#log = log;
    this.tokensPerBlock = options.tokensPerBlock;
    this.#slotCount = options.slotCount;
    this.layerGroups = [
      {
        kind: 'attention',
        windowSize: null,
        tokensPerBlock: options.tokensPerBlock,
        layers: [0],
        slotCount: options.slotCount,
      },
    ];
  }

  get used(): number {
    let used = this.stolen;
    for (const { blocks } of this.#held.values()) used += blocks;
    for (const [request, blocks] of this.#pinned) if (!this.#held.has(request)) used += blocks;
    return used;
  }

  computed(request: number): number | undefined {
    return this.#held.get(request)?.computed;
  }

  addRequest(request: number, _prompt: CachePrompt): { readonly prepopulatedLen: number } {
    if (this.refusal !== null) throw this.refusal;
    if (this.#held.has(request)) throw new ArgumentError(`request ${request} is known`);
    const prepopulatedLen = this.hits.get(request) ?? 0;
    this.#held.set(request, { blocks: Math.floor(prepopulatedLen / this.tokensPerBlock), computed: prepopulatedLen });
    return { prepopulatedLen };
  }

  ensureCapacity(request: number, endToken: number): boolean {
    const held = this.#held.get(request) as Held;
    const blocks = Math.max(held.blocks, Math.ceil(endToken / this.tokensPerBlock));
    if (this.used + blocks - held.blocks > this.#slotCount) return false;
    held.blocks = blocks;
    return true;
  }

  markComputed(request: number, endToken: number): void {
    const held = this.#held.get(request);
    if (held === undefined) throw new ArgumentError(`markComputed of unknown request ${request}`);
    held.computed = endToken;
    this.#log.push(`computed ${request} ${endToken}`);
  }

  getBlockIdsRange(_request: number, _group: number, begin: number, end: number): BlockRun {
    return { begin, slots: Int32Array.from({ length: end - begin }, (_, index) => begin + index) };
  }

  pin(request: number): void {
    this.#pinned.set(request, (this.#held.get(request) as Held).blocks);
  }

  unpin(request: number): void {
    this.#pinned.delete(request);
  }

  isPinned(request: number): boolean {
    return this.#pinned.has(request);
  }

  freeRequest(request: number): void {
    if (!this.#held.delete(request)) throw new ArgumentError(`freeRequest of unknown request ${request}`);
    this.#log.push(`free ${request}`);
  }

  stats(): readonly CacheGroupStats[] {
    return [
      {
        slotCount: this.#slotCount,
        free: this.#slotCount - this.used,
        reusable: 0,
        pinned: [...this.#pinned.values()].reduce((sum, blocks) => sum + blocks, 0),
      },
    ];
  }
}
