import type { KvCacheManager, LayerGroup, RequestId } from '../cache/kv-cache-manager.js';
import { InternalError } from '../errors.js';
import { type BlockRun, HOLE, joinRuns } from '../geometry/block-run.js';
import { typeName } from '../geometry/bounds.js';
import type { BlockSlice } from '../geometry/prefill-slice.js';
import type { BlockRange } from '../geometry/source-range.js';
import { ownedRanges } from './owned-ranges.js';

/** A rank's place among those that share out the blocks of a prompt. */
export interface ContextParallelPlace {
  readonly cpSize: number;
  readonly cpRank: number;
}

export const ALL_BLOCKS: ContextParallelPlace = { cpSize: 1, cpRank: 0 };

/** Whose blocks of which prompt. */
export interface RunOwner {
  readonly cache: KvCacheManager;
  readonly request: RequestId;
  readonly promptLen: number;
  /** A context parallel rank's cache manager counts only the blocks it owns. */
  readonly place: ContextParallelPlace;
}

/** `exact`: every block of the range must be there. `suffix`: front-evicted window blocks may be missing. */
type Completeness = 'exact' | 'suffix';

/**
 * The run of one layer group for the blocks of a slice: the part of the final window in it, and the sink blocks in it, which are asked
 * for apart because the cache manager cuts a range at the gap between the two. Each side names its blocks by the same rule. O(slice).
 *
 * @param slice in ordinals of the prompt, on every rank
 * @param ofWindow what a sliding window owes; all else must be complete
 * @returns in ordinals of the prompt; null where the group has nothing in the slice
 * @throws InternalError when the cache manager breaks its contract: more or less than asked, a hole, no Int32Array of slots, or a slot that the
 *   group does not have
 */
export function groupRun(owner: RunOwner, index: number, slice: BlockSlice, ofWindow: Completeness): BlockRun | null {
  const { cache, promptLen, place } = owner;
  const group = cache.layerGroups[index];
  if (group === undefined) throw new InternalError(`layer group ${index} of ${cache.layerGroups.length}`);
  const { kind, windowSize } = group;
  const sought = ownedRanges(group, slice, promptLen, place);
  const completeness = kind === 'state' || windowSize === null ? 'exact' : ofWindow;
  const front = sought.front === null ? null : queried(owner, index, sought.front, 'exact');
  const back = sought.back === null ? null : queried(owner, index, sought.back, completeness);
  const run = front === null || back === null ? (front ?? back) : joinRuns(front, back);
  return run === null || kind === 'state' || place.cpSize === 1 ? run : inPromptOrdinals(run, place);
}

function queried(
  { cache, request }: RunOwner,
  index: number,
  { begin, end }: BlockRange,
  completeness: Completeness,
): BlockRun {
  const run: BlockRun | null | undefined = cache.getBlockIdsRange(request, index, begin, end);
  const refuse = (what: string): never => {
    throw new InternalError(`cache manager: group ${index} gave ${what} for [${begin}, ${end}) of request ${request}`, {
      details: { group: index, begin, end, ...(run == null ? {} : { runBegin: run.begin }) },
    });
  };
  // Managers are the user's own code: every number of theirs becomes a page address.
  if (run === null || typeof run !== 'object') return refuse(`${String(run)} instead of a run`);
  if (!(run.slots instanceof Int32Array)) return refuse(`slots that are no Int32Array (${typeName(run.slots)})`);
  if (!Number.isSafeInteger(run.begin)) return refuse(`a run that begins at ${String(run.begin)}`);
  const runEnd = run.begin + run.slots.length;
  const isComplete = run.begin === begin || (completeness === 'suffix' && run.begin > begin);
  if (!isComplete || runEnd !== end) refuse(`blocks [${run.begin}, ${runEnd})`);
  if ((run.stride ?? 1) !== 1) refuse(`a run of stride ${String(run.stride)}`);
  const { slots } = run;
  const { slotCount } = cache.layerGroups[index] as LayerGroup;
  for (let i = 0; i < slots.length; i++) {
    const slot = slots[i] as number;
    if (slot === HOLE) refuse(`a run with a hole, at block ${run.begin + i},`);
    if (slot < 0 || slot >= slotCount) refuse(`slot ${slot} of ${slotCount} for block ${run.begin + i}`);
  }
  return run;
}

/** A run in a rank's own count of blocks, as ordinals of the prompt. */
function inPromptOrdinals({ begin, slots }: BlockRun, { cpSize, cpRank }: ContextParallelPlace): BlockRun {
  return { begin: cpRank + begin * cpSize, slots, stride: cpSize };
}
