import type { FrameOrigin, Messenger } from '../../../wire/messenger.js';

/**
 * Role: two messengers of one process that hand each other their frames, without sockets.
 * Ordering: a frame arrives when `deliver` is called, in the order in which it was sent.
 */
export class LoopMessenger implements Messenger {
  readonly endpoint: string;
  readonly maxConnections = 1;
  #peer: LoopMessenger | null = null;
  #queue: Uint8Array[] = [];
  #listener: (frame: Uint8Array, origin: FrameOrigin) => void = () => {};

  private constructor(endpoint: string) {
    this.endpoint = endpoint;
  }

  static pair(): readonly [LoopMessenger, LoopMessenger] {
    const [a, b] = [new LoopMessenger('tcp://127.0.0.1:1'), new LoopMessenger('tcp://127.0.0.1:2')];
    a.#peer = b;
    b.#peer = a;
    return [a, b];
  }

  send(_: string, frame: Uint8Array): void {
    if (this.#peer !== null) this.#peer.#queue.push(frame);
  }

  reply(_: FrameOrigin, frame: Uint8Array): void {
    this.send('', frame);
  }

  onFrame(listener: (frame: Uint8Array, origin: FrameOrigin) => void): void {
    this.#listener = listener;
  }

  onDisconnect(): void {}

  forget(): void {}

  async close(): Promise<void> {}

  /** @returns false when nothing had arrived */
  deliver(): boolean {
    if (this.#queue.length === 0) return false;
    const frames = this.#queue;
    this.#queue = [];
    const origin: FrameOrigin = { kind: 'accepted', connection: 'loop' };
    for (const frame of frames) this.#listener(frame, origin);
    return true;
  }
}
