import { ArgumentError } from '../errors.js';
import { brief } from './brief.js';
import { dtypeBits, KNOWN_DTYPES } from './dtype.js';
import {
  AUX_LAYOUT,
  type LayerEntry,
  type LayerView,
  type PagePool,
  type PageTable,
  type PageTableGroup,
  type PoolMemory,
} from './page-table.js';
import { validatePageTable } from './validate-page-table.js';

/** Alignment of each pool inside the one allocation: a memory page, so that transports never share one between pools. */
export const POOL_ALIGNMENT_BYTES = 4096;

/** A cache manager's `LayerGroup` is one. */
export interface GroupSpec {
  readonly kind: 'attention' | 'latent' | 'state';
  /** Tokens, or null for full attention. */
  readonly windowSize: number | null;
  /** First tokens that stay resident beside the window. Default 0. */
  readonly sinkTokens?: number;
  readonly tokensPerBlock: number;
  /** Global layer ids, ascending. */
  readonly layers: readonly number[];
  readonly slotCount: number;
}

/** Recurrent state of one request and one layer, as much of it as this rank holds (Mamba 2). */
export interface StateSpec {
  /** Channel-major. Ranks split each section (x, B, C) by itself, in pieces of `unitChannels`. */
  readonly conv: {
    readonly dtype: string;
    /** Columns kept of each channel: the kernel width less one. */
    readonly width: number;
    readonly sections: readonly { readonly channels: number; readonly unitChannels: number }[];
  };
  readonly ssm: {
    readonly dtype: string;
    readonly heads: number;
    /** Head dim x state size. */
    readonly headElements: number;
  };
}

/** Shape of one rank's cache and how it is laid out. */
export interface PageTableSpec {
  readonly groups: readonly GroupSpec[];
  /** KV heads on this rank. Not looked at for latent groups. */
  readonly kvHeads: number;
  readonly headDim: number;
  /** Elements of one token's latent vector (MLA: compressed KV and rotary part together). Needed by latent groups. */
  readonly latentDim?: number;
  /** Elements of one token's index key; latent groups then get a replicated `index_k` view. Default: none. */
  readonly indexDim?: number;
  /** One of KNOWN_DTYPES. */
  readonly dtype: string;
  /** Block scales next to quantised K and V: one `scale` view that holds the scales of both. Default: none. */
  readonly scale?: { readonly dtype: string; readonly elementsPerScale: number };
  /** Needed by state groups. */
  readonly state?: StateSpec;
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
  if (!Array.isArray(spec.groups) || spec.groups.length === 0)
    throw new ArgumentError('groups: at least one layer group is needed');
  oneOf(spec.poolLayout, ['per-layer', 'per-block'], 'poolLayout');
  oneOf(spec.blockLayout, ['HND', 'NHD'], 'blockLayout');
  refuseSharedLayers(spec.groups);
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
  const group = { kind: 'aux', windowSize: null, auxLayout: AUX_LAYOUT, tokensPerBlock: 1, slotCount, views: [view] };
  return validatePageTable({ pools: [...table.pools, pool], layerGroups: table.layerGroups, aux: group }, 'own');
}

type Part = Omit<LayerView, 'layers'> & { readonly bytes: number };

function layOutGroup(spec: PageTableSpec, group: GroupSpec, field: string, pools: PagePool[]): PageTableGroup {
  oneOf(group.kind, ['attention', 'latent', 'state'], `${field}.kind`);
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
    ...(group.sinkTokens === undefined || group.sinkTokens === 0 ? {} : { sinkTokens: group.sinkTokens }),
    tokensPerBlock: group.tokensPerBlock,
    slotCount: group.slotCount,
    views: parts.map(({ bytes: _, ...view }, part) => ({ ...view, layers: entries[part] ?? [] })),
  };
}

