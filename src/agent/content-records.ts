import { ArgumentError } from '../errors.js';
import { dtypeBits } from '../mapping/dtype.js';
import type { LayerEntry, LayerView, PagePool, ViewRole } from '../mapping/page-table.js';
import type { ContentJob } from './page-content.js';

/** Numbers of one (view, layer), read by native/addon/content_functions.cc. */
const RECORD = 11;

/** A role's number is part of the content, so the order is fixed. */
export const CONTENT_ROLES: readonly ViewRole[] = [
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

const HEAD_MAJOR = 0;
const TOKEN_MAJOR = 1;

/** A job as native code takes it, and what its entries mean. */
export interface ContentRecords {
  readonly entries: Float64Array;
  readonly slots: Int32Array;
  readonly numbers: Float64Array;
  readonly tokenSeeds: BigUint64Array;
  readonly places: readonly { readonly layer: number; readonly role: string }[];
}

/** @throws ArgumentError for a job that does not fit its own page table */
export function contentRecords(job: ContentJob): ContentRecords {
  const group = job.table.layerGroups[job.group];
  if (group === undefined) {
    throw new ArgumentError(`group is ${job.group}, but the page table has ${job.table.layerGroups.length} groups`);
  }
  const places: { layer: number; role: string }[] = [];
  const numbers: number[] = [];
  for (const view of group.views) {
    for (const entry of view.layers) {
      const pool = job.table.pools[entry.pool];
      if (pool === undefined) throw new ArgumentError(`layer ${entry.layer}: the page table has no pool ${entry.pool}`);
      numbers.push(...entryRecord(view, entry, pool, group.tokensPerBlock, job.firstHead));
      places.push({ layer: entry.layer, role: view.role });
    }
  }
  const [begin, end] = tokenRange(job, group.tokensPerBlock);
  return {
    entries: Float64Array.from(numbers),
    slots: job.run.slots,
    numbers: Float64Array.of(group.tokensPerBlock, job.run.begin, begin),
    tokenSeeds: job.tokenSeeds.subarray(begin, end),
    places,
  };
}

function entryRecord(
  view: LayerView,
  entry: LayerEntry,
  pool: PagePool,
  tokensPerBlock: number,
  firstHead: number,
): number[] {
  const where = `layer ${entry.layer}, ${view.role}`;
  if (view.layout === 'SECTIONED') throw new ArgumentError(`${where}: state has no content per token`);
  // Every rank holds the same replicated bytes, so they cannot depend on which heads a rank has.
  const isReplicated = view.layout === 'REPLICATED';
  const heads = isReplicated ? 1 : view.headsPerRank;
  const tokenBytes = bytesPerToken(view, where);
  if (heads * tokensPerBlock * tokenBytes !== entry.bytes) {
    throw new ArgumentError(
      `${where}: ${heads} heads x ${tokensPerBlock} tokens x ${tokenBytes} bytes are not the entry's ${entry.bytes} bytes`,
    );
  }
  const record = [
    pool.base,
    pool.slotBytes,
    pool.slotStride,
    pool.slotCount,
    entry.offset,
    entry.layer,
    CONTENT_ROLES.indexOf(view.role),
    view.layout === 'NHD' ? TOKEN_MAJOR : HEAD_MAJOR,
    heads,
    isReplicated ? 0 : firstHead,
    tokenBytes,
  ];
  if (record.length !== RECORD) throw new ArgumentError(`${where}: the record has ${record.length} numbers`);
  return record;
}

function bytesPerToken(view: LayerView, where: string): number {
  const bits = dtypeBits(view.dtype);
  if (bits === null) throw new ArgumentError(`${where}: unknown dtype '${view.dtype}'`);
  const bytes = (view.headDim * bits) / 8;
  if (!Number.isSafeInteger(bytes) || bytes <= 0) {
    throw new ArgumentError(`${where}: ${view.headDim} elements of ${bits} bits are not a whole number of bytes`);
  }
  return bytes;
}

/** The tokens of the job that lie inside its blocks. */
function tokenRange({ run, tokenBegin, tokenEnd, tokenSeeds }: ContentJob, tokensPerBlock: number): [number, number] {
  for (const [name, value] of Object.entries({ tokenBegin, tokenEnd, 'run.begin': run.begin })) {
    if (!Number.isSafeInteger(value) || value < 0) throw new ArgumentError(`${name} must be a whole number from 0 on`);
  }
  const begin = Math.max(tokenBegin, run.begin * tokensPerBlock);
  const end = Math.min(tokenEnd, (run.begin + run.slots.length) * tokensPerBlock);
  if (end <= begin) return [begin, begin];
  if (end > tokenSeeds.length) {
    throw new ArgumentError(`tokens up to ${end} are asked for, but there are seeds for ${tokenSeeds.length}`);
  }
  return [begin, end];
}
