import type { TransferAgent } from '../../../src/agent/transfer-agent.js';
import { GrowingCacheManager } from '../../../src/cache/growing-cache-manager.js';
import type { CachePrompt, KvCacheManager, LayerGroup, RequestId } from '../../../src/cache/kv-cache-manager.js';
import { InternalError } from '../../../src/errors.js';
import type { BlockRun } from '../../../src/geometry/block-run.js';
import type { PageTable } from '../../../src/mapping/page-table.js';

const CANARY = 0xc3;
const POISON = 0x5a;

interface Holder {
  /** Outward slots per group. */
  readonly slots: Set<number>[];
  owned: boolean;
  pinned: boolean;
}

/**
 * Role: the real cache manager, with a canary page on both sides of every page it hands out, and poison in every page that nobody holds.
 * Why: a write that lands after its page was given back, or beside it, changes one or the other.
 * Ordering: a page is poisoned at the moment when neither its request nor a transfer holds it any more, and looked at when it is handed
 *   out again and in every `check`. Nothing is reused: blocks are never marked computed.
 */
export class GuardedCache implements KvCacheManager {
  readonly tokensPerBlock: number;
  readonly layerGroups: readonly LayerGroup[];
  readonly #inner: GrowingCacheManager;
  readonly #holders = new Map<RequestId, Holder>();
  readonly #inUse: Set<number>[];
  readonly #violations: string[] = [];
  #memory: { readonly agent: TransferAgent; readonly table: PageTable } | null = null;

  constructor(layerGroups: readonly LayerGroup[], tokensPerBlock: number, seed: number) {
    this.tokensPerBlock = tokensPerBlock;
    this.#inner = new GrowingCacheManager({ tokensPerBlock, layerGroups, seed });
    this.layerGroups = layerGroups.map((group) => ({ ...group, slotCount: 2 * group.slotCount + 1 }));
    this.#inUse = layerGroups.map(() => new Set<number>());
  }

  /** Once the pools exist: fills them with canaries and poison. */
  guard(agent: TransferAgent, table: PageTable): void {
    this.#memory = { agent, table };
    this.layerGroups.forEach((_, group) => {
      for (const { base, slotStride, slotCount } of this.#pools(group)) {
        const content = Buffer.alloc(slotStride * slotCount);
        for (let slot = 0; slot < slotCount; slot++)
          content.fill(isPage(slot) ? POISON : CANARY, slot * slotStride, (slot + 1) * slotStride);
        agent.writeBytes(base, content);
      }
    });
  }

  /** Everything that was ever written to a page nobody held, or to a canary. */
  check(): readonly string[] {
    this.layerGroups.forEach((_, group) => {
      this.#pools(group).forEach(({ base, slotStride, slotCount }, pool) => {
        const content = this.#agent.readBytes(base, slotStride * slotCount);
        for (let slot = 0; slot < slotCount; slot++) {
          if (this.#inUse[group]?.has(slot) === true) continue;
          const page = content.subarray(slot * slotStride, (slot + 1) * slotStride);
          const fault = changed(page, isPage(slot) ? POISON : CANARY);
          if (fault !== null)
            this.#report(`${isPage(slot) ? 'free page' : 'canary'} ${slot} of group ${group}, pool ${pool}: ${fault}`);
        }
      });
    });
    return this.#violations;
  }

  addRequest(request: RequestId, prompt: CachePrompt): { readonly prepopulatedLen: number } {
    const added = this.#inner.addRequest(request, prompt);
    const slots = this.layerGroups.map(() => new Set<number>());
    this.#holders.set(request, { slots, owned: true, pinned: false });
    return added;
  }

  ensureCapacity(request: RequestId, endToken: number, firstToken?: number): boolean {
    if (!this.#inner.ensureCapacity(request, endToken, firstToken)) return false;
    const blocks = Math.ceil(endToken / this.tokensPerBlock);
    this.layerGroups.forEach((_, group) => {
      for (const slot of this.getBlockIdsRange(request, group, 0, blocks).slots) this.#take(request, group, slot);
    });
    return true;
  }

  markComputed(): void {
    throw new InternalError('blocks of a guarded cache are never reused');
  }

  getBlockIdsRange(request: RequestId, group: number, begin: number, end: number): BlockRun {
    const run = this.#inner.getBlockIdsRange(request, group, begin, end);
    return { begin: run.begin, slots: run.slots.map((slot) => 2 * slot + 1) };
  }

  pin(request: RequestId): void {
    this.#inner.pin(request);
    this.#holder(request).pinned = true;
  }

  unpin(request: RequestId): void {
    this.#inner.unpin(request);
    this.#holder(request).pinned = false;
    this.#poisonIfFree(request);
  }

  isPinned(request: RequestId): boolean {
    return this.#inner.isPinned(request);
  }

  freeRequest(request: RequestId): void {
    this.#inner.freeRequest(request);
    this.#holder(request).owned = false;
    this.#poisonIfFree(request);
  }

  stats(): ReturnType<KvCacheManager['stats']> {
    return this.#inner.stats();
  }

  #take(request: RequestId, group: number, slot: number): void {
    const slots = this.#holder(request).slots[group] as Set<number>;
    if (slots.has(slot)) return;
    const inUse = this.#inUse[group] as Set<number>;
    if (inUse.has(slot)) this.#report(`page ${slot} of group ${group} was handed out twice`);
    for (const { base, slotStride } of this.#pools(group)) {
      const fault = changed(this.#agent.readBytes(base + slot * slotStride, slotStride), POISON);
      if (fault !== null) this.#report(`page ${slot} of group ${group} was written while it was free: ${fault}`);
    }
    slots.add(slot);
    inUse.add(slot);
  }

  #poisonIfFree(request: RequestId): void {
    const holder = this.#holder(request);
    if (holder.owned || holder.pinned) return;
    holder.slots.forEach((slots, group) => {
      for (const { base, slotStride } of this.#pools(group)) {
        const poison = Buffer.alloc(slotStride, POISON);
        for (const slot of slots) this.#agent.writeBytes(base + slot * slotStride, poison);
      }
      for (const slot of slots) this.#inUse[group]?.delete(slot);
    });
    this.#holders.delete(request);
  }

  #pools(group: number): readonly PageTable['pools'][number][] {
    const { table } = this.#memory ?? unguarded();
    const views = table.layerGroups[group]?.views ?? [];
    const pools = new Set(views.flatMap(({ layers }) => layers.map((entry) => entry.pool)));
    return [...pools].flatMap((pool) => table.pools[pool] ?? []);
  }

  get #agent(): TransferAgent {
    return (this.#memory ?? unguarded()).agent;
  }

  #holder(request: RequestId): Holder {
    const holder = this.#holders.get(request);
    if (holder === undefined) throw new InternalError(`request ${request} holds nothing`);
    return holder;
  }

  #report(violation: string): void {
    // The first ones say where it began; a thousand more would not fit a message.
    if (this.#violations.length < 20 && !this.#violations.includes(violation)) this.#violations.push(violation);
  }
}

function isPage(slot: number): boolean {
  return slot % 2 === 1;
}

/** Null when every byte is `expected`. */
function changed(page: Uint8Array, expected: number): string | null {
  if (Buffer.alloc(page.length, expected).equals(page)) return null;
  const at = page.findIndex((byte) => byte !== expected);
  return `byte ${at} is ${page[at]}, not ${expected}`;
}

function unguarded(): never {
  throw new InternalError('the pools are not known yet');
}
