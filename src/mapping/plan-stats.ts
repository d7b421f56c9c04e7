import { EDGE_FIELDS, type GroupMapping } from './peer-mapping.js';
import type { PlanStats } from './transfer-plan.js';

/**
 * Role: counts what a plan expands to without expanding it.
 * Ordering: groups are added in the order they are expanded in; a piece may touch the last one of the group before.
 */
export class PlanStatsCounter {
  #pairs = 0;
  #fragments = 0;
  #bytes = 0;
  #descriptors = 0;
  #joined = 0;
  /** One past the last byte so far, on each side; -1 before the first. */
  #sourceEnd = -1;
  #destinationEnd = -1;

  /** @param slotPairs not empty. O(pairs + fragments) */
  add(group: GroupMapping, slotPairs: Int32Array): void {
    const pairs = slotPairs.length / 2;
    this.#pairs += pairs;
    this.#fragments += group.fragments.length;
    this.#bytes += pairs * group.bytesPerPair;
    this.#descriptors += pairs * group.piecesPerPair;
    // Inside one fragment the same slots are neighbours for every fragment that fills its stride, and for no other.
    if (group.stridesFilled > 0) this.#joined += group.stridesFilled * neighbours(slotPairs);
    const firstSource = slotPairs[0] as number;
    const firstDestination = slotPairs[1] as number;
    const lastSource = slotPairs[slotPairs.length - 2] as number;
    const lastDestination = slotPairs[slotPairs.length - 1] as number;
    // Kept outside the fields while counting: an address stored in a field is an allocation of its own.
    let joined = this.#joined;
    let sourceEnd = this.#sourceEnd;
    let destinationEnd = this.#destinationEnd;
    const { edges } = group;
    for (let at = 0; at < edges.length; at += EDGE_FIELDS) {
      const sourceStride = edges[at + 1] as number;
      const destinationStride = edges[at + 4] as number;
      const sourceBegin = (edges[at] as number) + firstSource * sourceStride;
      if (sourceBegin === sourceEnd) {
        const destinationBegin = (edges[at + 3] as number) + firstDestination * destinationStride;
        if (destinationBegin === destinationEnd) joined++;
      }
      sourceEnd = (edges[at + 2] as number) + lastSource * sourceStride;
      destinationEnd = (edges[at + 5] as number) + lastDestination * destinationStride;
    }
    this.#joined = joined;
    this.#sourceEnd = sourceEnd;
    this.#destinationEnd = destinationEnd;
  }

  result(): PlanStats {
    const coalescedDescriptors = this.#descriptors - this.#joined;
    return {
      pairs: this.#pairs,
      fragments: this.#fragments,
      bytes: this.#bytes,
      descriptors: this.#descriptors,
      coalescedDescriptors,
      averageDescriptorBytes: coalescedDescriptors === 0 ? 0 : this.#bytes / coalescedDescriptors,
    };
  }
}

/** Pairs that follow their predecessor by one slot on both sides. */
function neighbours(slotPairs: Int32Array): number {
  let count = 0;
  for (let i = 2; i < slotPairs.length; i += 2) {
    const sourceFollows = (slotPairs[i] as number) === (slotPairs[i - 2] as number) + 1;
    if (sourceFollows && (slotPairs[i + 1] as number) === (slotPairs[i - 1] as number) + 1) count++;
  }
  return count;
}
