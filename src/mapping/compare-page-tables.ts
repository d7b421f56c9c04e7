import { brief } from './brief.js';
import type { Finding } from './compatibility.js';
import type { LayerEntry, LayerView, PageTable, PageTableGroup, ViewRole } from './page-table.js';

/** One layer's bytes of one role, with the view that describes them. */
export interface PlacedEntry {
  readonly view: LayerView;
  readonly entry: LayerEntry;
}

/** Entries of a group by role, then by global layer id. */
export function entriesByRole(group: PageTableGroup): Map<ViewRole, Map<number, PlacedEntry>> {
  const byRole = new Map<ViewRole, Map<number, PlacedEntry>>();
  for (const view of group.views) {
    const layers = byRole.get(view.role) ?? new Map<number, PlacedEntry>();
    for (const entry of view.layers) layers.set(entry.layer, { view, entry });
    byRole.set(view.role, layers);
  }
  return byRole;
}

/** Two valid page tables, group by group. Groups meet by index. */
export function comparePageTables(a: PageTable, b: PageTable): Finding[] {
  if (a.layerGroups.length !== b.layerGroups.length) {
    return [
      {
        field: 'layerGroups',
        a: String(a.layerGroups.length),
        b: String(b.layerGroups.length),
        verdict: 'refused: the layers are grouped differently',
        whichSideToChange: 'either: serve the same model with the same cache groups',
      },
    ];
  }
  const findings: Finding[] = [];
  a.layerGroups.forEach((group, index) => {
    const other = b.layerGroups[index] as PageTableGroup;
    const field = `layerGroups[${index}]`;
    findings.push(...compareGroups(group, other, field), ...compareLayerSets(group, other, field));
  });
  if (a.aux !== null && b.aux !== null) findings.push(...compareGroups(a.aux, b.aux, 'aux'));
  return findings;
}

/** Whether the bytes of the layers both groups hold mean the same; says nothing of layers that only one holds. */
export function compareGroups(a: PageTableGroup, b: PageTableGroup, field: string): Finding[] {
  if (a.kind !== b.kind) {
    const mla = a.kind === 'latent' || b.kind === 'latent';
    return [
      {
        field: `${field}.kind`,
        a: a.kind,
        b: b.kind,
        verdict: mla ? 'refused: MLA against a cache that is not MLA' : 'refused: different cache kinds',
        whichSideToChange: 'either: serve the same model on both sides',
      },
    ];
  }
  const findings: Finding[] = [];
  const differ = (
    name: string,
    x: number | string | null,
    y: number | string | null,
    why: string,
    remedy: string,
  ): void => {
    if (x === y) return;
    findings.push({
      field: `${field}.${name}`,
      a: brief(x ?? 'none'),
      b: brief(y ?? 'none'),
      verdict: `refused: ${why}`,
      whichSideToChange: `either: ${remedy}`,
    });
  };
  differ('windowSize', a.windowSize, b.windowSize, 'the window differs', 'serve the same model with the same window');
  differ(
    'tokensPerBlock',
    a.tokensPerBlock,
    b.tokensPerBlock,
    'unequal block sizes are not supported',
    'set the same tokensPerBlock',
  );

  const entriesB = entriesByRole(b);
  const compared = new Set<string>();
  for (const [role, layers] of entriesByRole(a)) {
    for (const [layer, mine] of layers) {
      const theirs = entriesB.get(role)?.get(layer);
      if (theirs === undefined) continue;
      // One pair of views is compared once, not once per layer.
      const pair = `${a.views.indexOf(mine.view)} ${b.views.indexOf(theirs.view)}`;
      if (compared.has(pair)) continue;
      const before = findings.length;
      const [x, y] = [mine.view, theirs.view];
      differ(`${role}.dtype`, x.dtype, y.dtype, 'no converter between dtypes', 'set the same KV cache dtype');
      differ(`${role}.layout`, x.layout, y.layout, 'no converter between layouts', 'set the same KV layout');
      differ(`${role}.headsPerRank`, x.headsPerRank, y.headsPerRank, 'the heads differ', 'split the heads alike');
      differ(`${role}.headDim`, x.headDim, y.headDim, 'the head dim differs', 'serve the same model');
      if (findings.length === before) {
        differ(
          `${role}.bytes`,
          mine.entry.bytes,
          theirs.entry.bytes,
          'the page sizes differ',
          'use the same page format',
        );
      }
      if (findings.length > before) compared.add(pair);
    }
  }
  return findings;
}

function compareLayerSets(a: PageTableGroup, b: PageTableGroup, field: string): Finding[] {
  if (a.kind !== b.kind) return [];
  const findings: Finding[] = [];
  const [rolesA, rolesB] = [entriesByRole(a), entriesByRole(b)];
  for (const role of new Set([...rolesA.keys(), ...rolesB.keys()])) {
    const [layersA, layersB] = [layerList(rolesA.get(role)), layerList(rolesB.get(role))];
    if (layersA === layersB) continue;
    findings.push({
      field: `${field}.${role}.layers`,
      a: brief(layersA),
      b: brief(layersB),
      verdict: 'refused: the two ranks hold different layers',
      whichSideToChange: 'either: serve the same model with the same pipeline split',
    });
  }
  return findings;
}

/** `0-31, 40`, or `none`. */
function layerList(layers: ReadonlyMap<number, PlacedEntry> | undefined): string {
  if (layers === undefined || layers.size === 0) return 'none';
  const stretches: [number, number][] = [];
  for (const layer of [...layers.keys()].sort((x, y) => x - y)) {
    const last = stretches.at(-1);
    if (last !== undefined && last[1] === layer - 1) last[1] = layer;
    else stretches.push([layer, layer]);
  }
  return stretches.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(', ');
}
