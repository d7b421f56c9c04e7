const CHUNK_BYTES = 64 * 1024;

/**
 * Role: memory for the frames that are under way, many in one buffer.
 * Why: a frame of its own size lies in the heap until somebody looks at its `buffer`; then it is moved out, which costs more than reading it.
 */
export class FrameRoom {
  #chunk = new ArrayBuffer(CHUNK_BYTES);
  #used = 0;

  /** Bytes that nobody else has. */
  copy(bytes: Uint8Array): Uint8Array {
    const { length } = bytes;
    if (length > CHUNK_BYTES / 4) return bytes.slice();
    if (this.#used + length > CHUNK_BYTES) {
      this.#chunk = new ArrayBuffer(CHUNK_BYTES);
      this.#used = 0;
    }
    const room = new Uint8Array(this.#chunk, this.#used, length);
    // The next one begins where numbers of eight bytes may.
    this.#used += (length + 7) & ~7;
    room.set(bytes);
    return room;
  }
}
