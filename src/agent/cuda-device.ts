import { ArgumentError } from '../errors.js';
import { CudaEvent } from './cuda-event.js';
import { CudaStream, type StreamPriority } from './cuda-stream.js';
import { loadNative, type NativeModule } from './native.js';
import { typedError } from './native-error.js';

/**
 * One GPU, for the engine that computes on it: its streams and events. The context is the primary one, which the CUDA runtime of any
 * other library in this process uses too.
 */
export class CudaDevice {
  readonly ordinal: number;
  readonly #native: NativeModule;

  private constructor(ordinal: number, native: NativeModule) {
    this.ordinal = ordinal;
    this.#native = native;
  }

  /**
   * @param ordinal as CUDA_VISIBLE_DEVICES has it
   * @throws CapabilityError without a usable driver, with what the driver says
   * @throws ArgumentError for a GPU that is not there
   */
  static async open(ordinal: number): Promise<CudaDevice> {
    if (!Number.isSafeInteger(ordinal) || ordinal < 0)
      throw new ArgumentError(`a GPU's number is expected, got ${ordinal}`);
    const native = loadNative();
    try {
      await native.openDevice(ordinal);
    } catch (error) {
      throw typedError(error);
    }
    return new CudaDevice(ordinal, native);
  }

  /** To be recorded before it is used. */
  createEvent(): CudaEvent {
    return new CudaEvent(this.ordinal, this.#native);
  }

  /** Low priority yields multiprocessors to streams of higher priority. */
  async createStream(priority: StreamPriority = 'low'): Promise<CudaStream> {
    try {
      const handle = await this.#native.createStream(this.ordinal, priority === 'high' ? 1 : 0);
      return new CudaStream(this.ordinal, handle, this.#native);
    } catch (error) {
      throw typedError(error);
    }
  }
}
