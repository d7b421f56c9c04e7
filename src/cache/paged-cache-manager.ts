import { ArgumentError, type KvTransceiverError, RequestTooLargeError, StateError } from '../errors.js';
import type { BlockRun } from '../geometry/block-run.js';
import { assertCount, assertInterval, blocksCovering, blocksFilledBy } from '../geometry/bounds.js';
import { PartedMap } from '../parted-map.js';
import type { BlockTable } from './block-table.js';
import { GroupPages } from './group-pages.js';
import type {
  CacheAllocation,
  CacheGroupStats,
  CachePrompt,
  KvCacheManager,
  LayerGroup,
  RequestId,
} from './kv-cache-manager.js';
import { type CacheManagerOptions, checkManagerOptions, isPositive } from './manager-options.js';
import { MoveQueue } from './move-queue.js';
import type { PageMove, PagesReady } from './page-mover.js';
import { PartialIndex } from './partial-index.js';
import { type PrefixLocation, PrefixReuse } from './prefix-reuse.js';
import { arrivesWhole } from './received-block.js';
import { Resident } from './resident.js';
import { SeededRandom } from './seeded-random.js';
import { SlotList, type SlotsAction } from './slot-list.js';

/** What is held for one request's transfer. */
interface Pin {
  /** Per layer group, in the order the request got them. */
  readonly slots: readonly SlotList[];
  /** Per layer group: blocks below are not held, sinks apart. */
  readonly firstBlocks: readonly number[];
  /** Blocks from here on lie beyond the prompt. */
  readonly endBlock: number;
}

/** What one `ensureCapacity` does to one table. */
interface Growth {
  /** Where the run behind the sinks shall begin. */
  readonly begin: number;
  readonly end: number;
  /** Blocks to allocate. */
  readonly missing: number;
}

const NO_GROWTH: readonly Growth[] = [];

/**
 * Role: what the two reference managers share: slots by request, prefix reuse, pins, windows, moves between pages.
 * Why: they differ only in when they take blocks and when they let them go (`CacheAllocation`).
 * Ownership: each resident request owns each slot in its tables once. A pin is a hold of its own on the same slots and outlives both
 *   the window and the request.
 * Ordering: a slot's content is published only by `markComputed`, and not before the moves it rests on are over, so a match never sees a
 *   block that is still being written; a request writes only blocks it allocated itself.
 */
export abstract class PagedCacheManager implements KvCacheManager {
  readonly tokensPerBlock: number;
  readonly layerGroups: readonly LayerGroup[];
  readonly allocation: CacheAllocation;
  readonly #groups: readonly GroupPages[];
  readonly #moves: MoveQueue;
  readonly #reuse: PrefixReuse;
  readonly #residents = new PartedMap<RequestId, Resident>();
  readonly #pins = new PartedMap<RequestId, Pin>();
  readonly #senderTokensPerBlock: number;
  readonly #contextParallelSize: number;

  /** @throws ArgumentError naming the field */
  protected constructor(options: CacheManagerOptions, reservesPrompt: boolean) {
    checkManagerOptions(options);
    const {
      tokensPerBlock,
      layerGroups,
      seed = 1,
      mover = null,
      partialReuse = false,
      speculativeTokens = 0,
      senderTokensPerBlock = 1,
      contextParallelSize = 1,
    } = options;
    this.tokensPerBlock = tokensPerBlock;
    this.#senderTokensPerBlock = senderTokensPerBlock;
    this.#contextParallelSize = contextParallelSize;
    this.layerGroups = layerGroups;
    this.allocation = { reservesPrompt, speculativeTokens };
    const random = new SeededRandom(seed);
    const parts = partialReuse ? new PartialIndex() : null;
    this.#moves = new MoveQueue(mover, (batch, moves, error) => this.#onMovesFailed(batch, moves, error));
    this.#groups = layerGroups.map(
      (group, index) => new GroupPages(group, index, random, this.#moves, (hash) => parts?.remove(hash)),
    );
    this.#reuse = new PrefixReuse(this.#groups, parts, tokensPerBlock);
  }

