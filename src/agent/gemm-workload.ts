import { contentRecords } from './content-records.js';
import { CudaEvent } from './cuda-event.js';
import { loadNative, type NativeGemm, type NativeModule } from './native.js';
import { typedError } from './native-error.js';
import type { ContentJob } from './page-content.js';

/** Matrices of a dense transformer. */
export interface GemmShape {
  readonly layers: number;
  readonly hiddenSize: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly intermediateSize: number;
  /** Tokens of the longest chunk. */
  readonly maxChunkTokens: number;
  /** Tokens of the longest prompt. */
  readonly maxContextTokens: number;
}

/** One chunk that was queued. */
export interface GemmStep {
  /** Reached when products and pages are done; for `submit({ after })`. */
  readonly event: CudaEvent;
  readonly bytesWritten: number;
  /** The same for this thread; rejects when the GPU failed. */
  readonly done: Promise<void>;
}

/**
 * Role: the matrix products of a model's prefill on one GPU, by cuBLAS, with random bfloat16 values; and pages written behind them on
 *   the same stream.
 * Why: transfers then compete with multiprocessors and memory that are as busy as an engine makes them.
 * Left out: softmax, norms, activations, the vocabulary's projection. All layers use one layer's weights, and attention the same
 *   keys and values, both far larger than the GPU's cache.
 * Ownership: owns GPU memory, a stream and a cuBLAS handle until `close`.
 */
export class GemmWorkload {
  readonly device: number;
  /** The file that was opened, and its version as cuBLAS counts it (130100 for 13.1). */
  readonly library: { readonly path: string; readonly version: number };
  readonly #native: NativeModule;
  readonly #inner: NativeGemm;

  private constructor(device: number, library: GemmWorkload['library'], native: NativeModule, inner: NativeGemm) {
    this.device = device;
    this.library = library;
    this.#native = native;
    this.#inner = inner;
  }

  /**
   * @param library path of libcublas; default: $KV_TRANSCEIVER_CUBLAS_LIB, the active Python's wheels, /usr/local/cuda
   * @throws CapabilityError without a GPU or cuBLAS, with what was tried
   * @throws ResourceError when the GPU has not the memory
   */
  static async open(device: number, shape: GemmShape, library = ''): Promise<GemmWorkload> {
    const native = loadNative();
    const { layers, hiddenSize, heads, kvHeads, headDim, intermediateSize, maxChunkTokens, maxContextTokens } = shape;
    const numbers = [layers, hiddenSize, heads, kvHeads, headDim, intermediateSize, maxChunkTokens, maxContextTokens];
    try {
      const inner = new native.GemmWorkload(device, library, Float64Array.from(numbers));
      const opened = await inner.open();
      return new GemmWorkload(device, { path: opened.library, version: opened.version }, native, inner);
    } catch (error) {
      throw typedError(error);
    }
  }

  /**
   * Queues the products of `chunkTokens` prompt tokens that follow `contextTokens` others, and then the pages of `jobs`, which must lie on
   * this GPU. Resolves when all of it is queued; a rejection means that none of it runs any more.
   */
  async forward(chunkTokens: number, contextTokens: number, jobs: readonly ContentJob[] = []): Promise<GemmStep> {
    const records = jobs.flatMap((job) => {
      const { entries, slots, numbers, tokenSeeds } = contentRecords(job);
      return [entries, slots, numbers, tokenSeeds];
    });
    try {
      const { event, bytes, done } = await this.#inner.forward(chunkTokens, contextTokens, ...records);
      const ended = done.catch((error: unknown) => {
        throw typedError(error);
      });
      // Whoever wants to know awaits it; nobody has to.
      ended.catch(() => {});
      return { event: new CudaEvent(this.device, this.#native, event), bytesWritten: bytes, done: ended };
    } catch (error) {
      throw typedError(error);
    }
  }

  /** Waits for what was queued. Idempotent. */
  async close(): Promise<void> {
    await this.#inner.close();
  }
}
