import { HOLE } from './block-run.js';
import { assertCount } from './bounds.js';

const MAX_SLOT = 0x7fffffff;

/**
 * Cuts a suffix list of block ids to one chunk of the prompt. For callers that hold plain lists; a `BlockRun` needs no projection.
 *
 * @param blockIds ids of the contiguous resident run that ends at `residentBlockEnd`; it covers the ordinals
 *   `[max(0, residentBlockEnd - blockIds.length), residentBlockEnd)`
 * @param residentBlockEnd one past the last ordinal the list covers
 * @param chunkBlockOffset first ordinal of the chunk
 * @param chunkBlockCount blocks in the chunk
 * @returns a copy of the ids inside `[chunkBlockOffset, chunkBlockOffset + chunkBlockCount)`; empty when the two do not meet
 * @throws RangeError for negative, fractional or unsafe bounds, a list without a length, and for an id in the result that is no 32-bit slot
 * @example projectBlocksToGlobalChunk([7, 8, 9], 12, 10, 8) // ordinals 9..11 are resident: Int32Array [8, 9]
 */
export function projectBlocksToGlobalChunk(
  blockIds: ArrayLike<number>,
  residentBlockEnd: number,
  chunkBlockOffset: number,
  chunkBlockCount: number,
): Int32Array {
  assertCount(residentBlockEnd, 'residentBlockEnd');
  assertCount(chunkBlockOffset, 'chunkBlockOffset');
  assertCount(chunkBlockCount, 'chunkBlockCount');
  // A list-like of no length would be taken for an empty one.
  assertCount(blockIds?.length, 'blockIds.length');
  const residentBegin = Math.max(0, residentBlockEnd - blockIds.length);
  const begin = Math.max(residentBegin, chunkBlockOffset);
  const end = Math.min(residentBlockEnd, chunkBlockOffset + chunkBlockCount);
  const projected = new Int32Array(Math.max(0, end - begin));
  for (let i = 0; i < projected.length; i++) {
    const index = begin - residentBegin + i;
    const id = blockIds[index];
    // Int32Array would wrap a larger number round to another, existing slot.
    if (id === undefined || !Number.isInteger(id) || id < HOLE || id > MAX_SLOT) {
      throw new RangeError(`blockIds[${index}] must be an integer from ${HOLE} to ${MAX_SLOT}, got ${String(id)}`);
    }
    projected[i] = id;
  }
  return projected;
}
