import type { PagePool, PageTable, PageTableGroup } from './page-table.js';

/** Two views that share bytes. */
export interface SlotOverlap {
  /** Path of the later view in the page table. */
  readonly field: string;
  readonly rule: string;
}

/** The bytes that one entry has in all slots of its pool: `count` pieces of `bytes`, `stride` apart. */
interface Lane {
  readonly begin: number;
  readonly end: number;
  readonly stride: number;
  readonly count: number;
  readonly bytes: number;
  readonly group: number;
  readonly view: number;
  readonly layer: number;
}

/** A part of a lane that does not cross a multiple of the stride: the columns it takes in each of some rows. */
interface Tile {
  readonly lane: Lane;
  readonly firstRow: number;
  readonly endRow: number;
  readonly firstColumn: number;
  readonly endColumn: number;
}

/**
 * Whether two entries of any groups and pools share a byte of any of their slots. Pools may lie inside one another (K and V pools that
 * take turns in one allocation), and groups may share a pool, as long as the bytes of their entries never meet. Pools of different
 * strides take no turns: in one stretch of memory there is one stride.
 *
 * O(n log n) in the entries, so that a peer's table costs no more than reading it.
 * @param table every entry lies inside the slots of its pool
 */
export function findSlotOverlap(table: PageTable): SlotOverlap | null {
  const byMemory = new Map<string, Lane[]>();
  const groups = table.aux === null ? table.layerGroups : [...table.layerGroups, table.aux];
  groups.forEach((group, index) => {
    addLanes(byMemory, group, index, table.pools);
  });
  for (const lanes of byMemory.values()) {
    lanes.sort((x, y) => x.begin - y.begin);
    // Most tables: every layer has pages of its own.
    if (lanes.every((lane, i) => i === 0 || (lanes[i - 1] as Lane).end <= lane.begin)) continue;
    const found = mixedStrides(lanes) ?? sharedTiles(lanes);
    if (found === null) continue;
    const [first, second] = found.sort((x, y) => x.group - y.group || x.view - y.view);
    const how =
      first.stride === second.stride
        ? 'overlaps'
        : `has slots every ${second.stride} bytes among those, every ${first.stride} bytes, of`;
    const rule = `layer ${second.layer} ${how} layer ${first.layer} of ${pathOf(first, table)}`;
    return { field: pathOf(second, table), rule };
  }
  return null;
}

function addLanes(byMemory: Map<string, Lane[]>, group: PageTableGroup, index: number, pools: readonly PagePool[]) {
  group.views.forEach(({ layers }, view) => {
    for (const { layer, pool, offset, bytes } of layers) {
      const { base, memory, slotStride: stride, slotCount: count } = pools[pool] as PagePool;
      const key = memory.kind === 'host' ? 'host' : `device ${memory.deviceId}`;
      const begin = base + offset;
      const lane = {
        begin,
        end: begin + (count - 1) * stride + bytes,
        stride,
        count,
        bytes,
        group: index,
        view,
        layer,
      };
      const lanes = byMemory.get(key);
      if (lanes === undefined) byMemory.set(key, [lane]);
      else lanes.push(lane);
    }
  });
}

/** @param lanes by their begin */
function mixedStrides(lanes: readonly Lane[]): [Lane, Lane] | null {
  // The two lanes of different strides that reach furthest: one of them has another stride than the next lane.
  let furthest: Lane | null = null;
  let other: Lane | null = null;
  for (const lane of lanes) {
    const rival: Lane | null = furthest?.stride === lane.stride ? other : furthest;
    if (rival !== null && rival.end > lane.begin) return [rival, lane];
    if (furthest === null || lane.end > furthest.end) {
      if (furthest !== null && furthest.stride !== lane.stride) other = furthest;
      furthest = lane;
    } else if (lane.stride !== furthest.stride && (other === null || lane.end > other.end)) other = lane;
  }
  return null;
}

/** Lanes of one stride are bands in a sheet as wide as the stride: those that share a byte cross there. */
function sharedTiles(lanes: readonly Lane[]): [Lane, Lane] | null {
  const byStride = new Map<number, Tile[]>();
  for (const lane of lanes) {
    const tiles = byStride.get(lane.stride) ?? [];
    if (tiles.length === 0) byStride.set(lane.stride, tiles);
    addTiles(tiles, lane);
  }
  for (const tiles of byStride.values()) {
    const found = crossing(tiles);
    if (found !== null) return found;
  }
  return null;
}

function addTiles(tiles: Tile[], lane: Lane): void {
  const { begin, stride, count, bytes } = lane;
  // Exact: a quotient near 2^53 would be rounded.
  const firstColumn = begin % stride;
  const firstRow = (begin - firstColumn) / stride;
  const endRow = firstRow + count;
  const endColumn = firstColumn + bytes;
  tiles.push({ lane, firstRow, endRow, firstColumn, endColumn: Math.min(endColumn, stride) });
  if (endColumn > stride)
    tiles.push({ lane, firstRow: firstRow + 1, endRow: endRow + 1, firstColumn: 0, endColumn: endColumn - stride });
}

/** Sweeps over the rows; the columns in use never overlap, so that only neighbours need a look. */
function crossing(tiles: Tile[]): [Lane, Lane] | null {
  const begins = tiles.sort((x, y) => x.firstRow - y.firstRow || x.firstColumn - y.firstColumn);
  const ends = [...tiles].sort((x, y) => x.endRow - y.endRow);
  /** By column. */
  const open: Tile[] = [];
  let closed = 0;
  for (const tile of begins) {
    for (; (ends[closed] as Tile).endRow <= tile.firstRow; closed++)
      open.splice(placeOf(open, (ends[closed] as Tile).firstColumn), 1);
    const at = placeOf(open, tile.firstColumn);
    const [before, after] = [open[at - 1], open[at]];
    if (before !== undefined && before.endColumn > tile.firstColumn) return [before.lane, tile.lane];
    if (after !== undefined && after.firstColumn < tile.endColumn) return [after.lane, tile.lane];
    if (at === open.length) open.push(tile);
    else open.splice(at, 0, tile);
  }
  return null;
}

/** Index of the first tile at or behind a column. */
function placeOf(open: readonly Tile[], column: number): number {
  let [low, high] = [0, open.length];
  // Tables list their entries in order: most are the last so far.
  if (high > 0 && (open[high - 1] as Tile).firstColumn < column) return high;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((open[middle] as Tile).firstColumn < column) low = middle + 1;
    else high = middle;
  }
  return low;
}

function pathOf({ group, view }: Lane, { layerGroups }: PageTable): string {
  return `${group < layerGroups.length ? `layerGroups[${group}]` : 'aux'}.views[${view}]`;
}
