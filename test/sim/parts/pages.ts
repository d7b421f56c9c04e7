import type { LayerGroup, RequestId } from '../../../src/cache/kv-cache-manager.js';
import type { LlmRequest } from '../../../src/executor/request.js';
import { staleBlockEnd } from '../../../src/geometry/stale-block-end.js';
import { buildPageTable, type PagePool, type PageTable, rebasePageTable, withAux } from '../../../src/mapping/index.js';
import { AUX_SLOT_BYTES, AuxBuffer } from '../../../src/session/aux-buffer.js';
import type { PageLayout } from './page-layout.js';
import { blockSeeds, seedsOf, TOKENS_PER_BLOCK } from './prompts.js';
import type { MemoryGuard, SimAgent } from './sim-agent.js';
import type { WatchedCache } from './watched-cache.js';

/** One token of one layer, role and head is one 32-bit word: two bfloat16 numbers. */
const HEAD_DIM = 2;
const WORD_BYTES = 4;
const NO_WORDS = new Uint32Array(0);

/** The aux buffer, with an account of which slots are in use. */
export class WatchedAux extends AuxBuffer {
  readonly inUse = new Set<number>();

  override allocate(): number {
    const slot = super.allocate();
    this.inUse.add(slot);
    return slot;
  }

  override free(slot: number): void {
    super.free(slot);
    this.inUse.delete(slot);
  }
}

export interface PagesOptions {
  readonly agent: SimAgent;
  readonly cache: WatchedCache;
  readonly groups: readonly LayerGroup[];
  /** One per group. */
  readonly layouts: readonly PageLayout[];
  /** Which of the blocks of a prompt are here. */
  readonly cpSize: number;
  readonly cpRank: number;
  /** KV heads on this rank. */
  readonly kvHeads: number;
  readonly blockLayout: 'HND' | 'NHD';
  readonly auxSlots: number;
  readonly dtype: string;
  readonly now: () => number;
  readonly violation: (rule: string, text: string) => void;
}

/** Role: the pages of one server: their addresses, their content, and who may touch them. */
export class Pages implements MemoryGuard {
  readonly table: PageTable;
  readonly aux: WatchedAux;
  readonly #o: PagesOptions;
  readonly #auxBase: number;

