import { type BlockRun, joinRuns } from '../geometry/block-run.js';
import { assertCount, assertInterval, assertPositive, blocksCovering } from '../geometry/bounds.js';
import { sinkRange } from '../geometry/sink-range.js';
import { type BlockRange, sourceRange } from '../geometry/source-range.js';
import type { PageTableGroup } from './page-table.js';
import type { GroupMapping, PeerMapping } from './peer-mapping.js';
import { checkRunCount, pairsOf } from './plan-slice.js';

/**
 * The bytes that one writer moves into the receiver's runs over all its slices, aux not counted: what its final report must say.
 * Both sides derive the same number. O(blocks of the prompt): once per request and writer.
 *
 * @param mapping from the writer to the receiver
 * @param destinationRuns one entry per layer group of the receiver; null = wants nothing of it
 * @param promptLen tokens
 * @param endBlock only what slices of `[0, endBlock)` move, in blocks of the writer; default: all of the prompt
 * @throws ArgumentError as `planSlice` for its destination runs
 * @throws RangeError for a `promptLen` that is no non-negative integer, or a run that is malformed
 */
export function expectedBytes(
  mapping: PeerMapping,
  destinationRuns: readonly (BlockRun | null)[],
  promptLen: number,
  endBlock = Number.POSITIVE_INFINITY,
): number {
  assertCount(promptLen, 'promptLen');
  checkRunCount(destinationRuns, mapping.destination.layerGroups.length, 'destination');
  let bytes = 0;
  let parts: readonly Int32Array[] = [];
  for (const group of mapping.groups) {
    const destination = destinationRuns[group.peerGroup];
    if (destination == null) continue;
    if (group.part === 0) {
      const source = sourceRun(mapping, group, promptLen, endBlock);
      parts = source === null ? [] : pairsOf(group, source, destination);
    }
    bytes += ((parts[group.part]?.length ?? 0) / 2) * group.bytesPerPair;
  }
  return bytes;
}

/** What the writer's slices cover together. Its slots do not matter here. */
function sourceRun(
  mapping: PeerMapping,
  { group, pairing }: GroupMapping,
  promptLen: number,
  endBlock: number,
): BlockRun | null {
  const { kind, windowSize, sinkTokens = 0, tokensPerBlock } = mapping.source.layerGroups[group] as PageTableGroup;
  const promptBlocks = blocksCovering(promptLen, tokensPerBlock);
  const isLast = endBlock >= promptBlocks;
  if (kind === 'state') return isLast ? { begin: 0, slots: new Int32Array(1) } : null;
  const slices = { beginBlock: 0, endBlock: Math.min(endBlock, promptBlocks), isLast };
  const shape = { kind: kind === 'aux' ? 'attention' : kind, windowSize, sinkTokens } as const;
  const { cpRank } = mapping.places.source;
  const front = ownedRun(sinkRange(slices, shape, promptLen, tokensPerBlock), cpRank, pairing.sourceStride);
  const back = ownedRun(sourceRange(slices, shape, promptLen, tokensPerBlock), cpRank, pairing.sourceStride);
  return front === null || back === null ? (front ?? back) : joinRuns(front, back);
}

function ownedRun(range: BlockRange | null, cpRank: number, stride: number): BlockRun | null {
  if (range === null) return null;
  const owned = ownedBlocks(range.begin, range.end, cpRank, stride);
  return { begin: cpRank + owned.begin * stride, slots: new Int32Array(owned.end - owned.begin), stride };
}

/**
 * Which of the blocks that a context parallel rank owns lie in a range of the prompt. Rank r of n owns the ordinals r, r + n, ...;
 * its cache manager counts them 0, 1, ....
 * @returns its own count `[begin, end)`
 * @throws RangeError for negative, reversed, fractional or unsafe bounds, or a rank outside its size
 * @example ownedBlocks(3, 10, 1, 4) // { begin: 1, end: 3 }: ordinals 5 and 9
 */
export function ownedBlocks(begin: number, end: number, cpRank: number, cpSize: number): BlockRange {
  assertInterval(begin, end, 'begin', 'end');
  assertPositive(cpSize, 'cpSize');
  assertInterval(cpRank, cpSize - 1, 'cpRank', 'cpSize - 1');
  const first = Math.max(0, Math.ceil((begin - cpRank) / cpSize));
  return { begin: first, end: Math.max(first, Math.ceil((end - cpRank) / cpSize)) };
}
