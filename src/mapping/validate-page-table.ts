import { dtypeBits } from './dtype.js';
import { FieldReader, type ValueOrigin } from './field-reader.js';
import { LayerCounts } from './layer-counts.js';
import type {
  LayerEntry,
  LayerView,
  PagePool,
  PageTable,
  PageTableGroup,
  PoolMemory,
  StateSection,
} from './page-table.js';
import { findSlotOverlap } from './slot-overlap.js';
import { viewsPerLayer } from './view-side.js';

const MAX_POOLS = 64 * 1024;
const MAX_LAYERS = 64 * 1024;
const MAX_LAYER_GROUPS = 256;
const MAX_VIEWS = 64;
const MAX_SECTIONS = 64;
const MAX_DTYPE_LENGTH = 64;
/** Slots and tokens travel as 32-bit signed integers, so that HOLE fits. */
const MAX_INT32 = 0x7fffffff;
const MAX_DEVICE_ID = 0xffff;

const ROLES = ['key', 'value', 'kv', 'latent', 'index_k', 'scale', 'conv_state', 'ssm_state', 'aux'] as const;
const LAYOUTS = ['HND', 'NHD', 'REPLICATED', 'SECTIONED'] as const;

/** What came out of a check: nobody changes it, and it is the same table again after another one. */
const checkedTables = new WeakSet<object>();

interface Budget {
  layersLeft: number;
}

/**
 * Checks a page table from outside and rebuilds it from its known fields. Afterwards every address that a slot below `slotCount` and
 * an entry give lies inside its pool and below 2^53, and no two entries share a byte of any of their slots. A table that came out of this
 * function is not read again.
 *
 * Caps: 256 layer groups, 64 Ki pools, 64 Ki layer entries in all. Pools may take turns in one stretch of memory (interleaved K and V
 * pools do), and groups may share a pool, at offsets that do not meet.
 *
 * @param origin `peer` (default): came over the wire; `own`: built on this side
 * @throws ProtocolError (`peer`) or ArgumentError (`own`) naming the first bad field; also in `details.field`
 */
export function validatePageTable(table: unknown, origin: ValueOrigin = 'peer'): PageTable {
  if (typeof table === 'object' && table !== null && checkedTables.has(table)) return table as PageTable;
  const read = new FieldReader(origin);
  const { pools, layerGroups, aux } = read.object(table, 'the table');
  const checkedPools = read
    .list(pools, 'pools', MAX_POOLS)
    .map((pool, index) => readPool(read, pool, `pools[${index}]`));
  const budget = { layersLeft: MAX_LAYERS };
  const groups = read
    .list(layerGroups, 'layerGroups', MAX_LAYER_GROUPS)
    .map((group, index) =>
      readGroup(read, group, `layerGroups[${index}]`, ['attention', 'latent', 'state'], checkedPools, budget),
    );
  const checkedAux =
    aux === null || aux === undefined ? null : readGroup(read, aux, 'aux', ['aux'], checkedPools, budget);
  if (checkedAux !== null && checkedAux.views.length !== 1) {
    read.refuse('aux.views', `must be one view, got ${checkedAux.views.length}`);
  }
  const checked = { pools: checkedPools, layerGroups: groups, aux: checkedAux };
  // Each of two views over the same bytes would be overwritten by the other's blocks.
  const overlap = findSlotOverlap(checked);
  if (overlap !== null) read.refuse(overlap.field, overlap.rule);
  checkedTables.add(checked);
  return checked;
}

function readPool(read: FieldReader, value: unknown, path: string): PagePool {
  const raw = read.object(value, path);
  const pool: PagePool = {
    base: read.integer(raw, 'base', path, 0, Number.MAX_SAFE_INTEGER),
    memory: readMemory(read, raw['memory'], `${path}.memory`),
    slotBytes: read.integer(raw, 'slotBytes', path, 1, Number.MAX_SAFE_INTEGER),
    slotStride: read.integer(raw, 'slotStride', path, 1, Number.MAX_SAFE_INTEGER),
    slotCount: read.integer(raw, 'slotCount', path, 1, MAX_INT32),
  };
  if (pool.slotStride < pool.slotBytes) {
    read.refuse(`${path}.slotStride`, `is ${pool.slotStride}, below slotBytes ${pool.slotBytes}: slots would overlap`);
  }
  if (!Number.isSafeInteger(pool.base + pool.slotStride * pool.slotCount)) {
    read.refuse(path, `ends beyond 2^53 (base ${pool.base}, ${pool.slotCount} slots every ${pool.slotStride} bytes)`);
  }
  return pool;
}

