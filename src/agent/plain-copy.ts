import { loadNative } from './native.js';
import { typedError } from './native-error.js';

/** Pages of two pools of one layout; both pools belong to agents of this thread. */
export interface PlainCopy {
  readonly srcBase: number;
  readonly dstBase: number;
  readonly pageBytes: number;
  readonly slotStride: number;
  /** Source slot, destination slot, ... */
  readonly slotPairs: Int32Array;
}

/**
 * What benches compare agents with: one memcpy per page on a thread of the pool.
 * @returns elapsed nanoseconds
 * @throws ArgumentError when a page leaves the pools
 */
export async function plainCopyNs(copy: PlainCopy): Promise<number> {
  const { srcBase, dstBase, pageBytes, slotStride, slotPairs } = copy;
  try {
    return await loadNative().plainCopyNs(srcBase, dstBase, pageBytes, slotStride, slotPairs);
  } catch (error) {
    throw typedError(error);
  }
}
