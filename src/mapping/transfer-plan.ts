/** `count` pieces of `bytes` bytes inside one block; piece i lies at `offset + i * stride` on each side. */
export interface Fragment {
  /** Index into the source page table's pools. */
  readonly srcPool: number;
  readonly srcOffset: number;
  /** Index into the destination page table's pools. */
  readonly dstPool: number;
  readonly dstOffset: number;
  readonly bytes: number;
  readonly count: number;
  readonly srcStride: number;
  readonly dstStride: number;
}

/** `GroupPlan.group` of the aux buffer, which is no layer group. */
export const AUX_GROUP = -1;

/** What one layer group contributes to a slice. Moves = pairs x fragments. */
export interface GroupPlan {
  /** Index into the source's `PageTable.layerGroups`, or AUX_GROUP. */
  readonly group: number;
  /** Index into the destination's, or AUX_GROUP. */
  readonly peerGroup: number;
  /** Which part of the larger block; 0 where the block sizes are equal. */
  readonly part: number;
  /** By layer, then by view. The very list of the peer's mapping: what an agent prepared is found by it. */
  readonly fragments: readonly Fragment[];
  /** Source slot, destination slot, source slot, ... in the order that was asked for. */
  readonly slotPairs: Int32Array;
}

/**
 * `source_slot`: ascending by source slot, which joins most pieces. `ordinal`: ascending by block, the canonical order: (group, peer
 * group, part, layer, view, block), which the receiver can derive without knowing the source's slots.
 */
export type PairOrder = 'source_slot' | 'ordinal';

/** Exact, over all groups of the plan. */
export interface PlanStats {
  readonly pairs: number;
  /** Fragments of the groups that move something. */
  readonly fragments: number;
  readonly bytes: number;
  /** Pieces: pairs x fragments x count. */
  readonly descriptors: number;
  /**
   * Pieces left when those that touch on both sides are joined, in expansion order: group, fragment, pair, piece. What the native
   * expansion yields when no batch bound cuts it.
   */
  readonly coalescedDescriptors: number;
  /** `bytes / coalescedDescriptors`; 0 for an empty plan. */
  readonly averageDescriptorBytes: number;
}

/** Which bytes of one slice go where. Small: it names slots and fragments, native code expands it. */
export interface TransferPlan {
  readonly groups: readonly GroupPlan[];
  readonly stats: PlanStats;
}
