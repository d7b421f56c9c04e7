import type { Clock, Timer } from '../clock.js';
import type { FrameOrigin } from '../wire/index.js';
import { HEADER_BYTES } from '../wire/index.js';
import { MessageType } from '../wire/messages.js';

/** Time that greetings get at once; then everybody else gets as long. */
const SLICE_MS = 4;
/** Of one connection. A rank repeats what is not answered. */
const MAX_WAITING_EACH = 2;
const MAX_WAITING = 1024;
const MAX_WAITING_BYTES = 32 * 1024 * 1024;
/** Where a header has its type. */
const TYPE_BYTE = 6;

type Handle = (frame: Uint8Array, origin: FrameOrigin) => void;

interface Waiting {
  readonly origin: FrameOrigin;
  readonly frames: Uint8Array[];
}

/** HELLO and HELLO_ACK: what anybody may send, and what costs most to read, for a page table is in it. */
export function isGreeting(frame: Uint8Array): boolean {
  const type = frame.length < HEADER_BYTES ? 0 : frame[TYPE_BYTE];
  return type === MessageType.HELLO || type === MessageType.HELLO_ACK;
}

/**
 * Role: gives greetings half of this thread's time at most, connection by connection, so that a flood of them does not keep peers waiting.
 * Ordering: of one connection in order, but other frames may overtake them. While there is time, a greeting is read when it comes.
 * Invariant: a bounded number and size wait; the one that finds no room is dropped and counted, as if it had been lost.
 */
export class GreetingShare {
  readonly #clock: Clock;
  readonly #handle: Handle;
  readonly #onDropped: () => void;
  /** By connection, the one served next first. */
  readonly #waiting = new Map<string, Waiting>();
  #waitingCount = 0;
  #waitingBytes = 0;
  #spentMs = 0;
  #pause: Timer | null = null;
  #closed = false;

  /** @param onDropped one found no room */
  constructor(clock: Clock, handle: Handle, onDropped: () => void) {
    this.#clock = clock;
    this.#handle = handle;
    this.#onDropped = onDropped;
  }

  take(frame: Uint8Array, origin: FrameOrigin): void {
    if (this.#closed) return;
    if (this.#pause === null) this.#serve(frame, origin);
    else this.#keep(frame, origin);
  }

  close(): void {
    this.#closed = true;
    this.#pause?.cancel();
    this.#waiting.clear();
  }

  #serve(frame: Uint8Array, origin: FrameOrigin): void {
    const startedMs = this.#clock.now();
    try {
      this.#handle(frame, origin);
    } finally {
      this.#spentMs += this.#clock.now() - startedMs;
      if (this.#spentMs >= SLICE_MS && !this.#closed) {
        this.#pause = this.#clock.setTimer(this.#spentMs, () => this.#resume());
        this.#spentMs = 0;
      }
    }
  }

  #resume(): void {
    this.#pause = null;
    while (this.#pause === null) {
      const next = this.#shift();
      if (next === null) return;
      this.#serve(next.frame, next.origin);
    }
  }

  #keep(frame: Uint8Array, origin: FrameOrigin): void {
    const key = origin.kind === 'accepted' ? origin.connection : origin.endpoint;
    const waiting = this.#waiting.get(key) ?? { origin, frames: [] };
    const isFull =
      waiting.frames.length >= MAX_WAITING_EACH ||
      this.#waitingCount >= MAX_WAITING ||
      this.#waitingBytes + frame.length > MAX_WAITING_BYTES;
    if (isFull) {
      this.#onDropped();
      return;
    }
    waiting.frames.push(frame);
    this.#waiting.set(key, waiting);
    this.#waitingCount += 1;
    this.#waitingBytes += frame.length;
  }

  #shift(): { readonly frame: Uint8Array; readonly origin: FrameOrigin } | null {
    for (const [key, waiting] of this.#waiting) {
      const { origin, frames } = waiting;
      // Behind the others, if it has more.
      this.#waiting.delete(key);
      const frame = frames.shift();
      if (frame === undefined) continue;
      if (frames.length > 0) this.#waiting.set(key, waiting);
      this.#waitingCount -= 1;
      this.#waitingBytes -= frame.length;
      return { frame, origin };
    }
    return null;
  }
}
