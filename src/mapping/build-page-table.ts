import { ArgumentError } from '../errors.js';
import { dtypeBits, KNOWN_DTYPES } from './dtype.js';
import type { LayerEntry, LayerView, PagePool, PageTable, PageTableGroup, PoolMemory } from './page-table.js';
import { validatePageTable } from './validate-page-table.js';

/** Alignment of each pool inside the one allocation: a memory page, so that transports never share one between pools. */
export const POOL_ALIGNMENT_BYTES = 4096;

/** A cache manager's `LayerGroup` is one. */
export interface GroupSpec {
  readonly kind: 'attention' | 'latent' | 'state';
  /** Tokens, or null for full attention. */
  readonly windowSize: number | null;
  readonly tokensPerBlock: number;
  /** Global layer ids, ascending. */
  readonly layers: readonly number[];
  readonly slotCount: number;
}

/** Shape of one rank's cache and how it is laid out. */
export interface PageTableSpec {
  readonly groups: readonly GroupSpec[];
  /** KV heads on this rank. Not looked at for latent groups. */
  readonly kvHeads: number;
  readonly headDim: number;
  /** Elements of one token's latent vector (MLA: compressed KV and rotary part together). Needed by latent groups. */
  readonly latentDim?: number;
  /** One of KNOWN_DTYPES. */
  readonly dtype: string;
  /** `per-layer`: one pool per layer, a page is that layer's K, then its V. `per-block`: one pool per group, a slot holds all layers. */
  readonly poolLayout: 'per-layer' | 'per-block';
  readonly blockLayout: 'HND' | 'NHD';
  /** Default: host memory. */
  readonly memory?: PoolMemory;
}

/**
 * Lays out the pools of one rank in one allocation that starts at address 0; `rebasePageTable` moves it to where the memory is.
 *
 * ```
 * per-layer   pool of layer l: | K0 V0 | K1 V1 | ...          (index = slot)
 * per-block   pool of group g: | K V of layer a, K V of layer b, ... | next slot | ...
 * latent: one vector per token instead of K and V
 * ```
 * @returns the table, and what to allocate
 * @throws ArgumentError naming the field, also when the sizes pass 2^53
 */
export function buildPageTable(spec: PageTableSpec): { readonly table: PageTable; readonly sizeBytes: number } {
  if (spec.groups.length === 0) throw new ArgumentError('groups: at least one layer group is needed');
  const pools: PagePool[] = [];
  const layerGroups = spec.groups.map((group, index) => layOutGroup(spec, group, `groups[${index}]`, pools));
  const last = pools.at(-1);
  const sizeBytes = last === undefined ? 0 : aligned(last.base + last.slotStride * last.slotCount);
  return { table: validatePageTable({ pools, layerGroups, aux: null }, 'own'), sizeBytes };
}

/** The same table `base` bytes further up. */
export function rebasePageTable(table: PageTable, base: number): PageTable {
  const pools = table.pools.map((pool) => ({ ...pool, base: pool.base + base }));
  return validatePageTable({ ...table, pools }, 'own');
}

/**
 * The table with an aux buffer added: one more pool and one view over whole slots. `base` is absolute: rebase first.
 * @throws ArgumentError when the table already has one, or for sizes that are not positive integers
 */
export function withAux(
  table: PageTable,
  aux: { readonly base: number; readonly slotBytes: number; readonly slotCount: number },
): PageTable {
  if (table.aux !== null) throw new ArgumentError('aux: the page table already has an aux buffer');
  const { base, slotBytes, slotCount } = aux;
  const pool = { base, memory: { kind: 'host' }, slotBytes, slotStride: slotBytes, slotCount };
  const view = {
    role: 'aux',
    dtype: 'uint8',
    layout: 'REPLICATED',
    headsPerRank: 1,
    headDim: slotBytes,
    layers: [{ layer: 0, pool: table.pools.length, offset: 0, bytes: slotBytes }],
  };
  const group = { kind: 'aux', windowSize: null, tokensPerBlock: 1, slotCount, views: [view] };
  return validatePageTable({ pools: [...table.pools, pool], layerGroups: table.layerGroups, aux: group }, 'own');
}

