import { ArgumentError } from '../errors.js';
import { type BlockRun, HOLE, runEnd } from '../geometry/block-run.js';
import { typeName } from '../geometry/bounds.js';
import { pairSubBlocks } from '../geometry/pair-runs.js';
import type { GroupMapping, PeerMapping } from './peer-mapping.js';
import { PlanStatsCounter } from './plan-stats.js';
import { repeatedSlot } from './repeated-slot.js';
import { sortSlotPairs } from './sort-slot-pairs.js';
import type { GroupPlan, PairOrder, TransferPlan } from './transfer-plan.js';

/**
 * Which bytes of one slice go where. Costs O(overlap of the runs + fragments), whatever the length of the prompt (I5).
 *
 * @param mapping the peer's, from `mapPeer`
 * @param sourceRuns one entry per layer group of the source: what the slice covers here; null = the group sends nothing
 * @param destinationRuns one entry per layer group of the destination: what the receiver asked for; may cover the whole prompt.
 *   Runs as they came over the wire: the stride of a context parallel rank is added here
 * @param order of the pairs of each group; default `source_slot`
 * @returns groups by (group, peer group, part); one without a pair or without a shared byte is left out
 * @throws ArgumentError for a wrong number of runs, slots that are no Int32Array, a run with another stride than its rank has, a slot
 *   that its pool lacks, or a destination slot that the slice names for two blocks (one would be lost)
 * @throws RangeError for a run that is malformed
 */
export function planSlice(
  mapping: PeerMapping,
  sourceRuns: readonly (BlockRun | null)[],
  destinationRuns: readonly (BlockRun | null)[],
  order: PairOrder = 'source_slot',
): TransferPlan {
  if (order !== 'source_slot' && order !== 'ordinal')
    throw new ArgumentError(`order must be source_slot or ordinal, got ${String(order)}`);
  checkRunCount(sourceRuns, mapping.source.layerGroups.length, 'source');
  checkRunCount(destinationRuns, mapping.destination.layerGroups.length, 'destination');
  const groups: GroupPlan[] = [];
  const stats = new PlanStatsCounter();
  let parts: readonly Int32Array[] = [];
  for (const group of mapping.groups) {
    const [source, destination] = [sourceRuns[group.group], destinationRuns[group.peerGroup]];
    if (source == null || destination == null) continue;
    // The parts of one pair of groups follow one another.
    if (group.part === 0) parts = pairsOf(group, source, destination);
    const pairs = parts[group.part] as Int32Array;
    if (group.fragments.length === 0 || pairs.length === 0) continue;
    const slotPairs = order === 'source_slot' ? sortSlotPairs(pairs) : pairs;
    checkSlots(slotPairs, group);
    stats.add(group, slotPairs);
    groups.push({
      group: group.group,
      peerGroup: group.peerGroup,
      part: group.part,
      fragments: group.fragments,
      slotPairs,
    });
  }
  return { groups, stats: stats.result() };
}

/**
 * The plan that moves one aux slot.
 * @throws ArgumentError when a side has no aux buffer or not this slot, or when another rank sends the aux
 */
export function planAux(mapping: PeerMapping, sourceSlot: number, destinationSlot: number): TransferPlan {
  const { aux } = mapping;
  if (aux === null) {
    const absent = mapping.source.aux === null || mapping.destination.aux === null;
    throw new ArgumentError(absent ? 'no aux buffer on one of the two sides' : 'another rank sends aux to this peer');
  }
  for (const [slot, count, side] of [
    [sourceSlot, aux.sourceSlotCount, 'source'],
    [destinationSlot, aux.destinationSlotCount, 'destination'],
  ] as const) {
    if (!Number.isInteger(slot) || slot < 0 || slot >= count) {
      throw new ArgumentError(`aux: ${side} slot ${String(slot)} is outside [0, ${count})`);
    }
  }
  const slotPairs = Int32Array.of(sourceSlot, destinationSlot);
  const stats = new PlanStatsCounter();
  stats.add(aux, slotPairs);
  const { group, peerGroup, part, fragments } = aux;
  return { groups: [{ group, peerGroup, part, fragments, slotPairs }], stats: stats.result() };
}

/** The pairs of each part of two groups. Exported for the byte count that a receiver expects. */
export function pairsOf({ group, peerGroup, pairing }: GroupMapping, source: BlockRun, destination: BlockRun) {
  const { sourceParts, sourceStride, destinationParts, destinationStride } = pairing;
  const from = ofRank(source, sourceStride, `layer group ${group}: source run`);
  const field = `layer group ${peerGroup}: destination run`;
  const to = ofRank(destination, destinationStride, field);
  const parts = pairSubBlocks(from, sourceParts, to, destinationParts);
  const { first, end } = met(from, sourceParts, to, destinationParts);
  const twice = repeatedSlot(destination.slots, first, end);
  if (twice !== HOLE) throw new ArgumentError(`${field} names slot ${twice} for two blocks`);
  return parts;
}

/** Which slots of the destination run belong to blocks that the source run covers in part at least: a slice looks at no others (I5). */
function met(source: BlockRun, sourceParts: number, destination: BlockRun, destinationParts: number) {
  const { begin, slots, stride = 1 } = destination;
  const indexOf = (ordinal: number): number =>
    Math.min(slots.length, Math.max(0, Math.ceil((ordinal - begin) / stride)));
  return {
    first: indexOf(Math.floor((source.begin * sourceParts) / destinationParts)),
    end: indexOf(Math.ceil((runEnd(source) * sourceParts) / destinationParts)),
  };
}

function ofRank(run: BlockRun, stride: number, field: string): BlockRun {
  if (!(run.slots instanceof Int32Array))
    throw new ArgumentError(`${field}: slots must be an Int32Array, got ${typeName(run.slots)}`);
  if (run.stride === stride || (run.stride === undefined && stride === 1)) return run;
  if (run.stride !== undefined) {
    throw new ArgumentError(`${field} has stride ${run.stride}, the rank owns every block of ${stride}`);
  }
  return { begin: run.begin, slots: run.slots, stride };
}

export function checkRunCount(runs: readonly unknown[], groupCount: number, side: string): void {
  if (!Array.isArray(runs)) throw new ArgumentError(`${side} runs must be a list, got ${typeName(runs)}`);
  if (runs.length !== groupCount) throw new ArgumentError(`${runs.length} ${side} runs for ${groupCount} layer groups`);
}

/** One wrong slot would be someone else's page. Pairing gives no negative ones. */
function checkSlots(slotPairs: Int32Array, group: GroupMapping): void {
  const { sourceSlotCount, destinationSlotCount } = group;
  for (let i = 0; i < slotPairs.length; i += 2) {
    const from = slotPairs[i] as number;
    const to = slotPairs[i + 1] as number;
    if (from >= sourceSlotCount) refuseSlot(from, sourceSlotCount, 'source', group.group);
    if (to >= destinationSlotCount) refuseSlot(to, destinationSlotCount, 'destination', group.peerGroup);
  }
}

function refuseSlot(slot: number, slotCount: number, side: string, group: number): never {
  throw new ArgumentError(`layer group ${group}: ${side} slot ${slot} is outside [0, ${slotCount})`);
}
