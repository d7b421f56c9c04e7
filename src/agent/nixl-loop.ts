import { randomBytes } from 'node:crypto';
import { loadNative, type NativeNixlLoop, nixlPackageTree } from './native.js';
import { typedError } from './native-error.js';
import type { Pool } from './transfer-agent.js';

/**
 * Role: the shortest native loop there can be over NIXL (descriptors, request, post, ask until done), which the nixl agent is measured against.
 * Ownership: owns a NIXL agent of its own, and holds the source pool until `close`.
 */
export class NixlLoop {
  readonly #inner: NativeNixlLoop;

  private constructor(inner: NativeNixlLoop) {
    this.#inner = inner;
  }

  /**
   * @param source a pool of an agent of this process; its memory is registered a second time
   * @param peer metadata of the receiving nixl agent
   * @throws CapabilityError without NIXL
   */
  static async open(source: Pool, peer: Uint8Array): Promise<NixlLoop> {
    const name = `nixl-loop-${randomBytes(8).toString('hex')}`;
    try {
      const inner = new (loadNative().NixlLoop)(name, '', nixlPackageTree());
      await inner.open(source.base, source.sizeBytes, peer);
      return new NixlLoop(inner);
    } catch (error) {
      throw typedError(error);
    }
  }

  /**
   * Moves slots of one size in one request.
   * @param slotPairs source slot, destination slot, ...
   * @returns milliseconds from the first descriptor to the last byte
   * @throws ArgumentError for slots outside the memory that a side registered
   */
  async time(srcBase: number, dstBase: number, slotBytes: number, slotPairs: Int32Array): Promise<number> {
    try {
      return (await this.#inner.time(srcBase, dstBase, slotBytes, slotPairs)) / 1e6;
    } catch (error) {
      throw typedError(error);
    }
  }

  /** Idempotent. */
  async close(): Promise<void> {
    await this.#inner.close();
  }
}
