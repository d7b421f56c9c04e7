import type { NativeModule } from './native.js';
import { typedError } from './native-error.js';

/** How the GPU shares its multiprocessors between streams. */
export type StreamPriority = 'low' | 'high';

/** Ownership: owns a CUstream. `close` does not wait: what was queued still runs. */
export class CudaStream {
  readonly device: number;
  /** The CUstream (or cudaStream_t, which is the same) for other libraries of this process. */
  readonly handle: number;
  readonly #native: NativeModule;

  constructor(device: number, handle: number, native: NativeModule) {
    this.device = device;
    this.handle = handle;
    this.#native = native;
  }

  /**
   * Queues writes of zeros and returns; several rounds keep the GPU busy for a known time (about 4 TB/s on an H200). The pool must stay
   * until the stream has passed them.
   * @throws ArgumentError for an address that is not device memory of an agent of this thread
   */
  clear(address: number, length: number, rounds = 1): void {
    try {
      this.#native.clearMemory(this.handle, address, length, rounds);
    } catch (error) {
      throw typedError(error);
    }
  }

  /** Idempotent. */
  close(): void {
    this.#native.closeStream(this.handle);
  }
}
