import { ArgumentError, RequestTooLargeError, StateError } from '../errors.js';
import type { BlockRun } from '../geometry/block-run.js';
import { assertCount, assertInterval, blocksCovering, blocksFilledBy } from '../geometry/bounds.js';
import { staleBlockEnd } from '../geometry/stale-block-end.js';
import { BlockTable } from './block-table.js';
import type { CacheGroupStats, CachePrompt, KvCacheManager, LayerGroup, RequestId } from './kv-cache-manager.js';
import { matchPrefix } from './prefix-match.js';
import { SeededRandom } from './seeded-random.js';
import { SlotPool } from './slot-pool.js';

/** Shape of the pools a cache manager hands out. */
export interface GrowingCacheManagerOptions {
  /** Equal in all groups. */
  readonly tokensPerBlock: number;
  /** At least one; attention and latent groups. */
  readonly layerGroups: readonly LayerGroup[];
  /** Order in which slots are handed out. Default 1. */
  readonly seed?: number;
}

interface Resident {
  readonly prompt: CachePrompt;
  /** One per layer group. */
  readonly tables: readonly BlockTable[];
  /** Tokens `[0, computedEnd)` are final. */
  computedEnd: number;
}

/** Slots held for one request's transfer, per layer group, in the order the request got them. */
type PinnedSlots = readonly number[][];

/**
 * Role: allocates slots chunk by chunk, lets blocks go that left the window, reuses prefixes by hash.
 * Why: the shape of engines that do not reserve a whole prompt up front.
 * Ownership: each resident request owns each slot in its tables once. A pin is a hold of its own on the same slots and outlives both
 *   the window and the request.
 * Ordering: a slot's content is published only by `markComputed`, so a match never sees a block that is still being written; a
 *   request writes only blocks it allocated itself.
 */
export class GrowingCacheManager implements KvCacheManager {
  readonly tokensPerBlock: number;
  readonly layerGroups: readonly LayerGroup[];
  readonly #pools: readonly SlotPool[];
  readonly #residents = new Map<RequestId, Resident>();
  readonly #pins = new Map<RequestId, PinnedSlots>();

  /** @throws ArgumentError naming the field */
  constructor(options: GrowingCacheManagerOptions) {
    const { tokensPerBlock, layerGroups, seed = 1 } = options;
    if (!isPositive(tokensPerBlock))
      throw new ArgumentError(`tokensPerBlock must be a positive integer, got ${tokensPerBlock}`);
    if (layerGroups.length === 0) throw new ArgumentError('layerGroups: at least one layer group is needed');
    layerGroups.forEach((group, index) => {
      checkGroup(group, tokensPerBlock, `layerGroups[${index}]`);
    });
    const random = new SeededRandom(seed);
    this.tokensPerBlock = tokensPerBlock;
    this.layerGroups = layerGroups;
    this.#pools = layerGroups.map((group) => new SlotPool(group.slotCount, random));
  }

