import type { GroupPlan, TransferPlan } from '../mapping/transfer-plan.js';

/**
 * What the cost of a plan depends on, as native/core/path_cost.h has it: bytes, runs, slot pairs. Runs are counted without the page tables,
 * so that pieces which touch each other on both sides count as several.
 */
export function sliceShape(plan: TransferPlan): Float64Array {
  let bytes = 0;
  let runs = 0;
  let slots = 0;
  for (const group of plan.groups) {
    const pairs = group.slotPairs.length / 2;
    let ofPair = 0;
    for (const fragment of group.fragments) {
      bytes += fragment.bytes * fragment.count * pairs;
      ofPair += fragment.count;
    }
    slots += pairs;
    runs += ofPair === 1 ? runsOf(group) : ofPair * pairs;
  }
  return Float64Array.of(bytes, runs, slots);
}

/** Pairs that do not continue the pair before on both sides. */
function runsOf({ slotPairs }: GroupPlan): number {
  let runs = slotPairs.length === 0 ? 0 : 1;
  for (let i = 2; i < slotPairs.length; i += 2) {
    const joins = slotPairs[i] === (slotPairs[i - 2] ?? 0) + 1 && slotPairs[i + 1] === (slotPairs[i - 1] ?? 0) + 1;
    if (!joins) runs++;
  }
  return runs;
}
