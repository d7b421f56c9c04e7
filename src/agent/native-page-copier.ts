import { CapabilityError } from '../errors.js';
import { loadNative } from './native.js';
import { typedError } from './native-error.js';
import type { ByteCopy, MemoryStretch, PageCopier } from './page-copier.js';

const NUMBERS_PER_COPY = 5;

/**
 * Role: copies by memcpy, and with a stream of its own where device memory is named, on a thread of Node's pool.
 * Ordering: device copies do not wait for other streams: what is copied must have been written, and what is overwritten must have been read.
 */
export class NativePageCopier implements PageCopier {
  readonly #movePages: (ranges: Float64Array, moves: Float64Array) => Promise<void>;

  /** @throws CapabilityError when the addon is missing, or older than this package */
  constructor() {
    const native = loadNative();
    if (native.movePages === undefined) {
      throw new CapabilityError('the native addon is older than the host tier of the cache; run `npm run build`');
    }
    this.#movePages = native.movePages.bind(native);
  }

  /** @throws ArgumentError for bytes outside the pools of this thread's agents, or of two GPUs in one call */
  async copy(stretches: readonly MemoryStretch[], copies: readonly ByteCopy[]): Promise<void> {
    const ranges = Float64Array.from(stretches.flatMap(({ base, sizeBytes }) => [base, sizeBytes]));
    const moves = new Float64Array(NUMBERS_PER_COPY * copies.length);
    let at = 0;
    for (const { fromStretch, fromOffset, toStretch, toOffset, bytes } of copies) {
      moves[at] = fromStretch;
      moves[at + 1] = fromOffset;
      moves[at + 2] = toStretch;
      moves[at + 3] = toOffset;
      moves[at + 4] = bytes;
      at += NUMBERS_PER_COPY;
    }
    try {
      await this.#movePages(ranges, moves);
    } catch (error) {
      throw typedError(error);
    }
  }
}
