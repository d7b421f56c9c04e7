/** Marks an ordinal that has no slot in this run. */
export const HOLE = -1;

/**
 * Slots of consecutive block ordinals of one layer group: `slots[i]` belongs to ordinal `begin + i`; HOLE = nothing here.
 * A list of slots never travels without its ordinals: windows, reuse and growth all shorten it from the front.
 */
export interface BlockRun {
  readonly begin: number;
  readonly slots: Int32Array;
}
