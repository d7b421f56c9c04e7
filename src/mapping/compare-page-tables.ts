import { brief } from './brief.js';
import { compareViews } from './compare-views.js';
import type { Finding } from './finding.js';
import type { PageTable } from './page-table.js';
import { LONE_RANK, type RankPlace, stageLayers } from './rank-place.js';
import { indexOf } from './table-index.js';
import { type EntryPair, type PlacedEntry, type PlacedGroup, pairEntries, tokensOf, viewSides } from './view-side.js';

/** Each part of a block has fragments of its own, so a peer's block size must not decide how many there are. */
const MAX_BLOCK_RATIO = 256;

/** A valid page table and the place of the rank that published it. */
export interface PlacedTable {
  readonly table: PageTable;
  readonly place: RankPlace;
}

/** Two valid page tables of ranks whose data overlaps: everything both ought to hold is there, and means the same. */
export function comparePageTables(a: PlacedTable, b: PlacedTable): Finding[] {
  const outside = [...layersOutsideStage(a, 'a'), ...layersOutsideStage(b, 'b')];
  if (outside.length > 0) return outside;
  const shared = compareShared(a, b);
  // Of tables that do not even have the same kinds of cache there is no more to say.
  if (shared.some(({ field }) => /\.(kind|views)$/.test(field))) return shared;
  return [...shared, ...compareLayerSets(a, b), ...compareAux(a.table, b.table)];
}

/** Whether what both tables hold means the same; says nothing of layers that only one holds. */
export function compareShared(a: PlacedTable, b: PlacedTable): Finding[] {
  const findings = [...heldTwice(a.table, 'a'), ...heldTwice(b.table, 'b'), ...compareKinds(a.table, b.table)];
  if (findings.length > 0) return findings;
  for (const { group, peerGroup, entries } of pairEntries(indexOf(a.table).entries, indexOf(b.table).entries)) {
    const [mine, theirs] = [a.table.layerGroups[group], b.table.layerGroups[peerGroup]];
    if (mine === undefined || theirs === undefined) continue;
    const [from, to] = [
      { group: mine, place: a.place },
      { group: theirs, place: b.place },
    ];
    findings.push(...compareGroups(from, to, entries, `layerGroups[${group}]`));
  }
  return findings;
}

function compareGroups(a: PlacedGroup, b: PlacedGroup, entries: readonly EntryPair[], field: string): Finding[] {
  const findings: Finding[] = [];
  const differ = (name: string, x: unknown, y: unknown, why: string, remedy: string): void => {
    findings.push({
      field: `${field}.${name}`,
      a: brief(x ?? 'none'),
      b: brief(y ?? 'none'),
      verdict: `refused: ${why}`,
      whichSideToChange: `either: ${remedy}`,
    });
  };
  if (a.group.kind !== b.group.kind) {
    differ('kind', a.group.kind, b.group.kind, 'different cache kinds', 'serve the same model on both sides');
    return findings;
  }
  const [windowA, windowB] = [a.group.windowSize, b.group.windowSize];
  if (windowA !== windowB) {
    differ('windowSize', windowA, windowB, 'the window differs', 'serve the same model with the same window');
  }
  const [sinksA, sinksB] = [a.group.sinkTokens ?? 0, b.group.sinkTokens ?? 0];
  if (sinksA !== sinksB) {
    differ('sinkTokens', sinksA, sinksB, 'the sink tokens differ', 'serve the same model with the same sink tokens');
  }
  const [tokensA, tokensB] = [tokensOf(a.group), tokensOf(b.group)];
  if (tokensA % tokensB !== 0 && tokensB % tokensA !== 0) {
    differ(
      'tokensPerBlock',
      tokensA,
      tokensB,
      'neither block size divides the other',
      'set the same tokensPerBlock, or a multiple',
    );
    return findings;
  }
  if (Math.max(tokensA / tokensB, tokensB / tokensA) > MAX_BLOCK_RATIO) {
    const why = `one block is more than ${MAX_BLOCK_RATIO} of the other`;
    differ('tokensPerBlock', tokensA, tokensB, why, 'set block sizes that are closer');
    return findings;
  }
  const [sideA, sideB] = [viewSides(a), viewSides(b)];
  const compared = new Set<string>();
  for (const { key, source, destination } of entries) {
    // One pair of views is compared once, not once per layer; layers of other sizes are another pair.
    const [i, j] = [a.group.views.indexOf(source.view), b.group.views.indexOf(destination.view)];
    const pair = `${i} ${j} ${source.entry.bytes} ${destination.entry.bytes}`;
    if (compared.has(pair)) continue;
    compared.add(pair);
    for (const found of compareViews(sideA(source), sideB(destination))) {
      differ(`${key}.${found.name}`, found.a, found.b, found.why, found.remedy);
    }
  }
  return findings;
}

