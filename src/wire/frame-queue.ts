export interface FrameQueueLimits {
  readonly maxFrames: number;
  readonly maxBytes: number;
}

/** FIFO of frames, bounded by count and by bytes. A frame larger than the byte bound still fits an empty queue. */
export class FrameQueue {
  readonly #limits: FrameQueueLimits;
  #frames: Uint8Array[] = [];
  #head = 0;
  #bytes = 0;

  constructor(limits: FrameQueueLimits) {
    this.#limits = limits;
  }

  get size(): number {
    return this.#frames.length - this.#head;
  }

  /** @returns false when the frame was not taken */
  push(frame: Uint8Array): boolean {
    if (this.size >= this.#limits.maxFrames) return false;
    if (this.size > 0 && this.#bytes + frame.length > this.#limits.maxBytes) return false;
    this.#frames.push(frame);
    this.#bytes += frame.length;
    return true;
  }

  shift(): Uint8Array | undefined {
    const frame = this.#frames[this.#head];
    if (frame === undefined) return undefined;
    this.#head++;
    this.#bytes -= frame.length;
    // Dropping the used front in halves keeps shift O(1) amortised and lets sent frames be collected.
    if (this.#head * 2 >= this.#frames.length) {
      this.#frames = this.#frames.slice(this.#head);
      this.#head = 0;
    }
    return frame;
  }

  /** @returns how many frames were dropped */
  clear(): number {
    const dropped = this.size;
    this.#frames = [];
    this.#head = 0;
    this.#bytes = 0;
    return dropped;
  }
}
