import { GrowingCacheManager } from '../../../cache/growing-cache-manager.js';
import type { KvCacheManager, LayerGroup } from '../../../cache/kv-cache-manager.js';
import { ReservingCacheManager } from '../../../cache/reserving-cache-manager.js';
import { InternalError } from '../../../errors.js';
import { createRequest } from '../../../executor/create-request.js';
import type { LlmRequest } from '../../../executor/request.js';
import type { BlockRun } from '../../../geometry/block-run.js';
import { buildPageTable, mapPeer, type PeerMapping, planSlice, type TransferPlan } from '../../../mapping/index.js';
import { requestSlice, sourceRuns } from '../../../session/slice-source.js';
import { SeededRandom, shuffle } from '../seeded-random.js';

const TOKENS_PER_BLOCK = 32;
const SHAPE = { kvHeads: 8, headDim: 128, dtype: 'bfloat16', poolLayout: 'per-layer', blockLayout: 'HND' } as const;
const REQUEST_ID = 1;

const MANAGERS = { growing: GrowingCacheManager, reserving: ReservingCacheManager } as const;
export type ManagerName = keyof typeof MANAGERS;

export interface PromptShape {
  /** Default `growing`. */
  readonly manager?: ManagerName;
  readonly promptTokens: number;
  readonly chunkTokens: number;
  readonly layers: number;
  readonly windowTokens: number;
}

/**
 * Role: a prompt whose last chunk was just computed, on a real cache manager, with a receiver that asked for all of it.
 * Why: no page is touched, so that what is measured is the work per slice and nothing else.
 */
export class PromptTail {
  readonly #cache: KvCacheManager;
  readonly #request: LlmRequest;
  readonly #mapping: PeerMapping;
  readonly #destinationRuns: readonly BlockRun[];

  constructor({ manager = 'growing', promptTokens, chunkTokens, layers, windowTokens }: PromptShape) {
    const blocks = Math.ceil(promptTokens / TOKENS_PER_BLOCK);
    const layerIds = Array.from({ length: layers }, (_, layer) => layer);
    const group = (windowSize: number | null, odd: number): LayerGroup => ({
      kind: 'attention',
      windowSize,
      tokensPerBlock: TOKENS_PER_BLOCK,
      layers: layerIds.filter((layer) => layer % 2 === odd),
      slotCount: blocks,
    });
    const layerGroups = [group(null, 0), group(windowTokens, 1)];
    this.#cache = new MANAGERS[manager]({ tokensPerBlock: TOKENS_PER_BLOCK, layerGroups });
    this.#request = createRequest({
      id: REQUEST_ID,
      promptTokens: new Uint32Array(promptTokens),
      maxTokens: 1,
      transferPolicy: { pipelined: true, earlyPrefix: false },
    });
    const blockHashes = Array.from({ length: Math.floor(promptTokens / TOKENS_PER_BLOCK) }, (_, block) => `${block}`);
    this.#cache.addRequest(REQUEST_ID, { promptLen: promptTokens, blockHashes });
    for (let begin = 0; begin < promptTokens; begin += chunkTokens) {
      this.#cache.markComputed(REQUEST_ID, begin);
      this.#request.chunkStart = begin;
      this.#request.chunkEnd = Math.min(promptTokens, begin + chunkTokens);
      if (!this.#cache.ensureCapacity(REQUEST_ID, this.#request.chunkEnd)) {
        throw new InternalError(`a pool of ${blocks} slots does not hold ${this.#request.chunkEnd} tokens`);
      }
    }
    const { table } = buildPageTable({ ...SHAPE, groups: layerGroups });
    this.#mapping = mapPeer(table, table);
    this.#destinationRuns = layerGroups.map((_, seed) => ({
      begin: 0,
      slots: shuffle(
        Int32Array.from({ length: blocks }, (__, slot) => slot),
        new SeededRandom(BigInt(seed + 1)),
      ),
    }));
  }

  /** All that a slice costs per layer group and block before it is handed to the agent: its bounds, its slots, its plan. */
  planLastSlice(): TransferPlan {
    const slice = requestSlice(this.#request, TOKENS_PER_BLOCK, false);
    if (slice === null) throw new InternalError('the last chunk sends no slice');
    return planSlice(this.#mapping, sourceRuns(this.#cache, this.#request, slice), this.#destinationRuns);
  }
}
