import { assertCount, assertPositive, assertSlots } from './bounds.js';

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

/**
 * One past the last ordinal of the run; `begin` when it is empty.
 * @throws RangeError for a negative or fractional `begin`, a stride below 1, slots that are no Int32Array, or an end beyond 2^53
 */
export function runEnd(run: BlockRun): number {
  const { begin, stride = 1 } = run;
  assertCount(begin, 'begin');
  assertPositive(stride, 'stride');
  assertSlots(run.slots, 'slots');
  const count = run.slots.length;
  const end = count === 0 ? begin : begin + (count - 1) * stride + 1;
  // Ordinals beyond would no longer count up by one.
  assertCount(end, 'end of the run');
  return end;
}

/**
 * Two runs of one layer group as one, with holes between them. O(ordinals from the first to the last).
 * @throws RangeError as `runEnd` for either run, and when `back` does not lie behind `front`, or its stride leads elsewhere
 * @example joinRuns({ begin: 0, slots: Int32Array.of(7) }, { begin: 2, slots: Int32Array.of(9) }).slots // Int32Array [7, HOLE, 9]
 */
export function joinRuns(front: BlockRun, back: BlockRun): BlockRun {
  runEnd(back);
  const frontEnd = runEnd(front);
  if (front.slots.length === 0) return back;
  if (back.slots.length === 0) return front;
  const stride = front.stride ?? 1;
  const offset = (back.begin - front.begin) / stride;
  if (frontEnd > back.begin) throw new RangeError(`back.begin is ${back.begin}, the front run ends at ${frontEnd}`);
  if ((back.stride ?? 1) !== stride || !Number.isInteger(offset))
    throw new RangeError(
      `back.stride is ${back.stride ?? 1} from ${back.begin}, front's ${stride} from ${front.begin}`,
    );
  const slots = new Int32Array(offset + back.slots.length).fill(HOLE);
  slots.set(front.slots);
  slots.set(back.slots, offset);
  return stride === 1 ? { begin: front.begin, slots } : { begin: front.begin, slots, stride };
}
