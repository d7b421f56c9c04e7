import { type BlockRun, HOLE, runEnd } from './block-run.js';
import { assertCount, assertPositive, assertSlots } from './bounds.js';

const MAX_PARTS = 64 * 1024;

/**
 * The only rule by which source and destination blocks meet: ordinal `o` moves iff both runs hold a slot at `o`. Windows, reuse
 * hits and chunk bounds only decide which ordinals a run covers.
 *
 * @returns source slot, destination slot, source slot, ... in ascending ordinal; O(overlap of the two runs)
 * @throws RangeError for a negative or fractional `begin`, a stride below 1, slots that are no Int32Array, ordinals beyond 2^53, or a
 *   negative slot that is not HOLE
 * @example pairRuns({ begin: 4, slots: Int32Array.of(9, 3) }, { begin: 5, slots: Int32Array.of(7, 8) }) // Int32Array [3, 7]
 */
export function pairRuns(source: BlockRun, destination: BlockRun): Int32Array {
  checkRun(source, 'source');
  checkRun(destination, 'destination');
  if ((source.stride ?? 1) !== 1 || (destination.stride ?? 1) !== 1) {
    return pairParts(source, 1, destination, 1)[0] as Int32Array;
  }
  const begin = Math.max(source.begin, destination.begin);
  const end = Math.min(source.begin + source.slots.length, destination.begin + destination.slots.length);
  if (end <= begin) return new Int32Array(0);

  const pairs = new Int32Array(2 * (end - begin));
  let filled = 0;
  for (let ordinal = begin; ordinal < end; ordinal++) {
    const from = source.slots[ordinal - source.begin] as number;
    const to = destination.slots[ordinal - destination.begin] as number;
    if (from < HOLE || to < HOLE) refuseSlots(from, to, ordinal);
    if (from === HOLE || to === HOLE) continue;
    pairs[filled++] = from;
    pairs[filled++] = to;
  }
  return filled === pairs.length ? pairs : pairs.slice(0, filled);
}

/**
 * `pairRuns` where the blocks of one side are several of the other's: pairing happens on the smaller block. Smaller block `o` is
 * part `o % parts` of the larger block `floor(o / parts)`.
 *
 * @param sourceParts smaller blocks in a source block; 1 unless the source has the larger blocks
 * @param destinationParts the same of the destination; one of the two is 1
 * @returns for each part of the larger block the pairs that move it, as `pairRuns` gives them; O(overlap in smaller blocks)
 * @throws RangeError as `pairRuns`, when neither part count is 1, or one is above 64 Ki
 * @example
 * // 64-token blocks into 16-token blocks: block 1 is the smaller blocks 4..7, of which the receiver wants 5 and 6.
 * pairSubBlocks({ begin: 1, slots: Int32Array.of(9) }, 4, { begin: 5, slots: Int32Array.of(2, 3) }, 1)
 * // [ [], [9, 2], [9, 3], [] ]
 */
export function pairSubBlocks(
  source: BlockRun,
  sourceParts: number,
  destination: BlockRun,
  destinationParts: number,
): Int32Array[] {
  assertPositive(sourceParts, 'sourceParts');
  assertPositive(destinationParts, 'destinationParts');
  const parts = Math.max(sourceParts, destinationParts);
  // The answer has a list for each part.
  if (parts > MAX_PARTS)
    throw new RangeError(`at most ${MAX_PARTS} smaller blocks in a larger one, got ${parts} parts`);
  if (sourceParts !== 1 && destinationParts !== 1) {
    throw new RangeError(`one side must have the smaller blocks, got ${sourceParts} and ${destinationParts} parts`);
  }
  if (sourceParts === destinationParts) return [pairRuns(source, destination)];
  checkRun(source, 'source', sourceParts);
  checkRun(destination, 'destination', destinationParts);
  return pairParts(source, sourceParts, destination, destinationParts);
}

