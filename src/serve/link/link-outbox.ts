import type { Clock } from '../../clock.js';
import type { KvTransceiverError } from '../../errors.js';
import type { CallbackGuard } from '../../session/callback-guard.js';
import type { Messenger } from '../../wire/messenger.js';
import { encodeFrame } from './link-codec.js';
import { FRAME_BYTES, FRAME_MESSAGES } from './link-limits.js';
import type { FrontMessage, WorkerMessage } from './link-message.js';

export interface LinkOutboxOptions {
  readonly clock: Clock;
  readonly messenger: Messenger;
  readonly endpoint: string;
  readonly session: bigint;
  readonly guard: CallbackGuard;
  /** Something could not be said: the session lacks a frame now, and is over. Called once. */
  readonly onBroken: (error: KvTransceiverError) => void;
}

/**
 * Role: what one end says in one session, in numbered frames.
 * Why: a decode step gives a token to each of hundreds of requests; what is said in one turn of the event loop goes out together.
 */
export class LinkOutbox<M extends FrontMessage | WorkerMessage> {
  readonly #o: LinkOutboxOptions;
  #messages: M[] = [];
  #sizeBytes = 0;
  #sequence = 0;
  #scheduled = false;
  #closed = false;

  constructor(options: LinkOutboxOptions) {
    this.#o = options;
  }

  /** @param sizeBytes of what makes the message large, if anything */
  say(message: M, sizeBytes = 0): void {
    if (this.#closed) return;
    if (this.#messages.length > 0 && this.#sizeBytes + sizeBytes > FRAME_BYTES) this.flush();
    this.#messages.push(message);
    this.#sizeBytes += sizeBytes;
    if (this.#messages.length >= FRAME_MESSAGES) this.flush();
    if (this.#scheduled) return;
    this.#scheduled = true;
    const { guard, clock, endpoint } = this.#o;
    guard.after(`what is said to ${endpoint}`, clock.nextTurn(), () => {
      this.#scheduled = false;
      this.flush();
    });
  }

  /** Outside the order: what opens and refuses sessions. */
  sayApart(message: M): void {
    sayOnce({ ...this.#o, message });
  }

  flush(): void {
    if (this.#closed || this.#messages.length === 0) return;
    const { messenger, endpoint, session, guard, onBroken } = this.#o;
    const messages = this.#messages;
    this.#messages = [];
    this.#sizeBytes = 0;
    const error = guard.run(`what is said to ${endpoint}`, () =>
      messenger.send(endpoint, encodeFrame({ session, sequence: ++this.#sequence, messages })),
    );
    if (error === null) return;
    this.close();
    onBroken(error);
  }

  /** Says nothing more. */
  close(): void {
    this.#closed = true;
    this.#messages = [];
  }
}

/** One message outside the order of any session. */
export function sayOnce(options: {
  readonly messenger: Messenger;
  readonly endpoint: string;
  readonly session: bigint;
  readonly message: FrontMessage | WorkerMessage;
}): void {
  const { messenger, endpoint, session, message } = options;
  messenger.send(endpoint, encodeFrame({ session, sequence: 0, messages: [message] }));
}