/** Aux slots are the same whatever the model is split into. */
export function compareAux(a: PageTable, b: PageTable): Finding[] {
  if (a.aux === null || b.aux === null) return [];
  const [layoutA, layoutB] = [a.aux.auxLayout ?? 1, b.aux.auxLayout ?? 1];
  if (layoutA !== layoutB)
    return [
      {
        field: 'aux.auxLayout',
        a: String(layoutA),
        b: String(layoutB),
        verdict: 'refused: aux slots are packed differently, so that first tokens would be read wrongly',
        whichSideToChange: `${layoutA < layoutB ? 'a' : 'b'}: run a version of this package that packs them as the other side does`,
      },
    ];
  const place = LONE_RANK;
  const [pair] = pairEntries(indexOf(a).aux, indexOf(b).aux);
  return compareGroups({ group: a.aux, place }, { group: b.aux, place }, pair?.entries ?? [], 'aux');
}

/** A layer that two groups hold would be written twice, or to the wrong one. Says so once for each group. */
function heldTwice(table: PageTable, side: 'a' | 'b'): Finding[] {
  return indexOf(table).heldTwice.map(({ group, role, layer }) => {
    const shown = `${role} of layer ${layer}`;
    const [a, b] = side === 'a' ? [shown, 'not compared'] : ['not compared', shown];
    const verdict = 'refused: another group of the same page table holds that already';
    return { field: `layerGroups[${group}].views`, a, b, verdict, whichSideToChange: side };
  });
}

/** A layer whose blocks are of another kind on the other side; state is a cache of its own beside them. */
function compareKinds(a: PageTable, b: PageTable): Finding[] {
  const theirs = indexOf(b).kinds;
  const findings: Finding[] = [];
  const reported = new Set<number>();
  for (const [layer, mine] of indexOf(a).kinds) {
    const other = theirs.get(layer);
    if (other === undefined || other.kind === mine.kind || reported.has(mine.group)) continue;
    reported.add(mine.group);
    findings.push({
      field: `layerGroups[${mine.group}].kind`,
      a: mine.kind,
      b: other.kind,
      verdict: 'refused: MLA against a cache that is not MLA',
      whichSideToChange: 'either: serve the same model on both sides',
    });
  }
  return findings;
}

/** With one stage the ids of the layers need not be dense, so only a split says which belong to a rank. */
function layersOutsideStage({ table, place }: PlacedTable, side: 'a' | 'b'): Finding[] {
  if (place.ppSize === 1) return [];
  const { begin, end } = stageLayers(place);
  const findings: Finding[] = [];
  table.layerGroups.forEach(({ views }, group) => {
    const outside = new Set<number>();
    for (const { layers } of views)
      for (const { layer } of layers) if (layer < begin || layer >= end) outside.add(layer);
    if (outside.size === 0) return;
    const shown = layerList(outside);
    const [a, b] = side === 'a' ? [shown, 'not compared'] : ['not compared', shown];
    findings.push({
      field: `layerGroups[${group}].layers`,
      a,
      b,
      verdict: `refused: pipeline stage ${place.ppRank} has the layers ${begin} to ${end - 1} (layersPerStage)`,
      whichSideToChange: side,
    });
  });
  return findings;
}

/** What the stages have in common must be on both sides: a layer that one side lacks would arrive empty. */
function compareLayerSets(a: PlacedTable, b: PlacedTable): Finding[] {
  const isShared = sharedLayers(a.place, b.place);
  const [entriesA, entriesB] = [indexOf(a.table).entries, indexOf(b.table).entries];
  const findings: Finding[] = [];
  for (const key of new Set([...entriesA.keys(), ...entriesB.keys()])) {
    const [mine, theirs] = [entriesA.get(key), entriesB.get(key)];
    const [layersA, layersB] = [sharedOf(mine, isShared), sharedOf(theirs, isShared)];
    if (layersA.size === layersB.size && [...layersA].every((layer) => layersB.has(layer))) continue;
    const [textA, textB] = [layerList(layersA), layerList(layersB)];
    const first = [...layersA, ...layersB].filter((layer) => layersA.has(layer) !== layersB.has(layer))[0] as number;
    const group = mine?.get(first)?.group ?? theirs?.get(first)?.group ?? 0;
    findings.push({
      field: `layerGroups[${group}].${key}.layers`,
      a: brief(textA),
      b: brief(textB),
      verdict: 'refused: the two ranks hold different layers',
      whichSideToChange: 'either: serve the same model with the same cache groups',
    });
  }
  return findings;
}

function sharedOf(
  layers: ReadonlyMap<number, PlacedEntry> | undefined,
  isShared: (layer: number) => boolean,
): ReadonlySet<number> {
  const shared = new Set<number>();
  for (const layer of layers?.keys() ?? []) if (isShared(layer)) shared.add(layer);
  return shared;
}

function sharedLayers(a: RankPlace, b: RankPlace): (layer: number) => boolean {
  if (a.ppSize === 1 && b.ppSize === 1) return () => true;
  const [x, y] = [stageLayers(a), stageLayers(b)];
  return (layer) => layer >= Math.max(x.begin, y.begin) && layer < Math.min(x.end, y.end);
}

/** `0-31, 40`, or `none`. */
function layerList(layers: ReadonlySet<number>): string {
  if (layers.size === 0) return 'none';
  const stretches: [number, number][] = [];
  for (const layer of [...layers].sort((x, y) => x - y)) {
    const last = stretches.at(-1);
    if (last !== undefined && last[1] === layer - 1) last[1] = layer;
    else stretches.push([layer, layer]);
  }
  return stretches.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(', ');
}
