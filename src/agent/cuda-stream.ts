import type { NativeModule } from './native.js';

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

  /** Idempotent. */
  close(): void {
    this.#native.closeStream(this.handle);
  }
}