  assertFits(request: RequestId, { promptLen, firstToken = 0 }: Pick<CachePrompt, 'promptLen' | 'firstToken'>): void {
    const { reservesPrompt, speculativeTokens } = this.allocation;
    const end = blocksCovering(promptLen + speculativeTokens, this.tokensPerBlock);
    this.#groups.forEach((pages, index) => {
      const needed = pages.residentCount(reservesPrompt ? firstToken : promptLen, end);
      const { slotCount } = pages.group;
      if (needed <= slotCount) return;
      throw new RequestTooLargeError(
        `request ${request}: ${promptLen} prompt tokens need ${needed} slots of layer group ${index}, which has ${slotCount}: shorten the prompt or enlarge the pool`,
        { details: { request, group: index, needed, slotCount } },
      );
    });
  }

  lookAhead(prompt: CachePrompt, blocks: number): boolean {
    checkPortion(blocks);
    this.#checkPrompt(prompt);
    return this.#reuse.lookAhead(prompt, blocks);
  }

  fetchAhead(prompt: CachePrompt, blocks: number): boolean {
    checkPortion(blocks);
    this.#checkPrompt(prompt);
    const isDone = this.#reuse.fetchAhead(prompt, blocks);
    this.#moves.flush();
    return isDone;
  }

  addRequest(request: RequestId, prompt: CachePrompt): { readonly prepopulatedLen: number } {
    if (this.#residents.has(request)) throw new ArgumentError(`request ${request} is already in the cache`);
    if (this.#pins.has(request)) throw new ArgumentError(`request ${request} is still pinned by an earlier transfer`);
    this.#checkPrompt(prompt);
    this.assertFits(request, prompt);
    const taken = this.#reuse.take(prompt);
    this.#residents.set(request, new Resident(prompt, taken, this.tokensPerBlock));
    this.#moves.flush();
    return { prepopulatedLen: taken.prepopulatedLen };
  }

  growAhead(request: RequestId, blocks: number, endToken: number, firstToken?: number): boolean {
    checkPortion(blocks);
    const resident = this.#resident(request);
    const { growths, fits } = this.#planGrowth(resident, endToken, firstToken);
    if (!fits) return true;
    let left = false;
    growths.forEach((growth, index) => {
      this.#grow(request, resident, index, growth, blocks);
      left ||= growth.missing > blocks;
    });
    this.#moves.flush();
    return !left;
  }

  ensureCapacity(request: RequestId, endToken: number, firstToken?: number): boolean {
    const resident = this.#resident(request);
    const { growths, fits, endBlock } = this.#planGrowth(resident, endToken, firstToken);
    if (!fits) return false;
    if (firstToken !== undefined && firstToken > resident.computedEnd) {
      resident.received = { begin: resident.computedEnd, end: firstToken };
    }
    growths.forEach((growth, index) => {
      this.#grow(request, resident, index, growth, Infinity);
    });
    resident.endBlock = endBlock;
    this.#moves.flush();
    return true;
  }

  pagesReady(request: RequestId): PagesReady | null {
    const resident = this.#resident(request);
    return this.#readyAfter(resident, resident.readyAfter);
  }

  prefixReady(request: RequestId): PagesReady | null {
    const resident = this.#resident(request);
    return this.#readyAfter(resident, resident.contentAfter);
  }

  /** Settles when no page is being moved any more: before that the pools must not be given up. */
  movesSettled(): Promise<void> {
    return this.#moves.settled();
  }

  /** Where the content of a prompt is; changes nothing. For routers, and for whoever wants to know what is `offloaded`. */
  locatePrefix(prompt: CachePrompt): PrefixLocation {
    this.#checkPrompt(prompt);
    return this.#reuse.locate(prompt);
  }

  markComputed(request: RequestId, endToken: number): void {
    const resident = this.#resident(request);
    assertInterval(resident.computedEnd, endToken, 'tokens already computed', 'endToken');
    if (endToken > resident.endBlock * this.tokensPerBlock) {
      throw new RangeError(`endToken ${endToken} is beyond the blocks of request ${request}: ensureCapacity first`);
    }
    resident.computedEnd = endToken;
    this.#publish(resident);
    if (this.allocation.reservesPrompt) return;
    this.#groups.forEach((pages, index) => {
      const table = resident.tables[index] as BlockTable;
      if (!pages.isState) dropFront(pages, table, Math.min(pages.staleEnd(endToken), table.end));
    });
  }

  getBlockIdsRange(request: RequestId, group: number, begin: number, end: number): BlockRun {
    const { tables, endBlock } = this.#resident(request);
    const table = tables[group];
    if (table === undefined)
      throw new RangeError(`group ${group} is not one of the ${this.layerGroups.length} layer groups`);
    assertInterval(begin, end, 'begin', 'end');
    const askedEnd = Math.min(table.end, endBlock);
    if (end > askedEnd) {
      throw new RangeError(`end ${end} is beyond the ${askedEnd} blocks of request ${request} in group ${group}`);
    }
    return table.cut(begin, end);
  }

  /**
   * The blocks reserved for speculative tokens, behind those that `ensureCapacity` was asked for. The engine may write them; they are
   * never part of a transfer.
   */
  getSpeculativeBlockIds(request: RequestId, group: number): BlockRun {
    const { tables, endBlock } = this.#resident(request);
    const table = tables[group];
    if (table === undefined)
      throw new RangeError(`group ${group} is not one of the ${this.layerGroups.length} layer groups`);
    return table.cut(Math.min(endBlock, table.end), table.end);
  }

  pin(request: RequestId, firstBlocks: readonly number[] = this.layerGroups.map(() => 0)): void {
    const { tables, prompt } = this.#resident(request);
    if (this.#pins.has(request)) throw new StateError(`request ${request} is already pinned`);
    if (firstBlocks.length !== tables.length)
      throw new ArgumentError(`firstBlocks has ${firstBlocks.length} entries for ${tables.length} layer groups`);
    firstBlocks.forEach((first, index) => {
      assertCount(first, `firstBlocks[${index}]`);
    });
    const endBlock = blocksCovering(prompt.promptLen, this.tokensPerBlock);
    const slots = tables.map((table, index) => {
      const pages = this.#groups[index] as GroupPages;
      const first = firstBlocks[index] as number;
      const held = new SlotList(table.count);
      const keep: SlotsAction = (from, begin, end) => {
        held.append(from, begin, end);
        pages.slots.pinAll(from, begin, end);
      };
      table.withSinks(keep, endBlock);
      table.withRun(keep, first, endBlock);
      return held;
    });
    this.#pins.set(request, { slots, firstBlocks, endBlock });
  }

  unpin(request: RequestId): void {
    const pin = this.#pins.get(request);
    if (pin === undefined) throw new StateError(`request ${request} is not pinned`);
    this.#pins.delete(request);
    pin.slots.forEach((held, index) => {
      const { slots } = this.#groups[index] as GroupPages;
      held.withAll((from, begin, end) => slots.unpinAll(from, begin, end));
    });
  }

  isPinned(request: RequestId): boolean {
    return this.#pins.has(request);
  }

  freeRequest(request: RequestId): void {
    const resident = this.#resident(request);
    this.#publish(resident);
    this.#residents.delete(request);
    resident.tables.forEach((table, index) => {
      const { slots } = this.#groups[index] as GroupPages;
      const giveUp: SlotsAction = (from, begin, end) => slots.releaseAll(from, begin, end);
      table.withRun(giveUp);
      table.withSinks(giveUp);
    });
  }

  stats(): readonly CacheGroupStats[] {
    return this.#groups.map((pages) => pages.stats());
  }

  #readyAfter(resident: Resident, batch: number): PagesReady | null {
    if (resident.failure !== null) throw resident.failure;
    if (this.#moves.isOver(batch)) return null;
    const { event, settled } = this.#moves.pending(batch);
    const done = settled.then(() => {
      if (resident.failure !== null) throw resident.failure;
    });
    // Whoever only wants the event has no reason to look at the promise.
    done.catch(() => {});
    return { event, done };
  }

  /** `endBlock`: the blocks that were asked for by then. No growths: every table reaches that far, as in most decode steps. */
  #planGrowth(
    resident: Resident,
    endToken: number,
    firstToken: number | undefined,
  ): { readonly growths: readonly Growth[]; readonly fits: boolean; readonly endBlock: number } {
    assertCount(endToken, 'endToken');
    if (firstToken !== undefined) {
      assertInterval(resident.computedEnd, firstToken, 'tokens already computed', 'firstToken');
      assertInterval(firstToken, endToken, 'firstToken', 'endToken');
    }
    const { reservesPrompt, speculativeTokens } = this.allocation;
    const { promptLen } = resident.prompt;
    const tokens = reservesPrompt ? Math.max(endToken, promptLen) : endToken;
    const endBlock = Math.max(resident.endBlock, blocksCovering(tokens, this.tokensPerBlock));
    const extra = tokens >= promptLen ? speculativeTokens : 0;
    const tableEnd = Math.max(endBlock, blocksCovering(tokens + extra, this.tokensPerBlock));
    const isThere = this.#groups.every((pages, index) => {
      const { end } = resident.tables[index] as BlockTable;
      return tableEnd <= end || (pages.isState && end > 0);
    });
    if (isThere) return { growths: NO_GROWTH, fits: true, endBlock };
    const growths = this.#groups.map((pages, index) =>
      this.#growth(pages, resident.tables[index] as BlockTable, tableEnd, {
        nextToken: firstToken ?? resident.computedEnd,
        isReceived: firstToken !== undefined,
      }),
    );
    const fits = this.#groups.every((pages, index) => {
      const { missing, begin } = growths[index] as Growth;
      const { available } = pages.slots;
      return (
        missing <= available ||
        missing <= available + gainByDropping(pages, resident.tables[index] as BlockTable, begin)
      );
    });
    return { growths, fits, endBlock };
  }

  #growth(
    pages: GroupPages,
    table: BlockTable,
    tableEnd: number,
    { nextToken, isReceived }: { readonly nextToken: number; readonly isReceived: boolean },
  ): Growth {
    const end = pages.isState ? Math.min(1, tableEnd) : tableEnd;
    if (end <= table.end) return { begin: table.begin, end: table.end, missing: 0 };
    const stale = Math.min(pages.staleEnd(nextToken), Math.max(end, pages.sinkBlocks));
    // A reservation is kept; only a run that would not touch what is there any more has to let it go. Of a received prompt the final window is
    // reserved: what was found before it is not part of that, and would be held beyond what the request was let in with.
    const isKept = this.allocation.reservesPrompt && !isReceived && stale <= table.end;
    const begin = isKept ? table.begin : Math.max(stale, table.begin);
    const sinks = Math.max(0, Math.min(pages.sinkBlocks, end) - table.end);
    return { begin, end, missing: sinks + Math.max(0, end - Math.max(begin, table.end)) };
  }

  /** @param most blocks to allocate now */
  #grow(request: RequestId, resident: Resident, index: number, { begin, end }: Growth, most: number): void {
    const pages = this.#groups[index] as GroupPages;
    const table = resident.tables[index] as BlockTable;
    const { slots } = pages;
    const pin = this.#pins.get(request);
    dropFront(pages, table, begin);
    for (let taken = 0; taken < most && table.end < end; taken++) {
      const ordinal = table.end;
      const slot = slots.allocate();
      table.push(slot);
      // An eviction above may have been the group's first move.
      if (pages.hasMoved) resident.readyAfter = Math.max(resident.readyAfter, pages.usableAfter(slot));
      if (pin === undefined || ordinal >= pin.endBlock) continue;
      if (!isPinned(pages, ordinal, pin.firstBlocks[index] as number)) continue;
      slots.pin(slot);
      pin.slots[index]?.push(slot);
    }
  }

  /** Content that still rests on moves waits: they may fail. It is offered again by the next call. */
  #publish(resident: Resident): void {
    if (resident.failure !== null || !this.#moves.isOver(resident.readyAfter) || !this.#reuse.isPossible) return;
    const { prompt, tables, publishedEnd } = resident;
    const end = Math.min(blocksFilledBy(resident.computedEnd, this.tokensPerBlock), prompt.blockHashes.length);
    if (end <= publishedEnd) return;
    this.#groups.forEach((pages, index) => {
      for (let ordinal = publishedEnd; ordinal < end; ordinal++) {
        const slot = (tables[index] as BlockTable).slotAt(ordinal);
        if (slot !== null && this.#isWhole(pages, ordinal, resident)) this.#reuse.publish(pages, prompt, ordinal, slot);
      }
    });
    resident.publishedEnd = end;
  }

  /** Not so where a transfer brought a part of the block only. */
  #isWhole({ group }: GroupPages, ordinal: number, { received }: Resident): boolean {
    if (received === null || (ordinal + 1) * this.tokensPerBlock <= received.begin) return true;
    if (this.#contextParallelSize > 1) return group.windowSize === null;
    return arrivesWhole(group, ordinal, received.end, this.#senderTokensPerBlock);
  }

  /** Content that did not arrive is found by nobody any more, and whoever took it already hears of it. */
  #onMovesFailed(batch: number, moves: readonly PageMove[], error: KvTransceiverError): void {
    for (const move of moves) {
      const pages = this.#groups[move.group] as GroupPages;
      if (move.kind === 'offload') pages.forget(move.hostSlot);
      else if (move.kind === 'onboard') pages.withdraw(move.slot);
    }
    for (const resident of this.#residents.values()) {
      if (resident.contentAfter === batch) resident.failure = error;
    }
  }

  #checkPrompt({ promptLen, blockHashes, tokens, firstToken = 0 }: CachePrompt): void {
    if (!isPositive(promptLen))
      throw new ArgumentError(`promptLen must be a positive integer, got ${String(promptLen)}`);
    const fullBlocks = blocksFilledBy(promptLen, this.tokensPerBlock);
    if (blockHashes.length !== fullBlocks) {
      throw new ArgumentError(
        `blockHashes has ${blockHashes.length} entries for the ${fullBlocks} full blocks of the prompt`,
      );
    }
    if (tokens !== undefined && tokens.length !== promptLen)
      throw new ArgumentError(`tokens has ${tokens.length} entries for a prompt of ${promptLen}`);
    if (!Number.isSafeInteger(firstToken) || firstToken < 0 || firstToken > promptLen)
      throw new ArgumentError(`firstToken must be from 0 to ${promptLen}, got ${String(firstToken)}`);
  }

  #resident(request: RequestId): Resident {
    const resident = this.#residents.get(request);
    if (resident === undefined) throw new ArgumentError(`request ${request} is not in the cache`);
    return resident;
  }
}

function checkPortion(blocks: number): void {
  if (!isPositive(blocks)) throw new ArgumentError(`blocks must be a positive integer, got ${String(blocks)}`);
}

/** Sinks are part of a transfer wherever its window begins. */
function isPinned({ sinkBlocks }: GroupPages, ordinal: number, firstBlock: number): boolean {
  return ordinal >= firstBlock || ordinal < sinkBlocks;
}

/** Releases the blocks behind the sinks and below `begin`. A pin keeps its own hold on them. */
function dropFront(pages: GroupPages, table: BlockTable, begin: number): void {
  table.withRun((slots, from, end) => pages.slots.releaseAll(slots, from, end), table.begin, begin);
  table.advanceTo(begin);
}

/** Slots that `dropFront` would make available. */
function gainByDropping(pages: GroupPages, table: BlockTable, begin: number): number {
  let gain = 0;
  for (let ordinal = table.begin; ordinal < Math.min(begin, table.end); ordinal++) {
    if (pages.slots.hasOneHolder(table.slotAt(ordinal) as number)) gain++;
  }
  return gain;
}
