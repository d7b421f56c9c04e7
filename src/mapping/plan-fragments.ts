import { ArgumentError, CompatibilityError } from '../errors.js';
import { compareGroups, entriesByRole } from './compare-page-tables.js';
import type { PageTable, PageTableGroup } from './page-table.js';
import type { Fragment } from './transfer-plan.js';

/**
 * What one pair of slots of a layer group moves: the bytes of every layer that both sides hold, found by (role, global layer id).
 * Planned once per peer. Layers and views that touch in the same pools of both sides come out as one fragment, so a slot that holds
 * all layers moves as one piece. Ordered by source pool and offset; both sides can derive the same list from the two tables.
 *
 * @param source table of the side that writes
 * @param destination table of the side that is written to
 * @param group index into `layerGroups` of both; groups meet by index
 * @returns empty when the sides share no layer of the group
 * @throws CompatibilityError when the shared layers differ in anything but their place; `details.findings` lists what
 * @throws ArgumentError for an index that is no group
 */
export function planFragments(source: PageTable, destination: PageTable, group: number): Fragment[] {
  const [from, to] = [source.layerGroups[group], destination.layerGroups[group]];
  if (from === undefined || to === undefined) {
    throw new ArgumentError(
      `layer group ${group} does not exist on both sides (${source.layerGroups.length} and ${destination.layerGroups.length})`,
    );
  }
  return planGroup(from, to, `layerGroups[${group}]`);
}

/** As `planFragments`, for the aux buffers. Empty when a side has none. */
export function planAuxFragments(source: PageTable, destination: PageTable): Fragment[] {
  if (source.aux === null || destination.aux === null) return [];
  return planGroup(source.aux, destination.aux, 'aux');
}

function planGroup(from: PageTableGroup, to: PageTableGroup, field: string): Fragment[] {
  const findings = compareGroups(from, to, field);
  const [first] = findings;
  if (first !== undefined) {
    throw new CompatibilityError(
      `${first.field}: ${first.verdict} (${first.a} and ${first.b}); ${first.whichSideToChange}`,
      {
        details: { findings },
      },
    );
  }
  const fragments: Fragment[] = [];
  const theirs = entriesByRole(to);
  for (const [role, layers] of entriesByRole(from)) {
    for (const [layer, { entry }] of layers) {
      const peer = theirs.get(role)?.get(layer)?.entry;
      if (peer === undefined) continue;
      fragments.push({
        srcPool: entry.pool,
        srcOffset: entry.offset,
        dstPool: peer.pool,
        dstOffset: peer.offset,
        bytes: entry.bytes,
        count: 1,
        srcStride: 0,
        dstStride: 0,
      });
    }
  }
  fragments.sort((x, y) => x.srcPool - y.srcPool || x.srcOffset - y.srcOffset);
  return mergeTouching(fragments);
}

function mergeTouching(fragments: readonly Fragment[]): Fragment[] {
  const merged: Fragment[] = [];
  for (const next of fragments) {
    const last = merged.at(-1);
    const touches =
      last !== undefined &&
      last.srcPool === next.srcPool &&
      last.dstPool === next.dstPool &&
      last.srcOffset + last.bytes === next.srcOffset &&
      last.dstOffset + last.bytes === next.dstOffset;
    if (touches) merged[merged.length - 1] = { ...last, bytes: last.bytes + next.bytes };
    else merged.push(next);
  }
  return merged;
}
