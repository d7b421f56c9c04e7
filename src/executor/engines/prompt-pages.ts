import type { ContentJob, PageContent } from '../../agent/page-content.js';
import type { KvCacheManager } from '../../cache/kv-cache-manager.js';
import type { PageTable } from '../../mapping/page-table.js';
import type { ScheduledBatch, ScheduledWork } from '../model-engine.js';
import type { LlmRequest } from '../request.js';
import { type BlockOwner, ownedRun } from './owned-run.js';

const DEFAULT_VOCABULARY_SIZE = 128_000;
const MASK_64 = (1n << 64n) - 1n;
const ALL_BLOCKS: BlockOwner = { cpSize: 1, cpRank: 0 };

/** Which pages an engine without a model writes, and what for. All parts stay their owner's. */
export interface PromptPagesOptions {
  readonly content: Pick<PageContent, 'chainTokenSeeds'>;
  readonly cache: KvCacheManager;
  readonly pageTable: PageTable;
  /** Global index of this rank's first KV head. Default 0. */
  readonly firstHead?: number;
  /** Needed for layer groups of recurrent state; see `ContentJob`. */
  readonly firstUnits?: ContentJob['firstUnits'];
  /** Of a context parallel rank, which writes only the blocks it owns. Default: all. */
  readonly owner?: BlockOwner;
  /** Default 128000. */
  readonly vocabularySize?: number;
}

/** Role: what engines without a real model have in common: known content in the pages of a chunk, and tokens made from the prompt. */
export class PromptPages {
  readonly #o: PromptPagesOptions;
  readonly #vocabularySize: bigint;
  readonly #seeds = new WeakMap<LlmRequest, BigUint64Array>();

  constructor(options: PromptPagesOptions) {
    this.#o = options;
    this.#vocabularySize = BigInt(options.vocabularySize ?? DEFAULT_VOCABULARY_SIZE);
  }

  /** What a forward writes for one chunk, one job for each layer group; read when it is called, before the cache moves on. */
  jobsOf({ request, chunkStart, chunkEnd }: ScheduledWork): ContentJob[] {
    const { cache, pageTable, firstHead = 0, firstUnits, owner = ALL_BLOCKS } = this.#o;
    const { tokensPerBlock } = cache;
    const begin = Math.floor(chunkStart / tokensPerBlock);
    const end = Math.ceil(chunkEnd / tokensPerBlock);
    const tokenSeeds = this.#seedsOf(request);
    const place = { firstHead, ...(firstUnits === undefined ? {} : { firstUnits }) };
    return cache.layerGroups.flatMap(({ kind }, group) => {
      // A windowed group's run may start later: what left the window has no page to write.
      const run = ownedRun(cache, request.id, group, begin, end, owner);
      // A state is overwritten by every chunk.
      const tokenBegin = kind === 'state' ? chunkStart : Math.max(chunkStart, run.begin * tokensPerBlock);
      if (run.slots.length === 0 || tokenBegin >= chunkEnd) return [];
      return [{ table: pageTable, group, run, tokenBegin, tokenEnd: chunkEnd, tokenSeeds, ...place }];
    });
  }

  /** A function of prompt and position alone, so that a generation server continues what an aggregate server would say. */
  sample(batch: ScheduledBatch): ReadonlyMap<LlmRequest, number> {
    const tokens = new Map<LlmRequest, number>();
    for (const { request, chunkEnd } of batch.context) {
      if (chunkEnd === request.promptTokens.length) tokens.set(request, this.#tokenAt(request, 0));
    }
    for (const { request, chunkStart } of batch.generation)
      tokens.set(request, this.#tokenAt(request, chunkStart + 1 - request.promptTokens.length));
    return tokens;
  }

  #tokenAt(request: LlmRequest, index: number): number {
    const seeds = this.#seedsOf(request);
    const last = seeds[seeds.length - 1] as bigint;
    return Number(mix64(last + BigInt(index)) % this.#vocabularySize);
  }

  #seedsOf(request: LlmRequest): BigUint64Array {
    let seeds = this.#seeds.get(request);
    if (seeds === undefined) {
      seeds = this.#o.content.chainTokenSeeds(request.promptTokens);
      this.#seeds.set(request, seeds);
    }
    return seeds;
  }
}

/** Settles when no page of the batch is moved any more; rejects with the first failure. */
export async function movesOver(batch: ScheduledBatch): Promise<void> {
  const moves = [...batch.context, ...batch.generation].flatMap(({ pagesReady }) => pagesReady?.done ?? []);
  const outcomes = await Promise.allSettled(moves);
  const failed = outcomes.find((outcome) => outcome.status === 'rejected');
  if (failed !== undefined) throw failed.reason;
}

/** The output function of splitmix64 (Steele, Lea, Flood 2014). */
function mix64(value: bigint): bigint {
  let z = (value + 0x9e3779b97f4a7c15n) & MASK_64;
  z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK_64;
  z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & MASK_64;
  return z ^ (z >> 31n);
}
