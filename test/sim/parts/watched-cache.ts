import { GrowingCacheManager } from '../../../src/cache/growing-cache-manager.js';
import type {
  CacheGroupStats,
  CachePrompt,
  KvCacheManager,
  LayerGroup,
  RequestId,
} from '../../../src/cache/kv-cache-manager.js';
import type { BlockRun } from '../../../src/geometry/block-run.js';
import type { PageTable } from '../../../src/mapping/page-table.js';
import type { Memory } from './memory.js';
import { POISON } from './memory.js';
import { TOKENS_PER_BLOCK } from './prompts.js';

/** Who holds one slot, as far as the simulator saw. */
interface SlotAccount {
  owners: number;
  /** Requests whose transfer holds the slot. */
  readonly pinnedBy: RequestId[];
  hash: string | null;
  /** What transfers wrote to the page since the pin. */
  writtenBytes: number;
  /** Until then a late write is the accepted risk of a release without proof. */
  unprovenUntilMs: number;
}

interface Resident {
  readonly prompt: CachePrompt;
  readonly runs: { begin: number; slots: number[] }[];
  computedEnd: number;
}

/**
 * Role: the real GrowingCacheManager, with an account of its own of who holds which slot.
 * Why: an oracle that asked the code under test whether a page is free would believe its mistakes.
 * Invariant: a page that nobody holds and that keeps no published content is POISON.
 */
export class WatchedCache implements KvCacheManager {
  readonly tokensPerBlock: number;
  readonly layerGroups: readonly LayerGroup[];
  readonly #inner: GrowingCacheManager;
  readonly #slots: SlotAccount[][];
  readonly #slotOf: Map<string, number>[];
  readonly #residents = new Map<RequestId, Resident>();
  readonly #pins = new Map<RequestId, number[][]>();
  /** Per layer group: the block ordinals `[first, end)` that a pin holds. */
  readonly #pinBounds = new Map<RequestId, readonly { readonly first: number; readonly end: number }[]>();
  readonly #violation: (rule: string, text: string) => void;
  #memory: { readonly memory: Memory; readonly table: PageTable } | null = null;
  /** Blocks that were asked for by range, in all: the cost of slices. */
  rangeBlocks = 0;
  /** Told when a transfer's hold ends. */
  onUnpin: (request: RequestId) => void = () => {};

