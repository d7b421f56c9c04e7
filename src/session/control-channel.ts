import { WireError } from '../errors.js';
import { decodeFrame, encodeFrame, type Frame, negotiateMinor, WIRE_MINOR } from '../wire/index.js';
import type { Message } from '../wire/messages.js';
import type { Messenger } from '../wire/messenger.js';
import type { Counters } from './counters.js';

/**
 * Role: messages in, messages out, over a Messenger.
 * Why: a bad frame is counted by reason here, once, and never reaches a session. The minor in use with a peer is known here alone.
 */
export class ControlChannel {
  readonly #messenger: Messenger;
  readonly #incarnation: bigint;
  readonly #ownMinor: number;
  readonly #minors = new Map<string, number>();

  /** @param ownMinor the newest wire minor that this rank speaks */
  constructor(
    messenger: Messenger,
    incarnation: bigint,
    counters: Counters,
    listeners: { readonly onMessage: (frame: Frame) => void; readonly onBadFrame: (error: WireError) => void },
    ownMinor = WIRE_MINOR,
  ) {
    this.#messenger = messenger;
    this.#incarnation = incarnation;
    this.#ownMinor = ownMinor;
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

  /** From now on, until it is forgotten, frames to this endpoint have the smaller of the two minors. */
  agree(endpoint: string, peerMinor: number): void {
    this.#minors.set(endpoint, negotiateMinor(peerMinor, this.#ownMinor));
  }

  send(endpoint: string, message: Message): void {
    // What introduces this rank carries its own minor: that is how the other side learns it.
    const introduces = message.type === 'HELLO' || message.type === 'HELLO_ACK';
    const minor = introduces ? this.#ownMinor : (this.#minors.get(endpoint) ?? this.#ownMinor);
    this.#messenger.send(endpoint, encodeFrame(message, { incarnation: this.#incarnation, minor }));
  }

  forget(endpoint: string): void {
    this.#minors.delete(endpoint);
    this.#messenger.forget(endpoint);
  }
}
