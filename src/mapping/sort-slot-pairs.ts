/** Pairs below which 256 counters are fewer steps than one pass more. */
const SMALL_PLAN = 512;
const SMALL_DIGIT_BITS = 8;
const MAX_DIGIT_BITS = 11;
/** Working space that outlives the calls: a slice allocates nothing but its answer. */
const POSITIONS = new Int32Array(1 << MAX_DIGIT_BITS);
let between: Int32Array = new Int32Array(0);

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
  for (let i = 0; i < pairs.length; i += 2) if ((pairs[i] as number) > largest) largest = pairs[i] as number;
  // The fewest passes that cost less in counters than they save in pairs, and then the fewest counters for as many passes.
  const width = Math.max(1, 32 - Math.clz32(largest));
  const passes = Math.ceil(width / (pairs.length < 2 * SMALL_PLAN ? SMALL_DIGIT_BITS : MAX_DIGIT_BITS));
  const bits = Math.ceil(width / passes);
  const sorted = new Int32Array(pairs.length);
  if (passes > 1 && between.length < pairs.length) between = new Int32Array(pairs.length);
  // The caller's array is only read; the passes take turns so that the last one fills `sorted`.
  let from = pairs;
  for (let pass = 1; pass <= passes; pass++) {
    const into = (passes - pass) % 2 === 0 ? sorted : between;
    scatterByDigit(from, into, pairs.length, (pass - 1) * bits, bits);
    from = into;
  }
  return sorted;
}

/** One stable pass over the first `length` numbers. */
function scatterByDigit(from: Int32Array, into: Int32Array, length: number, shift: number, bits: number): void {
  const digits = 1 << bits;
  const mask = digits - 1;
  POSITIONS.fill(0, 0, digits);
  for (let i = 0; i < length; i += 2) {
    const digit = ((from[i] as number) >> shift) & mask;
    POSITIONS[digit] = (POSITIONS[digit] as number) + 2;
  }
  let next = 0;
  for (let digit = 0; digit < digits; digit++) {
    const count = POSITIONS[digit] as number;
    POSITIONS[digit] = next;
    next += count;
  }
  for (let i = 0; i < length; i += 2) {
    const digit = ((from[i] as number) >> shift) & mask;
    const at = POSITIONS[digit] as number;
    into[at] = from[i] as number;
    into[at + 1] = from[i + 1] as number;
    POSITIONS[digit] = at + 2;
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
