import { StateError } from '../errors.js';
import { CudaStream } from './cuda-stream.js';
import type { NativeModule } from './native.js';
import { typedError } from './native-error.js';
import type { ReadyEvent } from './transfer-agent.js';

/** Where the mark of an event is; `unrecorded` until its first `record`. */
export type CudaEventState = 'unrecorded' | 'pending' | 'reached' | 'failed';

/** Marks that nobody refers to any more. Submissions keep those they wait for. */
const dropped = new FinalizationRegistry<{ readonly native: NativeModule; readonly mark: { event: number } }>(
  ({ native, mark }) => {
    if (mark.event !== 0) native.releaseDeviceEvent(mark.event);
  },
);

/**
 * Role: the end of work on a GPU's stream, as a submission's `after`. On the p2p path the GPU itself waits for it, on the others the
 *   progress thread asks; this thread never waits.
 * Ordering: recording again sets a new mark; submissions that wait for the old one go on waiting for that.
 */
export class CudaEvent implements ReadyEvent {
  readonly device: number;
  readonly #native: NativeModule;
  readonly #mark = { event: 0 };

  /** @param recorded the addon's number of a mark that is set already; 0: none */
  constructor(device: number, native: NativeModule, recorded = 0) {
    this.device = device;
    this.#native = native;
    this.#mark.event = recorded;
    dropped.register(this, { native, mark: this.#mark });
  }

  /** @throws StateError when it was not recorded */
  get handle(): number {
    if (this.#mark.event === 0) throw new StateError('the CUDA event was not recorded: call record(stream) first');
    return this.#mark.event;
  }

  /**
   * @param stream ours, or any CUstream / cudaStream_t of the same GPU as a number; 0 is the legacy default stream
   * @throws TransportError with the driver's text
   */
  record(stream: CudaStream | bigint | number): void {
    const handle = stream instanceof CudaStream ? stream.handle : Number(stream);
    const before = this.#mark.event;
    try {
      this.#mark.event = this.#native.recordDeviceEvent(this.device, handle);
    } catch (error) {
      throw typedError(error);
    }
    if (before !== 0) this.#native.releaseDeviceEvent(before);
  }

  query(): CudaEventState {
    if (this.#mark.event === 0) return 'unrecorded';
    const state = this.#native.queryDeviceEvent(this.#mark.event);
    if (typeof state === 'string') return 'failed';
    return state === 0 ? 'pending' : 'reached';
  }

  signal(): void {
    throw new StateError('a CUDA event is reached by its stream: record it there, or use the event of createEvent()');
  }

  /**
   * The work before it failed in a way that the GPU does not know of: slices behind it fail, those that the GPU has queued too. Changes
   * nothing once `query` or a completion has said that it was reached.
   * @throws StateError when it was not recorded
   */
  fail(message: string): void {
    this.#native.failDeviceEvent(this.handle, message);
  }
}
