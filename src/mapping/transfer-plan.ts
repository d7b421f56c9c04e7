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

/** What one layer group contributes to a slice. Moves = pairs x fragments. */
export interface GroupPlan {
  /** Index into `PageTable.layerGroups`. */
  readonly group: number;
  readonly fragments: readonly Fragment[];
  /** Source slot, destination slot, source slot, ... ascending by source slot. */
  readonly slotPairs: Int32Array;
}

export interface PlanStats {
  readonly pairs: number;
  readonly fragments: number;
  readonly bytes: number;
  readonly descriptors: number;
  readonly coalescedDescriptors: number;
  readonly averageDescriptorBytes: number;
}

/** Which bytes of one slice go where. Small: it names slots and fragments, native code expands it. */
export interface TransferPlan {
  readonly groups: readonly GroupPlan[];
  readonly stats: PlanStats;
}
