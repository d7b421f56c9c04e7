import { CompatibilityError } from '../errors.js';
import type { PagePool, PageTable, PageTableGroup } from './page-table.js';
import { planAuxFragments, planFragments } from './plan-fragments.js';
import { AUX_GROUP, type Fragment } from './transfer-plan.js';

/** One fragment with the pools its slots lie in. */
export interface PlacedFragment {
  readonly fragment: Fragment;
  readonly source: PagePool;
  readonly destination: PagePool;
  /** The last piece of slot n touches the first piece of slot n + 1, on both sides. */
  readonly fillsStride: boolean;
}

/** How one layer group (or aux) of the writer maps to the receiver's. */
export interface GroupMapping {
  /** Index into `PageTable.layerGroups`, or AUX_GROUP. */
  readonly group: number;
  /** Empty when the two sides share nothing of the group. */
  readonly fragments: readonly Fragment[];
  readonly placed: readonly PlacedFragment[];
  readonly bytesPerPair: number;
  readonly piecesPerPair: number;
  readonly stridesFilled: number;
  readonly sourceSlotCount: number;
  readonly destinationSlotCount: number;
}

/** Everything about a peer that slices need; it does not change while the peer lives. */
export interface PeerMapping {
  readonly groups: readonly GroupMapping[];
  /** Null when a side has no aux buffer. */
  readonly aux: GroupMapping | null;
}

/**
 * Plans once per peer what all slices to it share, so that a slice costs only its own blocks (I5).
 * @throws CompatibilityError when the tables do not fit; `explainCompatibility` says why before it comes to that
 */
export function mapPeer(source: PageTable, destination: PageTable): PeerMapping {
  if (source.layerGroups.length !== destination.layerGroups.length) {
    throw new CompatibilityError(
      `${source.layerGroups.length} layer groups against ${destination.layerGroups.length}: serve the same model on both sides`,
    );
  }
  const groups = source.layerGroups.map((group, index) =>
    mapGroup(
      index,
      planFragments(source, destination, index),
      { table: source, group },
      { table: destination, group: destination.layerGroups[index] as PageTableGroup },
    ),
  );
  const [auxSource, auxDestination] = [source.aux, destination.aux];
  const aux =
    auxSource === null || auxDestination === null
      ? null
      : mapGroup(
          AUX_GROUP,
          planAuxFragments(source, destination),
          { table: source, group: auxSource },
          { table: destination, group: auxDestination },
        );
  return { groups, aux };
}

interface Side {
  readonly table: PageTable;
  readonly group: PageTableGroup;
}

function mapGroup(group: number, fragments: readonly Fragment[], from: Side, to: Side): GroupMapping {
  const placed = fragments.map((fragment) => {
    const source = from.table.pools[fragment.srcPool] as PagePool;
    const destination = to.table.pools[fragment.dstPool] as PagePool;
    const fillsStride =
      source.slotStride === spanOf(fragment, fragment.srcStride) &&
      destination.slotStride === spanOf(fragment, fragment.dstStride);
    return { fragment, source, destination, fillsStride };
  });
  return {
    group,
    fragments,
    placed,
    bytesPerPair: fragments.reduce((total, { bytes, count }) => total + bytes * count, 0),
    piecesPerPair: fragments.reduce((total, { count }) => total + count, 0),
    stridesFilled: placed.filter(({ fillsStride }) => fillsStride).length,
    sourceSlotCount: from.group.slotCount,
    destinationSlotCount: to.group.slotCount,
  };
}

/** From the first byte of the first piece to the last byte of the last. */
export function spanOf(fragment: Fragment, stride: number): number {
  return (fragment.count - 1) * stride + fragment.bytes;
}
