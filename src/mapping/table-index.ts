import { LayerCounts } from './layer-counts.js';
import type { PageTable, PageTableGroup, ViewRole } from './page-table.js';
import { entriesByKey, type PlacedEntry, type ViewKey, viewsPerLayer } from './view-side.js';

/** Every entry of a table by view key, then by global layer id. */
export type EntryIndex = ReadonlyMap<ViewKey, ReadonlyMap<number, PlacedEntry>>;

/** A (role, layer) that another group of the table holds already. */
export interface HeldTwice {
  readonly group: number;
  readonly role: ViewRole;
  readonly layer: number;
}

/** What comparing and mapping look for in one page table. */
export interface TableIndex {
  /** Of the layer groups. */
  readonly entries: EntryIndex;
  readonly aux: EntryIndex;
  /** The first one of each group. */
  readonly heldTwice: readonly HeldTwice[];
  /** Attention or latent, by layer; one that has both counts as latent. */
  readonly kinds: ReadonlyMap<number, { readonly kind: PageTableGroup['kind']; readonly group: number }>;
}

/** A page table is not changed by anybody, so that each is walked once, however many peers it is compared with and mapped to. */
const indexes = new WeakMap<PageTable, TableIndex>();

export function indexOf(table: PageTable): TableIndex {
  let index = indexes.get(table);
  if (index === undefined) {
    index = {
      entries: entriesByKey(table.layerGroups),
      aux: entriesByKey(table.aux === null ? [] : [table.aux]),
      heldTwice: heldTwice(table),
      kinds: kindsByLayer(table),
    };
    indexes.set(table, index);
  }
  return index;
}

function heldTwice({ layerGroups }: PageTable): HeldTwice[] {
  const seen = new LayerCounts();
  const doubles: HeldTwice[] = [];
  for (const [group, { views }] of layerGroups.entries())
    for (const { role, layers } of views)
      for (const { layer } of layers)
        if (seen.add(role, layer) > viewsPerLayer(role) && doubles.at(-1)?.group !== group)
          doubles.push({ group, role, layer });
  return doubles;
}

function kindsByLayer({ layerGroups }: PageTable): TableIndex['kinds'] {
  const kinds = new Map<number, { kind: PageTableGroup['kind']; group: number }>();
  for (const [group, { kind, views }] of layerGroups.entries()) {
    if (kind !== 'attention' && kind !== 'latent') continue;
    for (const view of views)
      for (const { layer } of view.layers) if (kinds.get(layer)?.kind !== 'latent') kinds.set(layer, { kind, group });
  }
  return kinds;
}
