/** Marks an ordinal that has no slot in this run. */
export const HOLE = -1;

/**
 * Slots of block ordinals of one layer group: `slots[i]` belongs to ordinal `begin + i * stride`; HOLE = nothing here.
 * A list of slots never travels without its ordinals: windows, reuse and growth all shorten it from the front.
 */
export interface BlockRun {
  readonly begin: number;
  readonly slots: Int32Array;
  /**
   * Absent = 1: consecutive ordinals. A context parallel rank r of n owns every n-th: stride n, `begin` = r modulo n. Not on the
   * wire: who receives a run knows it from the sender's rank info.
   */
  readonly stride?: number;
}

/** One past the last ordinal of the run; `begin` when it is empty. */
export function runEnd(run: BlockRun): number {
  const count = run.slots.length;
  return count === 0 ? run.begin : run.begin + (count - 1) * (run.stride ?? 1) + 1;
}
