import type { PageTable } from '../mapping/page-table.js';
import type { TransferPlan } from '../mapping/transfer-plan.js';
import { fragmentRecords } from './fragment-records.js';
import { loadNative } from './native.js';
import { typedError } from './native-error.js';

/** One contiguous copy, as the native expansion hands it to a transport. */
export interface ExpandedRun {
  readonly source: number;
  readonly destination: number;
  readonly bytes: number;
}

/** Bounds of one batch; default: none. */
export interface ExpansionBatch {
  readonly maxRuns?: number;
  readonly maxBytes?: number;
}

/**
 * What the native side makes of a plan, moving nothing: its coalesced runs in order, at the addresses of the two tables. For
 * diagnosis and for tests; blocks the thread for as long as the plan is large.
 * @throws ArgumentError for a fragment that leaves its slot, or a slot that a pool does not have
 * @throws CapabilityError when the addon cannot be loaded
 */
export function expandPlan(
  local: PageTable,
  remote: PageTable,
  plan: TransferPlan,
  { maxRuns = Number.MAX_SAFE_INTEGER, maxBytes = Number.MAX_SAFE_INTEGER }: ExpansionBatch = {},
): ExpandedRun[] {
  const records = plan.groups.map(({ fragments }) => fragmentRecords(local, remote, fragments));
  const lengths = plan.groups.flatMap(({ slotPairs }, index) => [records[index]?.length ?? 0, slotPairs.length]);
  let numbers: Float64Array;
  try {
    numbers = loadNative().expandPlan(
      Float64Array.from(records.flatMap((record) => [...record])),
      Float64Array.from(lengths),
      Int32Array.from(plan.groups.flatMap(({ slotPairs }) => [...slotPairs])),
      maxRuns,
      maxBytes,
    );
  } catch (error) {
    throw typedError(error);
  }
  return Array.from({ length: numbers.length / 3 }, (_, index) => ({
    source: numbers[3 * index] as number,
    destination: numbers[3 * index + 1] as number,
    bytes: numbers[3 * index + 2] as number,
  }));
}
