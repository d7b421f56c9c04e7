import { ArgumentError } from '../errors.js';
import type { PagePool, PageTable } from '../mapping/page-table.js';
import type { Fragment } from '../mapping/transfer-plan.js';

/** Numbers of one fragment: four of each side's pool, then six of the fragment. Read by native/addon/fragment_records.cc. */
const RECORD = 14;

/** @throws ArgumentError for a pool index that the page table does not have */
export function fragmentRecords(local: PageTable, remote: PageTable, fragments: readonly Fragment[]): Float64Array {
  const records = new Float64Array(fragments.length * RECORD);
  fragments.forEach((fragment, index) => {
    const source = poolOf(local, fragment.srcPool, index, 'srcPool');
    const destination = poolOf(remote, fragment.dstPool, index, 'dstPool');
    records.set(
      [
        source.base,
        source.slotBytes,
        source.slotStride,
        source.slotCount,
        destination.base,
        destination.slotBytes,
        destination.slotStride,
        destination.slotCount,
        fragment.srcOffset,
        fragment.dstOffset,
        fragment.bytes,
        fragment.count,
        fragment.srcStride,
        fragment.dstStride,
      ],
      index * RECORD,
    );
  });
  return records;
}

function poolOf(table: PageTable, pool: number, fragment: number, name: string): PagePool {
  const found = table.pools[pool];
  if (found === undefined) {
    throw new ArgumentError(
      `fragment ${fragment}: ${name} is ${pool}, but the page table has ${table.pools.length} pools`,
    );
  }
  return found;
}