function pairParts(source: BlockRun, sourceParts: number, destination: BlockRun, destinationParts: number) {
  // Walking the side of smaller, or of fewer, blocks visits nothing in vain but what the other side does not own.
  const sourceWalks =
    sourceParts === destinationParts ? (source.stride ?? 1) >= (destination.stride ?? 1) : sourceParts === 1;
  const [fine, coarse] = sourceWalks ? [source, destination] : [destination, source];
  const parts = Math.max(sourceParts, destinationParts);
  const [fineStride, coarseStride] = [fine.stride ?? 1, coarse.stride ?? 1];
  const begin = Math.max(fine.begin, coarse.begin * parts);
  const end = Math.min(runEnd(fine), runEnd(coarse) * parts);

  const first = Math.ceil((begin - fine.begin) / fineStride);
  const steps = Math.max(0, Math.ceil((end - fine.begin) / fineStride) - first);
  // Consecutive blocks are shared out evenly; with a stride all of them may be the same part.
  const capacity = 2 * (fineStride === 1 ? Math.ceil(steps / parts) : steps);
  const pairs = Array.from({ length: parts }, () => new Int32Array(capacity));
  const filled = new Int32Array(parts);
  if (fineStride === 1 && coarseStride === 1) {
    pairConsecutive(fine, coarse, begin, end, sourceWalks, pairs, filled);
    return trimmed(pairs, filled);
  }
  let index = first;
  for (let ordinal = fine.begin + first * fineStride; ordinal < end; ordinal += fineStride, index++) {
    const block = Math.floor(ordinal / parts);
    const distance = block - coarse.begin;
    if (distance % coarseStride !== 0) continue;
    const small = fine.slots[index] as number;
    const large = coarse.slots[distance / coarseStride] as number;
    const [from, to] = sourceWalks ? [small, large] : [large, small];
    if (from < HOLE || to < HOLE) refuseSlots(from, to, ordinal);
    if (from === HOLE || to === HOLE) continue;
    const part = ordinal - block * parts;
    const at = filled[part] as number;
    const list = pairs[part] as Int32Array;
    list[at] = from;
    list[at + 1] = to;
    filled[part] = at + 2;
  }
  return trimmed(pairs, filled);
}

/** The same for runs without strides, as nearly all are: a block of each list after the other, without a division for each. */
function pairConsecutive(
  fine: BlockRun,
  coarse: BlockRun,
  begin: number,
  end: number,
  sourceWalks: boolean,
  pairs: readonly Int32Array[],
  filled: Int32Array,
): void {
  const parts = pairs.length;
  const { slots: small, begin: fineBegin } = fine;
  const { slots: large, begin: coarseBegin } = coarse;
  for (let ordinal = begin; ordinal < end; ) {
    const block = Math.floor(ordinal / parts);
    const blockEnd = Math.min(end, (block + 1) * parts);
    const coarseSlot = large[block - coarseBegin] as number;
    for (let part = ordinal - block * parts; ordinal < blockEnd; ordinal++, part++) {
      const fineSlot = small[ordinal - fineBegin] as number;
      const from = sourceWalks ? fineSlot : coarseSlot;
      const to = sourceWalks ? coarseSlot : fineSlot;
      if (from < HOLE || to < HOLE) refuseSlots(from, to, ordinal);
      if (from === HOLE || to === HOLE) continue;
      const list = pairs[part] as Int32Array;
      const at = filled[part] as number;
      list[at] = from;
      list[at + 1] = to;
      filled[part] = at + 2;
    }
  }
}

function trimmed(pairs: readonly Int32Array[], filled: Int32Array): Int32Array[] {
  return pairs.map((list, part) => (filled[part] === list.length ? list : list.slice(0, filled[part])));
}

function checkRun(run: BlockRun, side: string, parts = 1): void {
  const { begin, stride = 1 } = run;
  assertCount(begin, `${side}.begin`);
  assertPositive(stride, `${side}.stride`);
  assertSlots(run.slots, `${side}.slots`);
  // Beyond 2^53 an ordinal no longer counts up by one, and a walk over them would not end.
  assertCount((begin + run.slots.length * stride) * parts, `${side}: the end of the run in smaller blocks`);
}

function refuseSlots(from: number, to: number, ordinal: number): never {
  const [side, slot] = from < HOLE ? ['source', from] : ['destination', to];
  throw new RangeError(`${side} slot of ordinal ${ordinal} is ${slot}`);
}
