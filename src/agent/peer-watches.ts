import { ArgumentError, CapabilityError } from '../errors.js';
import type { NativeAgent } from './native.js';
import { typedError } from './native-error.js';

/** Role: the processes behind peers that an agent watches, by the names their sessions know them by. */
export class PeerWatches {
  listener: ((peerId: string) => void) | null = null;
  readonly #native: NativeAgent;
  readonly #peers = new Map<number, string>();
  #lastWatch = 0;

  constructor(native: NativeAgent) {
    this.#native = native;
  }

  /** False when the end of that process cannot be told from here. */
  async add(metadata: Uint8Array, peerId: string): Promise<boolean> {
    if ([...this.#peers.values()].includes(peerId)) throw new ArgumentError(`peer ${peerId} is watched already`);
    const watch = ++this.#lastWatch;
    this.#peers.set(watch, peerId);
    try {
      await this.#native.watchProcess(watch, metadata);
      return true;
    } catch (thrown) {
      this.#peers.delete(watch);
      const error = typedError(thrown);
      if (error instanceof CapabilityError) return false;
      throw error;
    }
  }

  remove(peerId: string): void {
    for (const [watch, known] of this.#peers) {
      if (known !== peerId) continue;
      this.#peers.delete(watch);
      this.#native.unwatchProcess(watch);
    }
  }

  nameOf(watch: number): string | undefined {
    return this.#peers.get(watch);
  }

  ended(watch: number): void {
    const peerId = this.#peers.get(watch);
    if (peerId === undefined) return;
    this.#peers.delete(watch);
    this.listener?.(peerId);
  }
}
