import type { Router } from 'zeromq';
import { FrameQueue } from './frame-queue.js';
import { MAX_REPLY_BYTES } from './limits.js';
import type { MessengerCounters } from './messenger-counters.js';

/** Answers that wait to be handed to ZeroMQ; it takes them at once, so that this fills only while the event loop is held up. */
const MAX_QUEUED = { maxFrames: 1024, maxBytes: 4 * 1024 * 1024 };

/**
 * Role: answers on the connections that others made to the bound socket.
 * Why a queue: the library allows one send at a time. ZeroMQ drops what is for a connection that is gone, or that its owner does not read.
 */
export class ZeromqReplies {
  readonly #router: Router;
  readonly #counters: MessengerCounters;
  readonly #queue = new FrameQueue(MAX_QUEUED);
  readonly #targets: Buffer[] = [];
  #sending = false;

  constructor(router: Router, counters: MessengerCounters) {
    this.#router = router;
    this.#counters = counters;
  }

  /** @param connection as `connectionToken` gave it */
  send(connection: string, frame: Uint8Array): void {
    if (frame.length > MAX_REPLY_BYTES || !this.#queue.push(frame)) {
      this.#counters.dropped('reply-dropped');
      return;
    }
    this.#targets.push(Buffer.from(connection, 'hex'));
    if (!this.#sending) void this.#sendAll();
  }

  async #sendAll(): Promise<void> {
    this.#sending = true;
    for (let frame = this.#queue.shift(); frame !== undefined; frame = this.#queue.shift()) {
      try {
        await this.#router.send([this.#targets.shift() ?? '', frame]);
        this.#counters.sent(frame.length);
      } catch {
        this.#counters.dropped(this.#router.closed ? 'closed' : 'socket-error');
      }
    }
    this.#sending = false;
  }
}

/** ZeroMQ's name of a connection; our peers choose none themselves, so that it gives one that was never used. */
export function connectionToken(routingId: Buffer): string {
  return routingId.toString('hex');
}