type Part = Omit<LayerView, 'layers'> & { readonly bytes: number };

function layOutGroup(spec: PageTableSpec, group: GroupSpec, field: string, pools: PagePool[]): PageTableGroup {
  const parts = partsOf(spec, group, field);
  if (group.layers.length === 0) throw new ArgumentError(`${field}.layers is empty`);
  const layerBytes = parts.reduce((total, { bytes }) => total + bytes, 0);
  const perLayer = spec.poolLayout === 'per-layer';
  const slotBytes = perLayer ? layerBytes : layerBytes * group.layers.length;
  const entries = parts.map((): LayerEntry[] => []);
  group.layers.forEach((layer, index) => {
    if (perLayer || index === 0) {
      const previous = pools.at(-1);
      const base = previous === undefined ? 0 : aligned(previous.base + previous.slotStride * previous.slotCount);
      const memory = spec.memory ?? { kind: 'host' };
      pools.push({ base, memory, slotBytes, slotStride: slotBytes, slotCount: group.slotCount });
    }
    let offset = perLayer ? 0 : layerBytes * index;
    parts.forEach(({ bytes }, part) => {
      entries[part]?.push({ layer, pool: pools.length - 1, offset, bytes });
      offset += bytes;
    });
  });
  return {
    kind: group.kind,
    windowSize: group.windowSize,
    tokensPerBlock: group.tokensPerBlock,
    slotCount: group.slotCount,
    views: parts.map(({ bytes: _, ...view }, part) => ({ ...view, layers: entries[part] ?? [] })),
  };
}

/** The views of a group and what each takes per layer and block. */
function partsOf(spec: PageTableSpec, group: GroupSpec, field: string): Part[] {
  if (group.kind === 'state') {
    throw new ArgumentError(`${field}.kind: recurrent state has no block layout; build its views yourself`);
  }
  if (group.kind === 'latent') {
    const latentDim = positive(spec.latentDim, 'latentDim');
    const bytes = bytesOf(spec.dtype, 1, latentDim, group.tokensPerBlock, field);
    return [{ role: 'latent', dtype: spec.dtype, layout: 'REPLICATED', headsPerRank: 1, headDim: latentDim, bytes }];
  }
  const headsPerRank = positive(spec.kvHeads, 'kvHeads');
  const headDim = positive(spec.headDim, 'headDim');
  const bytes = bytesOf(spec.dtype, headsPerRank, headDim, group.tokensPerBlock, field);
  const view = { dtype: spec.dtype, layout: spec.blockLayout, headsPerRank, headDim, bytes };
  return [
    { role: 'key', ...view },
    { role: 'value', ...view },
  ];
}

function bytesOf(dtype: string, heads: number, dim: number, tokensPerBlock: number, field: string): number {
  const bits = dtypeBits(dtype);
  if (bits === null)
    throw new ArgumentError(`dtype ${JSON.stringify(dtype)} is unknown, use ${KNOWN_DTYPES.join(', ')}`);
  const bytes = (heads * dim * positive(tokensPerBlock, `${field}.tokensPerBlock`) * bits) / 8;
  if (!Number.isSafeInteger(bytes)) {
    throw new ArgumentError(
      `${field}: a block of ${heads} heads of ${dim} ${dtype} elements is not a whole number of bytes`,
    );
  }
  return bytes;
}

function positive(value: number | undefined, field: string): number {
  if (value === undefined || !Number.isSafeInteger(value) || value < 1) {
    throw new ArgumentError(`${field} must be a positive integer, got ${String(value)}`);
  }
  return value;
}

function aligned(bytes: number): number {
  return Math.ceil(bytes / POOL_ALIGNMENT_BYTES) * POOL_ALIGNMENT_BYTES;
}
