import { CompatibilityError } from '../errors.js';
import { mergeTouching } from './box-fragments.js';
import { compareAux, compareShared } from './compare-page-tables.js';
import type { Finding } from './finding.js';
import type { PagePool, PageTable, PageTableGroup } from './page-table.js';
import { checkPlace, ownsAux, ranksOverlap } from './peers-of.js';
import { LONE_RANK, type RankPlaceInDp } from './rank-place.js';
import { isElected, pairReplicas } from './shard.js';
import { indexOf } from './table-index.js';
import { AUX_GROUP, type Fragment } from './transfer-plan.js';
import { validatePageTable } from './validate-page-table.js';
import { viewFragments } from './view-fragments.js';
import { type EntryPair, pairEntries, tokensOf, viewSides } from './view-side.js';

/** How the blocks of two groups meet; see `pairSubBlocks`. */
export interface BlockPairing {
  /** Smaller blocks in a source block, and in a destination block; one of them is 1. */
  readonly sourceParts: number;
  readonly destinationParts: number;
  /** Every how many ordinals the side owns one: its context parallel size. */
  readonly sourceStride: number;
  readonly destinationStride: number;
}

/** How one part of the blocks of a layer group (or aux) of the writer maps to a group of the receiver. */
export interface GroupMapping {
  /** Index into the source's `PageTable.layerGroups`, or AUX_GROUP. */
  readonly group: number;
  /** Index into the destination's, or AUX_GROUP. */
  readonly peerGroup: number;
  /** Which part of the larger block; 0 where the block sizes are equal. */
  readonly part: number;
  readonly pairing: BlockPairing;
  /** By layer, then by view. Empty when another rank holds, or is elected to write, what the groups share. */
  readonly fragments: readonly Fragment[];
  /** Where each fragment begins and ends, `EDGE_FIELDS` numbers each: what counting joined pieces needs of it, without its objects. */
  readonly edges: Float64Array;
  readonly bytesPerPair: number;
  readonly piecesPerPair: number;
  /** Fragments whose pieces in neighbouring slots touch, on both sides. */
  readonly stridesFilled: number;
  readonly sourceSlotCount: number;
  readonly destinationSlotCount: number;
}

/** Everything about a peer that slices need; it does not change while the peer lives. */
export interface PeerMapping {
  readonly source: PageTable;
  readonly destination: PageTable;
  readonly places: MappingPlaces;
  /** In canonical order: by group, peer group, part. Groups without a common layer do not appear. */
  readonly groups: readonly GroupMapping[];
  /** Null when a side has no aux buffer, or when another rank sends it. */
  readonly aux: GroupMapping | null;
}

/** Where the two ranks stand in their instances; `RankInfo`s fit. */
export interface MappingPlaces {
  readonly source: RankPlaceInDp;
  readonly destination: RankPlaceInDp;
}

/** Per side: the address of the first byte in slot 0, the slot stride, and the address behind the last byte in slot 0; source first. */
export const EDGE_FIELDS = 6;

const SINGLE_RANKS: MappingPlaces = { source: LONE_RANK, destination: LONE_RANK };

const WHOLE_SLOTS: BlockPairing = { sourceParts: 1, destinationParts: 1, sourceStride: 1, destinationStride: 1 };

/**
 * Maps once per peer what all slices to it share, so that a slice costs only its own blocks (I5). Both sides derive the same
 * mapping from the two rank infos.
 *
 * @param places default: each side is the only rank of its instance
 * @throws CompatibilityError when shared layers do not fit; `details.findings` lists what, as `explainCompatibility` does before it
 *   comes to that
 * @throws ArgumentError for topologies that do not fit, or a page table that `validatePageTable` refuses
 */
export function mapPeer(source: PageTable, destination: PageTable, places: MappingPlaces = SINGLE_RANKS): PeerMapping {
  requireValid(source);
  requireValid(destination);
  const from = { table: source, place: places.source };
  const to = { table: destination, place: places.destination };
  refuse([...compareShared(from, to), ...compareAux(source, destination)]);
  if (!ranksOverlap(places.source, places.destination)) {
    return { source, destination, places, groups: [], aux: null };
  }
  const groups: GroupMapping[] = [];
  for (const { group, peerGroup, entries } of pairEntries(indexOf(source).entries, indexOf(destination).entries)) {
    const [mine, theirs] = [source.layerGroups[group], destination.layerGroups[peerGroup]] as PageTableGroup[];
    if (mine === undefined || theirs === undefined) continue;
    const side = { index: group, table: source, group: mine, place: places.source };
    const other = { index: peerGroup, table: destination, group: theirs, place: places.destination };
    groups.push(...mapGroup(side, other, entries));
  }
  return { source, destination, places, groups, aux: mapAux(source, destination, places) };
}

/** Tables that were found valid: each is looked at once, however many peers it is mapped to. */
const valid = new WeakSet<PageTable>();