  addRequest(request: RequestId, prompt: CachePrompt): { readonly prepopulatedLen: number } {
    if (this.#residents.has(request)) throw new ArgumentError(`request ${request} is already in the cache`);
    if (this.#pins.has(request)) throw new ArgumentError(`request ${request} is still pinned by an earlier transfer`);
    this.#checkPrompt(prompt);
    this.#forEachGroup((group, _, index) => {
      const needed = blocksCovering(prompt.promptLen, this.tokensPerBlock) - this.#staleEnd(group, prompt.promptLen);
      if (needed > group.slotCount) {
        throw new RequestTooLargeError(
          `request ${request}: ${prompt.promptLen} prompt tokens need ${needed} slots of layer group ${index}, which has ${group.slotCount}: shorten the prompt or enlarge the pool`,
          { details: { request, group: index, needed, slotCount: group.slotCount } },
        );
      }
    });

    // One token must be left to compute, or no forward would produce the first output token.
    const maxBlocks = blocksFilledBy(prompt.promptLen - 1, this.tokensPerBlock);
    const matchable = this.layerGroups.map((group, index) => ({ group, pool: this.#pool(index) }));
    const hitBlocks = matchPrefix(matchable, prompt.blockHashes, maxBlocks);
    const prepopulatedLen = hitBlocks * this.tokensPerBlock;
    const tables = this.layerGroups.map((group, index) => {
      const table = new BlockTable();
      const pool = this.#pool(index);
      table.advanceTo(Math.min(this.#staleEnd(group, prepopulatedLen), hitBlocks));
      for (let ordinal = table.begin; ordinal < hitBlocks; ordinal++) {
        const slot = pool.find(prompt.blockHashes[ordinal] as string) as number;
        pool.share(slot);
        table.push(slot);
      }
      return table;
    });
    this.#residents.set(request, { prompt, tables, computedEnd: prepopulatedLen });
    return { prepopulatedLen };
  }

  ensureCapacity(request: RequestId, endToken: number, firstToken?: number): boolean {
    const resident = this.#resident(request);
    assertCount(endToken, 'endToken');
    const nextToken = firstToken ?? resident.computedEnd;
    if (firstToken !== undefined) {
      assertInterval(resident.computedEnd, firstToken, 'tokens already computed', 'firstToken');
      assertInterval(firstToken, endToken, 'firstToken', 'endToken');
    }
    const endBlock = blocksCovering(endToken, this.tokensPerBlock);
    const begins = this.layerGroups.map((group) => Math.min(this.#staleEnd(group, nextToken), endBlock));
    let fits = true;
    this.#forEachGroup((_, pool, index) => {
      const table = resident.tables[index] as BlockTable;
      const begin = begins[index] as number;
      if (endBlock <= table.end) return;
      const missing = endBlock - Math.max(begin, table.end);
      if (missing > pool.available && missing > pool.available + this.#gainByDropping(pool, table, begin)) fits = false;
    });
    if (!fits) return false;

    const pinned = this.#pins.get(request);
    this.#forEachGroup((_, pool, index) => {
      const table = resident.tables[index] as BlockTable;
      if (endBlock <= table.end) return;
      this.#dropFront(pool, table, begins[index] as number);
      while (table.end < endBlock) {
        const slot = pool.allocate();
        table.push(slot);
        if (pinned === undefined) continue;
        pool.pin(slot);
        pinned[index]?.push(slot);
      }
    });
    return true;
  }

  markComputed(request: RequestId, endToken: number): void {
    const resident = this.#resident(request);
    assertInterval(resident.computedEnd, endToken, 'tokens already computed', 'endToken');
    const { tables, prompt } = resident;
    if (endToken > (tables[0] as BlockTable).end * this.tokensPerBlock) {
      throw new RangeError(`endToken ${endToken} is beyond the blocks of request ${request}: ensureCapacity first`);
    }
    const firstNew = blocksFilledBy(resident.computedEnd, this.tokensPerBlock);
    const endNew = Math.min(blocksFilledBy(endToken, this.tokensPerBlock), prompt.blockHashes.length);
    resident.computedEnd = endToken;
    this.#forEachGroup((group, pool, index) => {
      const table = tables[index] as BlockTable;
      for (let ordinal = Math.max(firstNew, table.begin); ordinal < endNew; ordinal++) {
        pool.publish(table.slotAt(ordinal), prompt.blockHashes[ordinal] as string);
      }
      this.#dropFront(pool, table, Math.min(this.#staleEnd(group, endToken), table.end));
    });
  }

  getBlockIdsRange(request: RequestId, group: number, begin: number, end: number): BlockRun {
    const table = this.#resident(request).tables[group];
    if (table === undefined)
      throw new RangeError(`group ${group} is not one of the ${this.layerGroups.length} layer groups`);
    assertInterval(begin, end, 'begin', 'end');
    if (end > table.end) {
      throw new RangeError(`end ${end} is beyond the ${table.end} blocks of request ${request} in group ${group}`);
    }
    return table.cut(begin, end);
  }

  pin(request: RequestId): void {
    const { tables } = this.#resident(request);
    if (this.#pins.has(request)) throw new StateError(`request ${request} is already pinned`);
    const pinned = tables.map((table, index) => {
      const { slots } = table.cut(table.begin, table.end);
      for (const slot of slots) this.#pool(index).pin(slot);
      return [...slots];
    });
    this.#pins.set(request, pinned);
  }

  unpin(request: RequestId): void {
    const pinned = this.#pins.get(request);
    if (pinned === undefined) throw new StateError(`request ${request} is not pinned`);
    this.#pins.delete(request);
    pinned.forEach((slots, index) => {
      // Deepest block first: what is evicted first is then what the fewest prompts share.
      for (let i = slots.length - 1; i >= 0; i--) this.#pool(index).unpin(slots[i] as number);
    });
  }

  isPinned(request: RequestId): boolean {
    return this.#pins.has(request);
  }

  freeRequest(request: RequestId): void {
    const { tables } = this.#resident(request);
    this.#residents.delete(request);
    tables.forEach((table, index) => {
      for (let ordinal = table.end - 1; ordinal >= table.begin; ordinal--)
        this.#pool(index).release(table.slotAt(ordinal));
    });
  }

  stats(): readonly CacheGroupStats[] {
    return this.#pools.map((pool) => pool.stats());
  }

  /** Releases the blocks below `begin`. A pin keeps its own hold on them. */
  #dropFront(pool: SlotPool, table: BlockTable, begin: number): void {
    for (let ordinal = Math.min(begin, table.end) - 1; ordinal >= table.begin; ordinal--) {
      pool.release(table.slotAt(ordinal));
    }
    table.advanceTo(begin);
  }

  /** Slots that `#dropFront` would make available. */
  #gainByDropping(pool: SlotPool, table: BlockTable, begin: number): number {
    let gain = 0;
    for (let ordinal = table.begin; ordinal < Math.min(begin, table.end); ordinal++) {
      if (pool.hasOneHolder(table.slotAt(ordinal))) gain++;
    }
    return gain;
  }

  /** First block of `group` that the token after `tokens` tokens still sees. */
  #staleEnd(group: LayerGroup, tokens: number): number {
    return staleBlockEnd(tokens, group.windowSize, this.tokensPerBlock);
  }