/** The views of a group and what each takes per layer and block. */
function partsOf(spec: PageTableSpec, group: GroupSpec, field: string): Part[] {
  if (group.kind === 'state') return statePartsOf(spec, field);
  const { tokensPerBlock } = group;
  if (group.kind === 'latent') {
    const vector = (role: 'latent' | 'index_k', headDim: number): Part => {
      const bytes = bytesOf(spec.dtype, 1, headDim, tokensPerBlock, field);
      return { role, dtype: spec.dtype, layout: 'REPLICATED', headsPerRank: 1, headDim, bytes };
    };
    const latent = vector('latent', positive(spec.latentDim, 'latentDim'));
    return spec.indexDim === undefined ? [latent] : [latent, vector('index_k', positive(spec.indexDim, 'indexDim'))];
  }
  const headsPerRank = positive(spec.kvHeads, 'kvHeads');
  const headDim = positive(spec.headDim, 'headDim');
  const bytes = bytesOf(spec.dtype, headsPerRank, headDim, tokensPerBlock, field);
  const view = { dtype: spec.dtype, layout: spec.blockLayout, headsPerRank, headDim, bytes };
  const parts: Part[] = [
    { role: 'key', ...view },
    { role: 'value', ...view },
  ];
  if (spec.scale === undefined) return parts;
  const { dtype, elementsPerScale } = spec.scale;
  const scales = headDim / positive(elementsPerScale, 'scale.elementsPerScale');
  const scaleBytes =
    2 * bytesOf(dtype, headsPerRank, positive(scales, 'headDim / scale.elementsPerScale'), tokensPerBlock, field);
  return [...parts, { ...view, role: 'scale', dtype, headDim: scales, bytes: scaleBytes }];
}

function statePartsOf(spec: PageTableSpec, field: string): Part[] {
  if (spec.state === undefined) throw new ArgumentError(`${field}.kind: recurrent state needs its sizes, set state`);
  const { conv, ssm } = spec.state;
  const width = positive(conv.width, 'state.conv.width');
  if (conv.sections.length === 0) throw new ArgumentError('state.conv.sections is empty');
  const sections = conv.sections.map(({ channels, unitChannels }, index) => {
    const where = `state.conv.sections[${index}]`;
    const bytes = bytesOf(conv.dtype, positive(channels, `${where}.channels`), width, 1, where);
    return { bytes, unitBytes: bytesOf(conv.dtype, positive(unitChannels, `${where}.unitChannels`), width, 1, where) };
  });
  const heads = positive(ssm.heads, 'state.ssm.heads');
  const headDim = positive(ssm.headElements, 'state.ssm.headElements');
  const layout = 'SECTIONED';
  return [
    {
      role: 'conv_state',
      dtype: conv.dtype,
      layout,
      headsPerRank: conv.sections.reduce((total, { channels }) => total + channels, 0),
      headDim: width,
      sections,
      bytes: sections.reduce((total, { bytes }) => total + bytes, 0),
    },
    {
      role: 'ssm_state',
      dtype: ssm.dtype,
      layout,
      headsPerRank: heads,
      headDim,
      bytes: bytesOf(ssm.dtype, heads, headDim, 1, 'state.ssm'),
    },
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

/** State of a layer is a cache of its own beside its blocks; anything else that two groups hold, one of them holds in vain. */
function refuseSharedLayers(groups: readonly GroupSpec[]): void {
  const owners = new Map<string, number>();
  groups.forEach(({ kind, layers }, index) => {
    if (!Array.isArray(layers)) throw new ArgumentError(`groups[${index}].layers must be a list of layer ids`);
    for (const layer of layers) {
      const key = `${kind === 'state' ? 'state' : 'blocks'} ${layer}`;
      const owner = owners.get(key);
      if (owner !== undefined && owner !== index)
        throw new ArgumentError(`groups[${index}].layers: layer ${layer} is in groups[${owner}] already`);
      owners.set(key, index);
    }
  });
}

function oneOf(value: unknown, allowed: readonly string[], field: string): void {
  if (allowed.some((name) => name === value)) return;
  throw new ArgumentError(`${field} must be ${allowed.join(' or ')}, got ${brief(value)}`);
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