  constructor(options: PagesOptions) {
    this.#o = options;
    const { agent, cache, groups, auxSlots } = options;
    const built = buildPageTable({
      groups,
      kvHeads: options.kvHeads,
      headDim: HEAD_DIM,
      latentDim: HEAD_DIM,
      dtype: options.dtype,
      poolLayout: 'per-block',
      blockLayout: options.blockLayout,
    });
    const base = agent.memory.allocate(built.sizeBytes);
    this.#auxBase = agent.memory.allocate(auxSlots * AUX_SLOT_BYTES);
    this.table = withAux(rebasePageTable(built.table, base), {
      base: this.#auxBase,
      slotBytes: AUX_SLOT_BYTES,
      slotCount: auxSlots,
    });
    this.aux = new WatchedAux(agent, this.#auxBase, auxSlots);
    cache.attach(agent.memory, this.table);
    agent.guard = this;
  }

  /** The slots of tokens `[begin, end)` in each group, in the ordinals of this rank. */
  runsOf(request: LlmRequest, begin: number, end: number): { begin: number; slots: Int32Array }[] {
    const { cache, cpSize } = this.#o;
    const row = TOKENS_PER_BLOCK * cpSize;
    return cache.layerGroups.map((_, group) =>
      cache.getBlockIdsRange(request.id, group, Math.floor(begin / row), Math.ceil(end / row)),
    );
  }

  /** What a forward step does: the words of prompt tokens `[begin, end)`, at the slots its request had when it was enqueued. */
  compute(
    request: LlmRequest,
    runs: readonly { begin: number; slots: Int32Array }[],
    begin: number,
    end: number,
  ): void {
    this.#eachToken(request, runs, begin, end, 'put');
  }

  /** Words that are not what prompt tokens `[0, endToken)` left there, windows aside. */
  wrongWords(request: LlmRequest, endToken = request.promptTokens.length): number {
    const { cache, groups, cpSize } = this.#o;
    const promptLen = request.promptTokens.length;
    const runs = groups.map((group, index) => {
      const begin = staleBlockEnd(promptLen, group.windowSize, TOKENS_PER_BLOCK);
      const end = Math.ceil(promptLen / TOKENS_PER_BLOCK / cpSize);
      return cache.getBlockIdsRange(request.id, index, Math.min(begin, end), end);
    });
    return this.#eachToken(request, runs, 0, endToken, 'look');
  }

  checkIdle(): void {
    const { cache, layouts, cpSize, cpRank } = this.#o;
    cache.checkIdle((hash, group) => {
      const seeds = blockSeeds(hash, cpSize - 1 - cpRank);
      return seeds === undefined ? null : (layouts[group]?.page(seeds) ?? null);
    });
  }

  holder(address: number): RequestId | null {
    const place = this.#locate(address);
    if (place === null) return null;
    if (place.aux) return this.aux.inUse.has(place.slot) ? -1 : null;
    return this.#o.cache.account(place.pool, place.slot)?.pinnedBy[0] ?? null;
  }

  read(address: number): string | null {
    const place = this.#locate(address);
    if (place === null) return 'a read outside every pool';
    if (place.aux) return this.aux.inUse.has(place.slot) ? null : `aux slot ${place.slot} is read after it was freed`;
    const account = this.#o.cache.account(place.pool, place.slot);
    return account !== undefined && account.pinnedBy.length > 0
      ? null
      : `slot ${place.slot} of group ${place.pool} is read after its hold ended`;
  }

  write(address: number, sizeBytes: number, holder: RequestId | null): 'ok' | 'fenced' | { readonly wrong: string } {
    const place = this.#locate(address);
    if (place === null) return { wrong: 'a write outside every pool' };
    const { pool, slot } = place;
    if (place.aux) return this.aux.inUse.has(slot) ? 'ok' : { wrong: `aux slot ${slot} is written after it was freed` };
    const account = this.#o.cache.account(pool, slot);
    if (account === undefined) return { wrong: `slot ${slot} of group ${pool} does not exist` };
    const [now] = account.pinnedBy;
    if (now === undefined || now !== holder) {
      if (this.#o.now() < account.unprovenUntilMs) return 'fenced';
      return {
        wrong: `slot ${slot} of group ${pool} was ${told(holder)} and is ${told(now ?? null)} when the bytes land`,
      };
    }
    account.writtenBytes += sizeBytes;
    const pageBytes = (this.#o.layouts[pool]?.words ?? 0) * WORD_BYTES;
    if (account.writtenBytes > pageBytes) return { wrong: `slot ${slot} of group ${pool} is written more than once` };
    return 'ok';
  }

  /** @returns how many words are not what the tokens left there */
  #eachToken(
    request: LlmRequest,
    runs: readonly { begin: number; slots: Int32Array }[],
    begin: number,
    end: number,
    act: 'put' | 'look',
  ): number {
    const { agent, layouts, cpSize, cpRank } = this.#o;
    const seeds = seedsOf(request.promptTokens);
    let wrong = 0;
    for (let group = 0; group < runs.length; group++) {
      const run = runs[group] as { begin: number; slots: Int32Array };
      const { base, slotStride, slotBytes } = this.table.pools[group] as PagePool;
      const layout = layouts[group] as PageLayout;
      let page = -1;
      let words: Uint32Array = NO_WORDS;
      for (let token = Math.max(begin, run.begin * TOKENS_PER_BLOCK * cpSize); token < end; token++) {
        const block = Math.floor(token / TOKENS_PER_BLOCK);
        if (block % cpSize !== cpRank) continue;
        const slot = run.slots[Math.floor(block / cpSize) - run.begin];
        if (slot === undefined) continue;
        if (slot !== page) {
          page = slot;
          words = agent.memory.words(base + slot * slotStride, slotBytes) as Uint32Array;
        }
        wrong += layout.token(words, token, seeds[token] as number, act);
      }
    }
    return wrong;
  }

  #locate(address: number): { readonly pool: number; readonly slot: number; readonly aux: boolean } | null {
    const { pools } = this.table;
    for (let pool = 0; pool < pools.length; pool++) {
      const { base, slotStride, slotCount } = pools[pool] as PagePool;
      const slot = Math.floor((address - base) / slotStride);
      if (slot >= 0 && slot < slotCount) return { pool, slot, aux: pool === pools.length - 1 };
    }
    return null;
  }
}

function told(holder: number | null): string {
  return holder === null ? 'nobody’s' : `held for request ${holder}`;
}