/** An offset outside its slot would be an address outside the pool. */
function requireValid(table: PageTable): void {
  if (typeof table === 'object' && table !== null && valid.has(table)) return;
  validatePageTable(table, 'own');
  valid.add(table);
}

/**
 * `mapPeer` for two published ranks.
 * @throws as `mapPeer`
 */
export function mapRanks(
  source: RankPlaceInDp & { readonly pageTable: PageTable },
  destination: RankPlaceInDp & { readonly pageTable: PageTable },
): PeerMapping {
  checkPlace(source, 'source');
  checkPlace(destination, 'destination');
  return mapPeer(source.pageTable, destination.pageTable, { source, destination });
}

interface GroupSide {
  readonly index: number;
  readonly table: PageTable;
  readonly group: PageTableGroup;
  readonly place: RankPlaceInDp;
}

function mapGroup(from: GroupSide, to: GroupSide, entries: readonly EntryPair[]): GroupMapping[] {
  const pairing = pairingOf(from, to);
  const parts = Math.max(pairing.sourceParts, pairing.destinationParts);
  const { dpRank } = to.place;
  const [sourceSide, destinationSide] = [viewSides(from), viewSides(to)];
  const isAnothers = isStateOfAnotherReplica(from, to);
  const mapped: GroupMapping[] = [];
  for (let part = 0; part < parts; part++) {
    const fragments: Fragment[] = [];
    if (!isAnothers)
      for (const { source, destination } of entries)
        fragments.push(...viewFragments(sourceSide(source), destinationSide(destination), part, dpRank));
    mapped.push(place(from, to, part, pairing, mergeTouching(fragments)));
  }
  return mapped;
}

/** Context parallel ranks share out blocks, and each keeps the whole state. */
function isStateOfAnotherReplica({ group, place: source }: GroupSide, { place: destination }: GroupSide): boolean {
  if (group.kind !== 'state') return false;
  return !isElected(pairReplicas(source.cpSize, source.cpRank, destination.cpSize), destination.dpRank);
}

function pairingOf(from: GroupSide, to: GroupSide): BlockPairing {
  if (from.group.kind === 'state') return WHOLE_SLOTS;
  const [source, destination] = [tokensOf(from.group), tokensOf(to.group)];
  return {
    sourceParts: Math.max(1, source / destination),
    destinationParts: Math.max(1, destination / source),
    sourceStride: from.place.cpSize,
    destinationStride: to.place.cpSize,
  };
}

function mapAux(source: PageTable, destination: PageTable, places: MappingPlaces): GroupMapping | null {
  if (source.aux === null || destination.aux === null || !ownsAux(places.source, places.destination)) return null;
  const [pair] = pairEntries(indexOf(source).aux, indexOf(destination).aux);
  const from = { index: AUX_GROUP, table: source, group: source.aux, place: LONE_RANK };
  const to = { index: AUX_GROUP, table: destination, group: destination.aux, place: LONE_RANK };
  return mapGroup(from, to, pair?.entries ?? [])[0] ?? null;
}

function place(
  from: GroupSide,
  to: GroupSide,
  part: number,
  pairing: BlockPairing,
  fragments: readonly Fragment[],
): GroupMapping {
  const edges = new Float64Array(EDGE_FIELDS * fragments.length);
  let stridesFilled = 0;
  fragments.forEach((fragment, index) => {
    const source = from.table.pools[fragment.srcPool] as PagePool;
    const destination = to.table.pools[fragment.dstPool] as PagePool;
    const [srcSpan, dstSpan] = [spanOf(fragment, fragment.srcStride), spanOf(fragment, fragment.dstStride)];
    const [srcBegin, dstBegin] = [source.base + fragment.srcOffset, destination.base + fragment.dstOffset];
    edges.set([srcBegin, source.slotStride, srcBegin + srcSpan], EDGE_FIELDS * index);
    edges.set([dstBegin, destination.slotStride, dstBegin + dstSpan], EDGE_FIELDS * index + EDGE_FIELDS / 2);
    // The last piece of slot n touches the first piece of slot n + 1, on both sides.
    if (source.slotStride === srcSpan && destination.slotStride === dstSpan) stridesFilled++;
  });
  return {
    group: from.index,
    peerGroup: to.index,
    part,
    pairing,
    fragments,
    edges,
    bytesPerPair: fragments.reduce((total, { bytes, count }) => total + bytes * count, 0),
    piecesPerPair: fragments.reduce((total, { count }) => total + count, 0),
    stridesFilled,
    sourceSlotCount: from.group.slotCount,
    destinationSlotCount: to.group.slotCount,
  };
}

function refuse(findings: readonly Finding[]): void {
  const [first] = findings;
  if (first === undefined) return;
  throw new CompatibilityError(
    `${first.field}: ${first.verdict} (${first.a} and ${first.b}); ${first.whichSideToChange}`,
    { details: { findings } },
  );
}

/** From the first byte of the first piece to the last byte of the last. */
function spanOf(fragment: Fragment, stride: number): number {
  return (fragment.count - 1) * stride + fragment.bytes;
}
