import type {
  LayerEntry,
  LayerView,
  PagePool,
  PageTable,
  PageTableGroup,
  ViewLayout,
  ViewRole,
} from '../mapping/page-table.js';
import { DecodedMap } from './decoded-map.js';
import { MAX_LAYER_GROUPS, MAX_LAYERS, MAX_NAME_BYTES, MAX_ORDINAL, MAX_POOLS, MAX_VIEWS_PER_GROUP } from './limits.js';
import { wireError } from './wire-reason.js';

const GROUP_KINDS: readonly PageTableGroup['kind'][] = ['attention', 'latent', 'state', 'aux'];
const LAYOUTS: readonly ViewLayout[] = ['HND', 'NHD', 'REPLICATED', 'SECTIONED'];
const ROLES: readonly ViewRole[] = [
  'key',
  'value',
  'kv',
  'latent',
  'index_k',
  'scale',
  'conv_state',
  'ssm_state',
  'aux',
];
/** Bytes and addresses: anything a double holds exactly. */
const MAX_SIZE = Number.MAX_SAFE_INTEGER;

/**
 * A peer's page table as it came over the wire. After this every index and every address computed from it stays inside the pools it
 * names; whether it fits ours is compatibility's question.
 */
export function readPageTable(map: DecodedMap): PageTable {
  const pools = map.list('pools', MAX_POOLS, (item, path) => readPool(new DecodedMap(item, path)));
  const readGroup = (item: unknown, path: string): PageTableGroup => readPageTableGroup(item, path, pools);
  const layerGroups = map.list('layerGroups', MAX_LAYER_GROUPS, readGroup);
  const aux = map.isNull('aux') ? null : map.field('aux', readGroup);
  return { pools, layerGroups, aux };
}

/** Maps with plain values, for the encoder. */
export function pageTableFields(table: PageTable): Record<string, unknown> {
  return {
    pools: table.pools.map((pool) => ({
      base: pool.base,
      memory: pool.memory.kind === 'host' ? { kind: 'host' } : { kind: 'device', deviceId: pool.memory.deviceId },
      slotBytes: pool.slotBytes,
      slotStride: pool.slotStride,
      slotCount: pool.slotCount,
    })),
    layerGroups: table.layerGroups.map(groupFields),
    aux: table.aux === null ? null : groupFields(table.aux),
  };
}

function groupFields(group: PageTableGroup): Record<string, unknown> {
  return {
    kind: group.kind,
    windowSize: group.windowSize,
    tokensPerBlock: group.tokensPerBlock,
    slotCount: group.slotCount,
    views: group.views.map((view) => ({
      role: view.role,
      dtype: view.dtype,
      layout: view.layout,
      headsPerRank: view.headsPerRank,
      headDim: view.headDim,
      layers: view.layers.map(({ layer, pool, offset, bytes }) => ({ layer, pool, offset, bytes })),
    })),
  };
}

function readPool(map: DecodedMap): PagePool {
  const memory = map.map('memory');
  const kind = memory.oneOf('kind', ['host', 'device']);
  const pool: PagePool = {
    base: map.integer('base', 0, MAX_SIZE),
    memory: kind === 'host' ? { kind } : { kind, deviceId: memory.integer('deviceId', 0, 0xffff) },
    slotBytes: map.integer('slotBytes', 1, MAX_SIZE),
    slotStride: map.integer('slotStride', 1, MAX_SIZE),
    slotCount: map.integer('slotCount', 0, MAX_ORDINAL),
  };
  if (pool.slotBytes > pool.slotStride) {
    throw wireError('bad-value', `${map.pathOf('slotBytes')} must not exceed slotStride ${pool.slotStride}`);
  }
  if (!Number.isSafeInteger(pool.base + pool.slotStride * pool.slotCount)) {
    throw wireError('bad-value', `${map.pathOf('slotCount')} reaches beyond the address space`);
  }
  return pool;
}

function readPageTableGroup(item: unknown, path: string, pools: readonly PagePool[]): PageTableGroup {
  const map = new DecodedMap(item, path);
  const slotCount = map.integer('slotCount', 0, MAX_ORDINAL);
  return {
    kind: map.oneOf('kind', GROUP_KINDS),
    windowSize: map.integerOrNull('windowSize', 1, MAX_ORDINAL),
    tokensPerBlock: map.integer('tokensPerBlock', 1, MAX_ORDINAL),
    slotCount,
    views: map.list('views', MAX_VIEWS_PER_GROUP, (view, viewPath) => readView(view, viewPath, pools, slotCount)),
  };
}

function readView(item: unknown, path: string, pools: readonly PagePool[], slotCount: number): LayerView {
  const map = new DecodedMap(item, path);
  return {
    role: map.oneOf('role', ROLES),
    dtype: map.string('dtype', MAX_NAME_BYTES),
    layout: map.oneOf('layout', LAYOUTS),
    headsPerRank: map.integer('headsPerRank', 0, MAX_ORDINAL),
    headDim: map.integer('headDim', 0, MAX_ORDINAL),
    layers: map.list('layers', MAX_LAYERS, (layer, layerPath) => readLayer(layer, layerPath, pools, slotCount)),
  };
}

function readLayer(item: unknown, path: string, pools: readonly PagePool[], slotCount: number): LayerEntry {
  const map = new DecodedMap(item, path);
  const entry: LayerEntry = {
    layer: map.integer('layer', 0, MAX_ORDINAL),
    pool: map.integer('pool', 0, pools.length - 1),
    offset: map.integer('offset', 0, MAX_SIZE),
    bytes: map.integer('bytes', 1, MAX_SIZE),
  };
  const pool = pools[entry.pool] as PagePool;
  if (entry.offset + entry.bytes > pool.slotBytes) {
    throw wireError('bad-value', `${path} ends at byte ${entry.offset + entry.bytes} of a slot of ${pool.slotBytes}`);
  }
  if (slotCount !== pool.slotCount) {
    throw wireError(
      'bad-value',
      `${path} names pool ${entry.pool} of ${pool.slotCount} slots in a group of ${slotCount}`,
    );
  }
  return entry;
}
