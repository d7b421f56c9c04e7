import { HOLE } from '../geometry/block-run.js';

/** Slots with equal bits above these are looked at together, one bit for each: 1 MiB of working space, whatever the slots are. */
const PART_BITS = 23;
const PART_SLOTS = 1 << PART_BITS;
const PARTS = 2 ** 31 / PART_SLOTS;
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
  return largest < PART_SLOTS ? repeatedInPart(slots, from, to, largest) : repeatedInParts(slots, from, to);
}

function repeatedInPart(slots: Int32Array, from: number, to: number, largest: number): number {
  if (marks.length <= largest >> 5) marks = new Int32Array(Math.min(((largest >> 5) + 1) * 2, PART_SLOTS >> 5));
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

/** Brought together by their part first, which takes a copy: pools of so many slots are rare. */
function repeatedInParts(slots: Int32Array, from: number, to: number): number {
  const bounds = new Int32Array(PARTS + 1);
  for (let i = from; i < to; i++) {
    const slot = slots[i] as number;
    if (slot < 0) continue;
    const next = (slot >> PART_BITS) + 1;
    bounds[next] = (bounds[next] as number) + 1;
  }
  for (let part = 1; part <= PARTS; part++) bounds[part] = (bounds[part] as number) + (bounds[part - 1] as number);
  const free = bounds.slice(0, PARTS);
  const within = new Int32Array(bounds[PARTS] as number);
  for (let i = from; i < to; i++) {
    const slot = slots[i] as number;
    if (slot < 0) continue;
    const part = slot >> PART_BITS;
    const at = free[part] as number;
    free[part] = at + 1;
    within[at] = slot & (PART_SLOTS - 1);
  }
  for (let part = 0; part < PARTS; part++) {
    const found = repeatedInPart(within, bounds[part] as number, bounds[part + 1] as number, PART_SLOTS - 1);
    if (found !== HOLE) return part * PART_SLOTS + found;
  }
  return HOLE;
}