function readMemory(read: FieldReader, value: unknown, path: string): PoolMemory {
  const raw = read.object(value, path);
  const kind = read.oneOf(raw, 'kind', path, ['host', 'device']);
  if (kind === 'host') return { kind };
  return { kind, deviceId: read.integer(raw, 'deviceId', path, 0, MAX_DEVICE_ID) };
}

function readGroup(
  read: FieldReader,
  value: unknown,
  path: string,
  kinds: readonly PageTableGroup['kind'][],
  pools: readonly PagePool[],
  budget: Budget,
): PageTableGroup {
  const raw = read.object(value, path);
  const kind = read.oneOf(raw, 'kind', path, kinds);
  const windowed = raw['windowSize'] !== null;
  if (windowed && (kind === 'state' || kind === 'aux')) {
    read.refuse(`${path}.windowSize`, `must be null for a group of kind ${kind}`);
  }
  const windowSize = windowed ? read.integer(raw, 'windowSize', path, 1, MAX_INT32) : null;
  // Absent where the peer knows of none.
  const sinkTokens = read.integer(raw, 'sinkTokens', path, 0, windowed ? MAX_INT32 : 0, 0);
  // Absent where the peer knows of one layout only, the first.
  const auxLayout = kind === 'aux' ? read.integer(raw, 'auxLayout', path, 1, MAX_INT32, 1) : 1;
  const tokensPerBlock = read.integer(raw, 'tokensPerBlock', path, 1, MAX_INT32);
  const slotCount = read.integer(raw, 'slotCount', path, 1, MAX_INT32);
  const views = read
    .list(raw['views'], `${path}.views`, MAX_VIEWS)
    .map((view, index) =>
      readView(read, view, `${path}.views[${index}]`, { tokensPerBlock, slotCount }, pools, budget),
    );
  if (views.length === 0) read.refuse(`${path}.views`, 'is empty');
  refuseAmbiguity(read, views, path);
  const group = { kind, windowSize, tokensPerBlock, slotCount, views };
  // Aux has no window, and so no sinks.
  if (auxLayout !== 1) return { ...group, auxLayout };
  return sinkTokens === 0 ? group : { ...group, sinkTokens };
}

function readView(
  read: FieldReader,
  value: unknown,
  path: string,
  group: Pick<PageTableGroup, 'tokensPerBlock' | 'slotCount'>,
  pools: readonly PagePool[],
  budget: Budget,
): LayerView {
  const raw = read.object(value, path);
  const { role, dtype, layout, headsPerRank, headDim } = {
    role: read.oneOf(raw, 'role', path, ROLES),
    dtype: read.text(raw, 'dtype', path, MAX_DTYPE_LENGTH),
    layout: read.oneOf(raw, 'layout', path, LAYOUTS),
    headsPerRank: read.integer(raw, 'headsPerRank', path, 1, MAX_INT32),
    headDim: read.integer(raw, 'headDim', path, 1, MAX_INT32),
  };
  const sections = raw['sections'] === undefined ? null : readSections(read, raw['sections'], path, layout);
  const list = read.list(raw['layers'], `${path}.layers`, budget.layersLeft);
  budget.layersLeft -= list.length;
  if (list.length === 0) read.refuse(`${path}.layers`, 'is empty');
  const expectedBytes =
    sections === null
      ? bytesOf({ role, dtype, layout, headsPerRank, headDim }, group.tokensPerBlock)
      : sections.reduce((total, section) => total + section.bytes, 0);
  let previousLayer = -1;
  const layers = list.map((item, index): LayerEntry => {
    const field = `${path}.layers[${index}]`;
    const entry = readEntry(read, item, field, group, pools);
    if (entry.layer <= previousLayer) {
      read.refuse(`${field}.layer`, `is ${entry.layer} after ${previousLayer}: layers must ascend`);
    }
    previousLayer = entry.layer;
    if (expectedBytes !== null && entry.bytes !== expectedBytes) {
      const what = sections === null ? 'heads, head dim, dtype and block size' : 'sections';
      read.refuse(`${field}.bytes`, `is ${entry.bytes}, but its ${what} give ${expectedBytes}`);
    }
    return entry;
  });
  return sections === null
    ? { role, dtype, layout, headsPerRank, headDim, layers }
    : { role, dtype, layout, headsPerRank, headDim, sections, layers };
}

