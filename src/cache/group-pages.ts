import { blocksCovering } from '../geometry/bounds.js';
import { staleBlockEnd } from '../geometry/stale-block-end.js';
import { BlockTable } from './block-table.js';
import { HostTier } from './host-tier.js';
import type { CacheGroupStats, LayerGroup } from './kv-cache-manager.js';
import type { MoveQueue } from './move-queue.js';
import type { SeededRandom } from './seeded-random.js';
import { SlotPool } from './slot-pool.js';

/** Where content is. `offloaded`: in host memory only, where no run may name it. */
export type BlockPlace = 'device' | 'offloaded' | 'absent';

/**
 * Role: the pages of one layer group on the device and on the host, and the block arithmetic of its window.
 * Ordering: a slot remembers the batch of moves after which it may be written (`usableAfter`: its old content is being saved or copied)
 *   and after which it holds what it was published for (`contentAfter`). Both outlive the owner, so a slot that is handed on while a move
 *   is pending passes the wait on.
 */
export class GroupPages {
  readonly group: LayerGroup;
  readonly slots: SlotPool;
  readonly host: HostTier | null;
  /** Blocks at the front that stay resident. */
  readonly sinkBlocks: number;
  readonly #index: number;
  readonly #moves: MoveQueue;
  readonly #onContentDropped: (hash: string) => void;
  /** Null: nothing was ever moved, as in every group without host pages where no parts of blocks are reused. */
  #after: { readonly usable: Float64Array; readonly content: Float64Array } | null = null;

  /** `onContentDropped`: content is gone from device and host. */
  constructor(
    group: LayerGroup,
    index: number,
    random: SeededRandom,
    moves: MoveQueue,
    onContentDropped: (hash: string) => void,
  ) {
    this.group = group;
    this.#index = index;
    this.#moves = moves;
    this.#onContentDropped = onContentDropped;
    this.sinkBlocks = group.windowSize === null ? 0 : blocksCovering(group.sinkTokens ?? 0, group.tokensPerBlock);
    this.host = (group.hostSlotCount ?? 0) > 0 ? new HostTier(group.hostSlotCount as number) : null;
    this.slots = new SlotPool(group.slotCount, random, (slot, hash) => this.#save(slot, hash));
  }

  get isState(): boolean {
    return this.group.kind === 'state';
  }

  newTable(): BlockTable {
    return new BlockTable(this.sinkBlocks);
  }

  /** First block behind the sinks that the token after `tokens` tokens still sees. */
  staleEnd(tokens: number): number {
    return Math.max(staleBlockEnd(tokens, this.group.windowSize, this.group.tokensPerBlock), this.sinkBlocks);
  }

  /** Blocks below `end` that exist for a request whose next token comes after `tokens` tokens. */
  residentCount(tokens: number, end: number): number {
    if (this.isState) return Math.min(end, 1);
    return Math.min(this.sinkBlocks, end) + Math.max(0, end - this.staleEnd(tokens));
  }

  /** As long as it stays the same, no content has come or gone, on the device or the host. */
  get contentVersion(): number {
    return this.slots.contentVersion + (this.host?.contentVersion ?? 0);
  }

  place(hash: string): BlockPlace {
    if (this.slots.find(hash) !== null) return 'device';
    return this.host === null || this.host.find(hash) === null ? 'absent' : 'offloaded';
  }

  /** False: `usableAfter` and `contentAfter` are 0 for every slot. */
  get hasMoved(): boolean {
    return this.#after !== null;
  }

  /** Batch after which a slot that was just allocated may be written; 0 = now. */
  usableAfter(slot: number): number {
    return this.#after === null ? 0 : (this.#after.usable[slot] as number);
  }

  /** Batch after which a published slot holds its content; 0 = now. */
  contentAfter(slot: number): number {
    return this.#after === null ? 0 : (this.#after.content[slot] as number);
  }

  /** Batch after which all of these published slots hold their content; 0 = now. */
  allContentAfter(slots: Int32Array, begin = 0, end = slots.length): number {
    let after = 0;
    for (let index = begin; index < end; index++) after = Math.max(after, this.contentAfter(slots[index] as number));
    return after;
  }

  /** Content is final. @returns whether it was not known before, on the device or the host */
  publish(slot: number, hash: string): boolean {
    // What another slot of the device holds is not published again.
    return this.slots.publish(slot, hash) && (this.host === null || this.host.find(hash) === null);
  }

  /** Fetches host content, which must be held, into an allocated slot. */
  onboard(hostSlot: number, slot: number, tokenCount: number): void {
    this.#fill(slot, this.#moves.add({ kind: 'onboard', group: this.#index, hostSlot, slot, tokenCount }));
  }

  /** Held content of the host, into a slot of its own with one owner. The host keeps it too, and holds it no more. */
  fetch(host: HostTier, hostSlot: number, hash: string): number {
    const slot = this.slots.allocate();
    this.onboard(hostSlot, slot, this.group.tokensPerBlock);
    this.publish(slot, hash);
    host.unhold(hostSlot);
    return slot;
  }

  /** Takes the first tokens of a slot over into an allocated one. */
  copy(fromSlot: number, toSlot: number, tokenCount: number): void {
    const batch = this.#moves.add({ kind: 'copy', group: this.#index, fromSlot, toSlot, tokenCount });
    this.#noted().usable[fromSlot] = batch;
    this.#fill(toSlot, batch);
  }

  /** What a device slot was published for did not arrive. */
  withdraw(slot: number): void {
    const hash = this.slots.withdraw(slot);
    if (hash !== null) this.#reportIfDropped(hash);
  }

  /** What a host slot was to save did not arrive. */
  forget(hostSlot: number): void {
    const hash = this.host?.forget(hostSlot) ?? null;
    if (hash !== null) this.#reportIfDropped(hash);
  }

  stats(): CacheGroupStats {
    return this.host === null ? this.slots.stats() : { ...this.slots.stats(), offloaded: this.host.size };
  }

  #fill(slot: number, batch: number): void {
    const { usable, content } = this.#noted();
    usable[slot] = batch;
    content[slot] = batch;
  }

  #noted(): { readonly usable: Float64Array; readonly content: Float64Array } {
    const { slotCount } = this.group;
    this.#after ??= { usable: new Float64Array(slotCount), content: new Float64Array(slotCount) };
    return this.#after;
  }

  /** Evicted content goes to the host unless it is there already or there is no place. */
  #save(slot: number, hash: string): void {
    if (this.host === null) {
      this.#onContentDropped(hash);
      return;
    }
    if (this.host.find(hash) !== null) return;
    const stored = this.host.store(hash);
    if (stored === null) {
      this.#onContentDropped(hash);
      return;
    }
    if (stored.dropped !== null) this.#reportIfDropped(stored.dropped);
    this.#noted().usable[slot] = this.#moves.add({
      kind: 'offload',
      group: this.#index,
      slot,
      hostSlot: stored.slot,
    });
  }

  #reportIfDropped(hash: string): void {
    if (this.place(hash) === 'absent') this.#onContentDropped(hash);
  }
}
