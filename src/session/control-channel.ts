import { WireError } from '../errors.js';
import { decodeFrame, encodeFrame, type Frame } from '../wire/index.js';
import type { Message } from '../wire/messages.js';
import type { Messenger } from '../wire/messenger.js';
import type { Counters } from './counters.js';

/**
 * Role: messages in, messages out, over a Messenger.
 * Why: a bad frame is counted by reason here, once, and never reaches a session.
 */
export class ControlChannel {
  readonly #messenger: Messenger;
  readonly #incarnation: bigint;

  constructor(
    messenger: Messenger,
    incarnation: bigint,
    counters: Counters,
    listeners: { readonly onMessage: (frame: Frame) => void; readonly onBadFrame: (error: WireError) => void },
  ) {
    this.#messenger = messenger;
    this.#incarnation = incarnation;
    messenger.onFrame((bytes) => {
      let frame: Frame;
      try {
        frame = decodeFrame(bytes);
      } catch (error) {
        if (!(error instanceof WireError)) throw error;
        counters.add(`wire_error:${error.reason}`);
        listeners.onBadFrame(error);
        return;
      }
      listeners.onMessage(frame);
    });
  }

  get endpoint(): string {
    return this.#messenger.endpoint;
  }

  send(endpoint: string, message: Message): void {
    this.#messenger.send(endpoint, encodeFrame(message, { incarnation: this.#incarnation }));
  }

  forget(endpoint: string): void {
    this.#messenger.forget(endpoint);
  }
}
