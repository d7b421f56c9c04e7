import { loadNative, type NativeBareCopy } from './native.js';
import { typedError } from './native-error.js';

/** What one copy took. */
export interface BareCopyTimes {
  /** By the host's clock, from before the command is given until its end is seen, as slices are timed. */
  readonly hostMs: number;
  /** By the GPU's clock: the copy alone. */
  readonly deviceMs: number;
}

/**
 * Role: one copy command of the driver from one GPU's memory to another's, which the paths of device memory are measured against.
 * Ownership: owns memory on both GPUs until `close`.
 */
export class BareCopy {
  readonly #inner: NativeBareCopy;

  private constructor(inner: NativeBareCopy) {
    this.#inner = inner;
  }

  /**
   * @param from the GPU that writes
   * @param to the GPU that is written; may be the same
   * @param sizeBytes of the largest copy; allocated on both
   * @throws CapabilityError without a usable driver, or where `from` cannot write the memory of `to`
   * @throws ResourceError where a GPU has not that much memory free
   */
  static async open(from: number, to: number, sizeBytes: number): Promise<BareCopy> {
    try {
      const inner = new (loadNative().BareCopy)(from, to, sizeBytes);
      await inner.open();
      return new BareCopy(inner);
    } catch (error) {
      throw typedError(error);
    }
  }

  /** @throws ArgumentError for no bytes, or more than were opened */
  async time(bytes: number): Promise<BareCopyTimes> {
    try {
      const [hostNs, deviceUs] = await this.#inner.time(bytes);
      return { hostMs: hostNs / 1e6, deviceMs: deviceUs / 1e3 };
    } catch (error) {
      throw typedError(error);
    }
  }

  /** Idempotent. */
  async close(): Promise<void> {
    await this.#inner.close();
  }
}
