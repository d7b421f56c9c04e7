import { ArgumentError } from '../errors.js';
import type { BlockRun } from '../geometry/block-run.js';
import { pairRuns } from '../geometry/pair-runs.js';
import type { GroupMapping, PeerMapping } from './peer-mapping.js';
import { PlanStatsCounter } from './plan-stats.js';
import { sortSlotPairs } from './sort-slot-pairs.js';
import type { GroupPlan, TransferPlan } from './transfer-plan.js';

/**
 * Which bytes of one slice go where. Costs O(overlap of the runs + fragments), whatever the length of the prompt (I5).
 *
 * @param mapping the peer's, from `mapPeer`
 * @param sourceRuns one entry per layer group: what the slice covers here; null = the group sends nothing
 * @param destinationRuns one entry per layer group: what the receiver asked for; may cover the whole prompt
 * @returns groups in ascending index; a group without a pair or without a shared layer is left out
 * @throws ArgumentError for a wrong number of runs, or a slot that its pool does not have
 * @throws RangeError for a run that is malformed
 */
export function planSlice(
  mapping: PeerMapping,
  sourceRuns: readonly (BlockRun | null)[],
  destinationRuns: readonly (BlockRun | null)[],
): TransferPlan {
  const groupCount = mapping.groups.length;
  if (sourceRuns.length !== groupCount || destinationRuns.length !== groupCount) {
    throw new ArgumentError(
      `${sourceRuns.length} source and ${destinationRuns.length} destination runs for ${groupCount} layer groups`,
    );
  }
  const groups: GroupPlan[] = [];
  const stats = new PlanStatsCounter();
  for (let index = 0; index < groupCount; index++) {
    const group = mapping.groups[index] as GroupMapping;
    const [source, destination] = [sourceRuns[index], destinationRuns[index]];
    if (source == null || destination == null || group.fragments.length === 0) continue;
    const slotPairs = sortSlotPairs(pairRuns(source, destination));
    if (slotPairs.length === 0) continue;
    checkSlots(slotPairs, group);
    stats.add(group, slotPairs);
    groups.push({ group: group.group, fragments: group.fragments, slotPairs });
  }
  return { groups, stats: stats.result() };
}

/**
 * The plan that moves one aux slot.
 * @throws ArgumentError when a side has no aux buffer or not this slot
 */
export function planAux(mapping: PeerMapping, sourceSlot: number, destinationSlot: number): TransferPlan {
  const { aux } = mapping;
  if (aux === null) throw new ArgumentError('no aux buffer on one of the two sides');
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
  return { groups: [{ group: aux.group, fragments: aux.fragments, slotPairs }], stats: stats.result() };
}

/** One wrong slot would be someone else's page. `pairRuns` gives no negative ones. */
function checkSlots(slotPairs: Int32Array, group: GroupMapping): void {
  for (let i = 0; i < slotPairs.length; i += 2) {
    refuseMissing(slotPairs[i] as number, group.sourceSlotCount, 'source', group);
    refuseMissing(slotPairs[i + 1] as number, group.destinationSlotCount, 'destination', group);
  }
}

function refuseMissing(slot: number, slotCount: number, side: string, group: GroupMapping): void {
  if (slot < slotCount) return;
  throw new ArgumentError(`layer group ${group.group}: ${side} slot ${slot} is outside [0, ${slotCount})`);
}
