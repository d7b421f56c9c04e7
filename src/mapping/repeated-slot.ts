import { HOLE } from '../geometry/block-run.js';

/** One bit a slot: beyond, the working space would cost more than it saves. 1 MiB. */
const MAX_MARKED_SLOT = 8 * 1024 * 1024;
/** All bits are 0 between the calls: a call clears what it marked, and allocates nothing. */
let marks = new Int32Array(0);

/**
 * A slot that occurs twice among `slots[from]` up to `slots[to]`; HOLE if none does. Linear in what is looked at, also for slots that
 * a peer chose.
 * @param slots none below HOLE
 */
export function repeatedSlot(slots: Int32Array, from = 0, to = slots.length): number {
  let largest = 0;
  for (let i = from; i < to; i++) if ((slots[i] as number) > largest) largest = slots[i] as number;
  if (largest >= MAX_MARKED_SLOT) return repeatedAmongMany(slots, from, to);
  if (marks.length <= largest >> 5) marks = new Int32Array(((largest >> 5) + 1) * 2);
  let found = HOLE;
  for (let i = from; i < to; i++) {
    const slot = slots[i] as number;
    if (slot < 0) continue;
    const bit = 1 << (slot & 31);
    const word = marks[slot >> 5] as number;
    if ((word & bit) !== 0) found = slot;
    marks[slot >> 5] = word | bit;
  }
  for (let i = from; i < to; i++) {
    const slot = slots[i] as number;
    if (slot >= 0) marks[slot >> 5] = 0;
  }
  return found;
}

function repeatedAmongMany(slots: Int32Array, from: number, to: number): number {
  const seen = new Set<number>();
  for (let i = from; i < to; i++) {
    const slot = slots[i] as number;
    if (slot < 0) continue;
    if (seen.has(slot)) return slot;
    seen.add(slot);
  }
  return HOLE;
}