  #checkPrompt({ promptLen, blockHashes }: CachePrompt): void {
    if (!isPositive(promptLen)) throw new ArgumentError(`promptLen must be a positive integer, got ${promptLen}`);
    const fullBlocks = blocksFilledBy(promptLen, this.tokensPerBlock);
    if (blockHashes.length !== fullBlocks) {
      throw new ArgumentError(
        `blockHashes has ${blockHashes.length} entries for the ${fullBlocks} full blocks of the prompt`,
      );
    }
  }

  #resident(request: RequestId): Resident {
    const resident = this.#residents.get(request);
    if (resident === undefined) throw new ArgumentError(`request ${request} is not in the cache`);
    return resident;
  }

  #pool(index: number): SlotPool {
    return this.#pools[index] as SlotPool;
  }

  #forEachGroup(visit: (group: LayerGroup, pool: SlotPool, index: number) => void): void {
    this.layerGroups.forEach((group, index) => {
      visit(group, this.#pool(index), index);
    });
  }
}

function checkGroup(group: LayerGroup, tokensPerBlock: number, field: string): void {
  if (group.kind === 'state')
    throw new ArgumentError(`${field}.kind: recurrent state is not supported by this cache manager`);
  if (group.tokensPerBlock !== tokensPerBlock) {
    throw new ArgumentError(`${field}.tokensPerBlock is ${group.tokensPerBlock}, the manager's is ${tokensPerBlock}`);
  }
  if (group.windowSize !== null && !isPositive(group.windowSize)) {
    throw new ArgumentError(`${field}.windowSize must be null or a positive integer, got ${group.windowSize}`);
  }
  if (!isPositive(group.slotCount) || group.slotCount > 0x7fffffff) {
    throw new ArgumentError(`${field}.slotCount must be an integer from 1 to 2^31 - 1, got ${group.slotCount}`);
  }
}

function isPositive(value: number): boolean {
  return Number.isSafeInteger(value) && value >= 1;
}