function readSections(read: FieldReader, value: unknown, path: string, layout: LayerView['layout']): StateSection[] {
  if (layout !== 'SECTIONED') read.refuse(`${path}.sections`, `are only for views of layout SECTIONED, not ${layout}`);
  const list = read.list(value, `${path}.sections`, MAX_SECTIONS);
  if (list.length === 0) read.refuse(`${path}.sections`, 'is empty');
  return list.map((item, index) => {
    const field = `${path}.sections[${index}]`;
    const raw = read.object(item, field);
    const bytes = read.integer(raw, 'bytes', field, 1, Number.MAX_SAFE_INTEGER);
    const unitBytes = read.integer(raw, 'unitBytes', field, 1, bytes);
    if (bytes % unitBytes !== 0) read.refuse(`${field}.bytes`, `is ${bytes}, no multiple of unitBytes ${unitBytes}`);
    return { bytes, unitBytes };
  });
}

function readEntry(
  read: FieldReader,
  value: unknown,
  path: string,
  group: Pick<PageTableGroup, 'slotCount'>,
  pools: readonly PagePool[],
): LayerEntry {
  const raw = read.object(value, path);
  const entry: LayerEntry = {
    layer: read.integer(raw, 'layer', path, 0, MAX_LAYERS - 1),
    pool: read.integer(raw, 'pool', path, 0, pools.length - 1),
    offset: read.integer(raw, 'offset', path, 0, Number.MAX_SAFE_INTEGER),
    bytes: read.integer(raw, 'bytes', path, 1, Number.MAX_SAFE_INTEGER),
  };
  const pool = pools[entry.pool] as PagePool;
  // Subtracting keeps the sum from leaving the safe range.
  if (entry.bytes > pool.slotBytes || entry.offset > pool.slotBytes - entry.bytes) {
    read.refuse(path, `leaves its slot: ${entry.bytes} bytes at offset ${entry.offset} of ${pool.slotBytes}`);
  }
  if (pool.slotCount !== group.slotCount) {
    read.refuse(`${path}.pool`, `names a pool of ${pool.slotCount} slots in a group of ${group.slotCount}`);
  }
  return entry;
}

/** What one layer of a plain K or V view takes in a block; null where no formula holds. */
function bytesOf(view: Omit<LayerView, 'layers'>, tokensPerBlock: number): number | null {
  const bits = dtypeBits(view.dtype);
  if (bits === null || (view.role !== 'key' && view.role !== 'value')) return null;
  if (view.layout !== 'HND' && view.layout !== 'NHD') return null;
  return (view.headsPerRank * view.headDim * tokensPerBlock * bits) / 8;
}

/** Both sides find each other's bytes by (role, layer), so that pair may exist once; scales twice: of the keys, then of the values. */
function refuseAmbiguity(read: FieldReader, views: readonly LayerView[], path: string): void {
  const seen = new LayerCounts();
  for (const [index, { role, layers }] of views.entries()) {
    const allowed = viewsPerLayer(role);
    for (const { layer } of layers) {
      if (seen.add(role, layer) > allowed)
        read.refuse(`${path}.views[${index}]`, `names role ${role} of layer ${layer} once too often`);
    }
  }
}
