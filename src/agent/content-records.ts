import { ArgumentError } from '../errors.js';
import { HOLE } from '../geometry/block-run.js';
import type { PagePool, PageTableGroup } from '../mapping/page-table.js';
import { type ContentPart, contentParts } from './content-entries.js';
import type { ContentJob } from './page-content.js';

const HEAD_MAJOR = 0;
const TOKEN_MAJOR = 1;

/** Nothing of the job is inside the pages. */
const NO_TOKENS: readonly [number, number] = [0, 0];

/** A job as native/addon/content_functions.cc takes it, and what its entries mean. */
export interface ContentRecords {
  readonly entries: Float64Array;
  readonly slots: Int32Array;
  readonly numbers: Float64Array;
  readonly tokenSeeds: BigUint64Array;
  readonly places: readonly { readonly layer: number; readonly role: string }[];
  /** Prompt token that native code counts as 0. */
  readonly firstToken: number;
}

/** @throws ArgumentError for a job that does not fit its own page table */
export function contentRecords(job: ContentJob): ContentRecords {
  const group = job.table.layerGroups[job.group];
  if (group === undefined) {
    throw new ArgumentError(`group is ${job.group}, but the page table has ${job.table.layerGroups.length} groups`);
  }
  checkRange(job);
  const isState = group.kind === 'state';
  const { entries, places } = entryRecords(job, group, isState ? 1 : group.tokensPerBlock);
  return { entries, places, ...(isState ? statePages(job) : tokenPages(job, group.tokensPerBlock)) };
}

function entryRecords(
  job: ContentJob,
  { views }: PageTableGroup,
  tokensPerBlock: number,
): Pick<ContentRecords, 'entries' | 'places'> {
  const places: { layer: number; role: string }[] = [];
  const numbers: number[] = [];
  const seen = new Map<string, number>();
  for (const view of views) {
    for (const entry of view.layers) {
      const pool = job.table.pools[entry.pool];
      if (pool === undefined) throw new ArgumentError(`layer ${entry.layer}: the page table has no pool ${entry.pool}`);
      const key = `${view.role} ${entry.layer}`;
      const ordinal = seen.get(key) ?? 0;
      seen.set(key, ordinal + 1);
      for (const part of contentParts(view, entry, tokensPerBlock, job, ordinal)) {
        numbers.push(...record(pool, entry.layer, part));
        places.push({ layer: entry.layer, role: part.role });
      }
    }
  }
  return { entries: Float64Array.from(numbers), places };
}

function record(pool: PagePool, layer: number, part: ContentPart): readonly number[] {
  return [
    pool.base,
    pool.slotBytes,
    pool.slotStride,
    pool.slotCount,
    part.offset,
    layer,
    part.roleNumber,
    part.tokenMajor ? TOKEN_MAJOR : HEAD_MAJOR,
    part.heads,
    part.firstHead,
    part.cellBytes,
  ];
}

/** The one slot of a recurrent state, whose content is a function of all tokens before `tokenEnd`. */
function statePages({ run, tokenEnd, tokenSeeds }: ContentJob): Omit<ContentRecords, 'entries' | 'places'> {
  if (run.begin !== 0 || run.slots.length > 1) {
    throw new ArgumentError(`a state is one slot, ordinal 0; the run has ${run.slots.length} from ${run.begin} on`);
  }
  const [begin, end] = tokenEnd === 0 ? NO_TOKENS : [tokenEnd - 1, tokenEnd];
  checkSeeds(end, tokenSeeds);
  const numbers = Float64Array.of(1, 0, 0);
  return { slots: run.slots, numbers, tokenSeeds: tokenSeeds.subarray(begin, end), firstToken: begin };
}

function tokenPages(job: ContentJob, tokensPerBlock: number): Omit<ContentRecords, 'entries' | 'places'> {
  const { run, tokenSeeds } = job;
  const slots = consecutiveSlots(run.slots, run.stride ?? 1);
  const begin = Math.max(job.tokenBegin, run.begin * tokensPerBlock);
  const end = Math.max(begin, Math.min(job.tokenEnd, (run.begin + slots.length) * tokensPerBlock));
  if (end > begin) checkSeeds(end, tokenSeeds);
  return {
    slots,
    numbers: Float64Array.of(tokensPerBlock, run.begin, begin),
    tokenSeeds: tokenSeeds.subarray(begin, end),
    firstToken: 0,
  };
}

/** Slots of every ordinal: those that another context parallel rank owns are holes, which native code skips. */
function consecutiveSlots(slots: Int32Array, stride: number): Int32Array {
  if (!Number.isSafeInteger(stride) || stride < 1) {
    throw new ArgumentError(`run.stride must be a positive integer, got ${String(stride)}`);
  }
  if (stride === 1 || slots.length < 2) return slots;
  const all = new Int32Array((slots.length - 1) * stride + 1).fill(HOLE);
  slots.forEach((slot, index) => {
    all[index * stride] = slot;
  });
  return all;
}

function checkRange({ run, tokenBegin, tokenEnd }: ContentJob): void {
  for (const [name, value] of Object.entries({ tokenBegin, tokenEnd, 'run.begin': run.begin })) {
    if (!Number.isSafeInteger(value) || value < 0) throw new ArgumentError(`${name} must be a whole number from 0 on`);
  }
}

function checkSeeds(end: number, tokenSeeds: BigUint64Array): void {
  if (end <= tokenSeeds.length) return;
  throw new ArgumentError(`tokens up to ${end} are asked for, but there are seeds for ${tokenSeeds.length}`);
}