  constructor(
    groups: readonly LayerGroup[],
    seed: number,
    violation: (rule: string, text: string) => void,
    contextParallelSize = 1,
  ) {
    // Every server of a run has blocks of one size, so that what arrives is whole blocks.
    this.#inner = new GrowingCacheManager({
      tokensPerBlock: TOKENS_PER_BLOCK,
      senderTokensPerBlock: TOKENS_PER_BLOCK,
      layerGroups: groups,
      seed,
      contextParallelSize,
    });
    this.tokensPerBlock = TOKENS_PER_BLOCK;
    this.layerGroups = groups;
    this.#violation = violation;
    this.#slots = groups.map((group) =>
      Array.from({ length: group.slotCount }, () => ({
        owners: 0,
        pinnedBy: [],
        hash: null,
        writtenBytes: 0,
        unprovenUntilMs: 0,
      })),
    );
    this.#slotOf = groups.map(() => new Map<string, number>());
  }

  attach(memory: Memory, table: PageTable): void {
    this.#memory = { memory, table };
  }

  get pinnedRequests(): readonly RequestId[] {
    return [...this.#pins.keys()];
  }

  get residentRequests(): readonly RequestId[] {
    return [...this.#residents.keys()];
  }

  /** No request has blocks, and no transfer holds any. */
  get isEmpty(): boolean {
    return this.#pins.size === 0 && this.#residents.size === 0;
  }

  isResident(request: RequestId): boolean {
    return this.#residents.has(request);
  }

  account(group: number, slot: number): SlotAccount | undefined {
    return this.#slots[group]?.[slot];
  }

  addRequest(request: RequestId, prompt: CachePrompt): { readonly prepopulatedLen: number } {
    const result = this.#inner.addRequest(request, prompt);
    const end = result.prepopulatedLen / TOKENS_PER_BLOCK;
    const runs = this.layerGroups.map((_, group) => {
      const run = this.#inner.getBlockIdsRange(request, group, 0, end);
      for (const slot of run.slots) this.#at(group, slot).owners += 1;
      return { begin: run.begin, slots: listOf(run.slots) };
    });
    this.#residents.set(request, { prompt, runs, computedEnd: result.prepopulatedLen });
    return result;
  }

  ensureCapacity(request: RequestId, endToken: number, firstToken?: number): boolean {
    if (!this.#inner.ensureCapacity(request, endToken, firstToken)) return false;
    this.#follow(request, Math.ceil(endToken / TOKENS_PER_BLOCK));
    return true;
  }

  markComputed(request: RequestId, endToken: number): void {
    this.#inner.markComputed(request, endToken);
    const resident = this.#residents.get(request);
    if (resident === undefined) return;
    const first = Math.floor(resident.computedEnd / TOKENS_PER_BLOCK);
    const end = Math.min(Math.floor(endToken / TOKENS_PER_BLOCK), resident.prompt.blockHashes.length);
    resident.computedEnd = endToken;
    resident.runs.forEach((run, group) => {
      for (let ordinal = Math.max(first, run.begin); ordinal < end; ordinal++) {
        const slot = run.slots[ordinal - run.begin] as number;
        const hash = resident.prompt.blockHashes[ordinal] as string;
        const account = this.#at(group, slot);
        if (account.hash !== null || this.#slotOf[group]?.has(hash) === true) continue;
        account.hash = hash;
        this.#slotOf[group]?.set(hash, slot);
      }
    });
    this.#follow(request, 0);
  }

  getBlockIdsRange(request: RequestId, group: number, begin: number, end: number): BlockRun {
    this.rangeBlocks += end - begin;
    return this.#inner.getBlockIdsRange(request, group, begin, end);
  }

  pin(request: RequestId, firstBlocks: readonly number[] = this.layerGroups.map(() => 0)): void {
    this.#inner.pin(request, firstBlocks);
    const resident = this.#residents.get(request);
    const end = Math.ceil((resident?.prompt.promptLen ?? 0) / TOKENS_PER_BLOCK);
    const bounds = firstBlocks.map((first) => ({ first, end }));
    const pinned = (resident?.runs ?? []).map(({ begin, slots }, group) => {
      const first = bounds[group]?.first as number;
      return slots.filter((_, index) => begin + index >= first && begin + index < end);
    });
    pinned.forEach((slots, group) => {
      for (const slot of slots) this.#pinSlot(group, slot, request);
    });
    this.#pins.set(request, pinned);
    this.#pinBounds.set(request, bounds);
  }

  unpin(request: RequestId): void {
    this.#inner.unpin(request);
    const pinned = this.#pins.get(request) ?? [];
    this.#pins.delete(request);
    this.#pinBounds.delete(request);
    this.onUnpin(request);
    pinned.forEach((slots, group) => {
      for (const slot of slots) {
        const { pinnedBy } = this.#at(group, slot);
        pinnedBy.splice(pinnedBy.indexOf(request), 1);
        this.#settle(group, slot);
      }
    });
  }

  /** The pages of a request were given back without proof that nobody writes them: until then late writes are nobody's fault. */
  markUnproven(request: RequestId, untilMs: number): void {
    this.#pins.get(request)?.forEach((slots, group) => {
      for (const slot of slots) this.#at(group, slot).unprovenUntilMs = untilMs;
    });
  }

  isPinned(request: RequestId): boolean {
    return this.#inner.isPinned(request);
  }

  freeRequest(request: RequestId): void {
    this.#inner.freeRequest(request);
    const resident = this.#residents.get(request);
    this.#residents.delete(request);
    resident?.runs.forEach(({ slots }, group) => {
      for (const slot of slots) this.#disown(group, slot);
    });
  }

  stats(): readonly CacheGroupStats[] {
    return this.#inner.stats();
  }

  /** At quiescence: what nobody holds is untouched, and the manager counts as the simulator does. */
  checkIdle(expectedPage: (hash: string, group: number) => Uint32Array | null): void {
    this.layerGroups.forEach((_, group) => {
      let idle = 0;
      for (const [slot, account] of (this.#slots[group] ?? []).entries()) {
        if (account.owners > 0 || account.pinnedBy.length > 0) continue;
        idle += 1;
        const right = account.hash === null ? null : expectedPage(account.hash, group);
        if (account.hash !== null && right === null) continue;
        const wrong = firstOther(this.#page(group, slot), right);
        if (wrong >= 0)
          this.#violation('I3 stray byte', `slot ${slot} of group ${group} is idle and word ${wrong} was changed`);
      }
      const { free, reusable } = this.stats()[group] as CacheGroupStats;
      if (free + reusable !== idle)
        this.#violation('I1 leak', `group ${group}: ${idle} slots are idle, the manager says ${free + reusable}`);
    });
  }

  /** Takes over what the last call did to the request's tables. */
  #follow(request: RequestId, endBlock: number): void {
    const resident = this.#residents.get(request);
    if (resident === undefined) return;
    const pinned = this.#pins.get(request);
    resident.runs.forEach((old, group) => {
      const oldEnd = old.begin + old.slots.length;
      const end = Math.max(endBlock, oldEnd);
      const run = this.#inner.getBlockIdsRange(request, group, 0, end);
      if (run.begin === old.begin && end === oldEnd) return;
      for (let ordinal = old.begin; ordinal < Math.min(run.begin, oldEnd); ordinal++)
        this.#disown(group, old.slots[ordinal - old.begin] as number);
      for (let ordinal = Math.max(oldEnd, run.begin); ordinal < end; ordinal++)
        this.#allocated(request, group, run.slots[ordinal - run.begin] as number, pinned, ordinal);
      old.begin = run.begin;
      old.slots = listOf(run.slots);
    });
  }

  #allocated(request: RequestId, group: number, slot: number, pinned: number[][] | undefined, ordinal: number): void {
    const account = this.#at(group, slot);
    if (account.owners > 0 || account.pinnedBy.length > 0)
      this.#violation('I1 reuse', `slot ${slot} of group ${group} was handed out while it is held`);
    if (account.hash !== null) this.#slotOf[group]?.delete(account.hash);
    account.hash = null;
    account.owners += 1;
    this.#poison(group, slot);
    const bounds = this.#pinBounds.get(request)?.[group];
    if (pinned === undefined || bounds === undefined || ordinal < bounds.first || ordinal >= bounds.end) return;
    this.#pinSlot(group, slot, request);
    pinned[group]?.push(slot);
  }

  #pinSlot(group: number, slot: number, request: RequestId): void {
    const account = this.#at(group, slot);
    account.pinnedBy.push(request);
    account.writtenBytes = 0;
    account.unprovenUntilMs = 0;
  }

  #disown(group: number, slot: number): void {
    this.#at(group, slot).owners -= 1;
    this.#settle(group, slot);
  }

  #settle(group: number, slot: number): void {
    const { owners, pinnedBy, hash } = this.#at(group, slot);
    if (owners === 0 && pinnedBy.length === 0 && hash === null) this.#poison(group, slot);
  }

  #poison(group: number, slot: number): void {
    const pool = this.#memory?.table.pools[group];
    if (pool !== undefined) this.#memory?.memory.poison(pool.base + slot * pool.slotStride, pool.slotBytes);
  }

  /** The words of a slot; every group of the simulator has one pool. */
  #page(group: number, slot: number): Uint32Array {
    if (this.#memory === null) return new Uint32Array(0);
    const { memory, table } = this.#memory;
    const pool = table.pools[group];
    if (pool === undefined) return new Uint32Array(0);
    return memory.words(pool.base + slot * pool.slotStride, pool.slotBytes) ?? new Uint32Array(0);
  }

  #at(group: number, slot: number): SlotAccount {
    return this.#slots[group]?.[slot] as SlotAccount;
  }
}

/** As `[...slots]`, which is slow on numbers of one type. */
function listOf(slots: Int32Array): number[] {
  const list: number[] = [];
  for (let index = 0; index < slots.length; index++) list.push(slots[index] as number);
  return list;
}

/** Where a page is not what it should be, which is POISON where nothing is said; -1 when it is. */
function firstOther(page: Uint32Array, right: Uint32Array | null): number {
  for (let index = 0; index < page.length; index++) if (page[index] !== (right?.[index] ?? POISON)) return index;
  return -1;
}
