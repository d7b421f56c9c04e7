import { type BlockRun, HOLE } from './block-run.js';
import { assertCount } from './bounds.js';

/**
 * The only rule by which source and destination blocks meet: ordinal `o` moves iff both runs hold a slot at `o`. Windows, reuse
 * hits and chunk bounds only decide which ordinals a run covers.
 *
 * @returns source slot, destination slot, source slot, ... in ascending ordinal; O(overlap of the two runs)
 * @throws RangeError for a negative or fractional `begin`, or a negative slot that is not HOLE
 * @example pairRuns({ begin: 4, slots: Int32Array.of(9, 3) }, { begin: 5, slots: Int32Array.of(7, 8) }) // Int32Array [3, 7]
 */
export function pairRuns(source: BlockRun, destination: BlockRun): Int32Array {
  assertCount(source.begin, 'source.begin');
  assertCount(destination.begin, 'destination.begin');
  const begin = Math.max(source.begin, destination.begin);
  const end = Math.min(source.begin + source.slots.length, destination.begin + destination.slots.length);
  if (end <= begin) return new Int32Array(0);

  const pairs = new Int32Array(2 * (end - begin));
  let filled = 0;
  for (let ordinal = begin; ordinal < end; ordinal++) {
    const from = source.slots[ordinal - source.begin] as number;
    const to = destination.slots[ordinal - destination.begin] as number;
    if (from < HOLE) throw new RangeError(`source slot of ordinal ${ordinal} is ${from}`);
    if (to < HOLE) throw new RangeError(`destination slot of ordinal ${ordinal} is ${to}`);
    if (from === HOLE || to === HOLE) continue;
    pairs[filled++] = from;
    pairs[filled++] = to;
  }
  return filled === pairs.length ? pairs : pairs.slice(0, filled);
}
