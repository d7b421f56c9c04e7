import type { LayerEntry, LayerView, PageTableGroup, ViewRole } from './page-table.js';
import { type RankPlace, tensorParallel } from './rank-place.js';

/** One layer's bytes of one view, and what they share with the same layer on other ranks. */
export interface ViewSide {
  readonly view: LayerView;
  readonly entry: LayerEntry;
  /** 1 in a state group: its slots are not addressed by tokens. */
  readonly tokensPerBlock: number;
  /** Among the ranks that share a request's heads. */
  readonly tpSize: number;
  readonly tpRank: number;
}

/** One layer's bytes of one view, with the group they lie in. */
export interface PlacedEntry {
  readonly group: number;
  readonly view: LayerView;
  readonly entry: LayerEntry;
}

/** Role of a view; `scale` and `scale 2` where keys and values have scales of their own. */
export type ViewKey = string;

/** A layer group, and where the rank that holds it stands in its instance. */
export interface PlacedGroup {
  readonly group: PageTableGroup;
  readonly place: RankPlace;
}

/** Entries of one group as the rules of `compareViews` and `viewFragments` see them: with its block size and the place of its rank. */
export function viewSides({ group, place }: PlacedGroup): (of: PlacedEntry) => ViewSide {
  const { size: tpSize, rank: tpRank } = tensorParallel(place);
  const tokensPerBlock = tokensOf(group);
  return ({ view, entry }) => ({ view, entry, tokensPerBlock, tpSize, tpRank });
}

/** Every entry of some groups by view key, then by global layer id. Keys come in the order of the views. */
export function entriesByKey(groups: readonly PageTableGroup[]): Map<ViewKey, Map<number, PlacedEntry>> {
  const byKey = new Map<ViewKey, Map<number, PlacedEntry>>();
  groups.forEach(({ views }, index) => {
    for (const view of views) {
      for (const entry of view.layers) {
        const placed = { group: index, view, entry };
        if (!addEntry(byKey, view.role, placed)) addEntry(byKey, `${view.role} 2`, placed);
      }
    }
  });
  return byKey;
}

/** How often a role may exist for one layer. */
export function viewsPerLayer(role: ViewRole): number {
  return role === 'scale' ? 2 : 1;
}

function addEntry(byKey: Map<ViewKey, Map<number, PlacedEntry>>, key: ViewKey, placed: PlacedEntry): boolean {
  const layers = byKey.get(key) ?? new Map<number, PlacedEntry>();
  if (layers.has(placed.entry.layer)) return false;
  layers.set(placed.entry.layer, placed);
  byKey.set(key, layers);
  return true;
}

/** A source entry and the destination entry of the same view and layer. */
export interface EntryPair {
  readonly key: ViewKey;
  readonly source: PlacedEntry;
  readonly destination: PlacedEntry;
}

/** The groups of two tables that share a layer, and what they share in canonical order: by layer, then by view of the source. */
export interface GroupPair {
  readonly group: number;
  readonly peerGroup: number;
  readonly entries: readonly EntryPair[];
}

/**
 * What both have of the same view and layer, by the groups it lies in. Groups meet by what they hold, never by index: a pipeline stage may lack
 * a group, or cut it otherwise.
 */
export function pairEntries(
  source: ReadonlyMap<ViewKey, ReadonlyMap<number, PlacedEntry>>,
  destination: ReadonlyMap<ViewKey, ReadonlyMap<number, PlacedEntry>>,
): GroupPair[] {
  const pairs = new Map<string, { group: number; peerGroup: number; entries: EntryPair[] }>();
  for (const [key, layers] of source) {
    const theirs = destination.get(key);
    if (theirs === undefined) continue;
    for (const [layer, mine] of layers) {
      const other = theirs.get(layer);
      if (other === undefined) continue;
      const name = `${mine.group} ${other.group}`;
      const pair = pairs.get(name) ?? { group: mine.group, peerGroup: other.group, entries: [] };
      pair.entries.push({ key, source: mine, destination: other });
      pairs.set(name, pair);
    }
  }
  const ordered = [...pairs.values()].sort((x, y) => x.group - y.group || x.peerGroup - y.peerGroup);
  // Stable: entries of one layer stay in the order of the views.
  for (const { entries } of ordered) entries.sort((x, y) => x.source.entry.layer - y.source.entry.layer);
  return ordered;
}

/** Tokens of a block as views see them. */
export function tokensOf(group: PageTableGroup): number {
  return group.kind === 'state' ? 1 : group.tokensPerBlock;
}
