import type { Clock } from '../clock.js';
import { KvTransceiverError, WireError } from '../errors.js';
import {
  decodeFrame,
  encodeFrame,
  type Frame,
  type FrameOrigin,
  majorsOf,
  negotiate,
  type SpokenMajor,
  WIRE_VERSIONS,
  type WireVersions,
} from '../wire/index.js';
import type { Hello, HelloAck, Message } from '../wire/messages.js';
import type { Messenger } from '../wire/messenger.js';
import type { CallbackGuard } from './callback-guard.js';
import type { Counters } from './counters.js';
import { GreetingShare, isGreeting } from './greeting-share.js';
import type { Claim } from './greetings.js';
import type { Peer } from './peer.js';

/** Who asks: a peer, or somebody who is known by the connection of the question alone. */
export type Correspondent = Peer | FrameOrigin;

/** Where what a ControlChannel receives goes. */
export interface ControlListeners {
  readonly onMessage: (frame: Frame, origin: FrameOrigin) => void;
  readonly onBadFrame: (error: WireError, origin: FrameOrigin) => void;
}

/**
 * Role: messages in, messages out, over a Messenger.
 * Why: a bad frame is counted by reason here, once, and never reaches a session. The version in use with a peer is known here alone.
 */
export class ControlChannel {
  readonly #messenger: Messenger;
  readonly #incarnation: bigint;
  readonly #counters: Counters;
  readonly #versions: WireVersions;
  readonly #greetings: GreetingShare;
  readonly #agreed = new Map<string, SpokenMajor>();

  /** @param options `versions`: what this rank speaks */
  constructor(options: {
    readonly messenger: Messenger;
    readonly incarnation: bigint;
    readonly clock: Clock;
    readonly counters: Counters;
    /** Frames are read, and listeners called, behind it. */
    readonly guard: CallbackGuard;
    readonly listeners: ControlListeners;
    readonly versions?: WireVersions;
  }) {
    const { messenger, clock, counters, guard, listeners, versions = WIRE_VERSIONS } = options;
    this.#messenger = messenger;
    this.#incarnation = options.incarnation;
    this.#versions = versions;
    this.#counters = counters;
    const read = (bytes: Uint8Array, origin: FrameOrigin): void => {
      guard.run('a frame', () => {
        const frame = this.decode(bytes, (error) => listeners.onBadFrame(error, origin));
        if (frame !== null) listeners.onMessage(frame, origin);
      });
    };
    this.#greetings = new GreetingShare(clock, read, () => counters.add('greetings_dropped'));
    messenger.onFrame((bytes, origin) => {
      if (isGreeting(bytes)) this.#greetings.take(bytes, origin);
      else read(bytes, origin);
    });
  }

  /** Reads no greeting any more. What is still said goes out. */
  close(): void {
    this.#greetings.close();
  }

  /** Null for what is no frame that this rank understands; that is counted. */
  decode(bytes: Uint8Array, onBad: (error: WireError) => void = () => {}): Frame | null {
    try {
      return decodeFrame(bytes, this.#versions);
    } catch (error) {
      if (!(error instanceof WireError)) throw error;
      this.#counters.add(`wire_error:${error.reason}`);
      onBad(error);
      return null;
    }
  }

  /** The frame that `send` would send now. */
  encode(endpoint: string, message: Message): Uint8Array {
    return this.#encode(message, this.#versionFor(endpoint, message));
  }

  get endpoint(): string {
    return this.#messenger.endpoint;
  }

  /** Endpoints that can be sent to at once. */
  get maxConnections(): number {
    return this.#messenger.maxConnections;
  }

  /** Wire majors that this rank speaks, lowest first. */
  get majors(): readonly number[] {
    return majorsOf(this.#versions);
  }

  /**
   * From now on, until it is forgotten, frames to this endpoint are of the highest major that both speak, and of the smaller of the two minors.
   * @param heard in the header of its HELLO or HELLO_ACK
   * @param peerMajors those that it lists; null when its message lists none
   */
  agree(endpoint: string, heard: SpokenMajor, peerMajors: readonly number[] | null): void {
    const agreed = negotiate(heard, peerMajors, this.#versions);
    if (agreed !== null) this.#agreed.set(endpoint, agreed);
  }

  /**
   * Never throws: most is said by a timer, or in answer to a frame, where nobody waits for the error.
   * @returns why the message is no frame, which is counted; null: it is, and leaves
   */
  send(endpoint: string, message: Message): KvTransceiverError | null {
    return this.#dispatch(message, this.#versionFor(endpoint, message), (frame) => {
      this.#messenger.send(endpoint, frame);
    });
  }

  /**
   * HELLO, to one who may not speak our lowest major: each repeat is of the next one, and the list in it names all.
   * @param attempt 0 first
   */
  introduce(endpoint: string, message: Message, attempt: number): void {
    const version = this.#versions[attempt % this.#versions.length] ?? this.#versions[0];
    this.#dispatch(message, version, (frame) => this.#messenger.send(endpoint, frame));
  }

  /** To the endpoint that a HELLO is from, in the version that both speak, which its sender learns by that. */
  answerHello({ hello, heard }: Claim, message: Hello | HelloAck): void {
    const agreed = negotiate(heard, hello.supportedMajors, this.#versions);
    const version = this.#versions.find(({ major }) => major === agreed?.major) ?? this.#versions[0];
    this.#dispatch(message, version, (frame) => this.#messenger.send(hello.rankInfo.endpoint, frame));
  }

  /**
   * To one who is no peer, on the connection that it made.
   * @param major of what is answered, when that could be read
   */
  reply(origin: FrameOrigin, message: Message, major: number | null = null): void {
    const version = this.#versions.find((spoken) => spoken.major === major) ?? this.#versions[0];
    this.#dispatch(message, version, (frame) => this.#messenger.reply(origin, frame));
  }

  /** A peer at its endpoint, anybody else on the connection that it made. */
  tell(to: Correspondent, message: Message): void {
    if ('kind' in to) this.reply(to, message);
    else this.send(to.endpoint, message);
  }

  /** Another process is there, which may speak other versions. */
  disagree(endpoint: string): void {
    this.#agreed.delete(endpoint);
  }

  forget(endpoint: string): void {
    this.disagree(endpoint);
    this.#messenger.forget(endpoint);
  }

  #versionFor(endpoint: string, { type }: Message): SpokenMajor {
    const agreed = this.#agreed.get(endpoint);
    const own = this.#versions.find(({ major }) => major === agreed?.major) ?? this.#versions[0];
    // What introduces this rank carries its own minor: that is how the other side learns it.
    return type === 'HELLO' || type === 'HELLO_ACK' ? own : (agreed ?? own);
  }

  #dispatch(message: Message, version: SpokenMajor, leave: (frame: Uint8Array) => void): KvTransceiverError | null {
    let frame: Uint8Array;
    try {
      frame = this.#encode(message, version);
    } catch (error) {
      if (!(error instanceof KvTransceiverError)) throw error;
      this.#counters.add(`unsendable:${message.type}`);
      return error;
    }
    leave(frame);
    return null;
  }

  #encode(message: Message, { major, minor }: SpokenMajor): Uint8Array {
    return encodeFrame(message, { incarnation: this.#incarnation, major, minor });
  }
}
