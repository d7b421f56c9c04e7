import type { Clock } from '../clock.js';
import { CompatibilityError, type KvTransceiverError, ProtocolError, type WireError } from '../errors.js';
import type { Finding } from '../mapping/index.js';
import type { FrameOrigin } from '../wire/index.js';
import { MessageType } from '../wire/messages.js';
import { BoundedMap } from './bounded-map.js';
import { clipText } from './clip-text.js';
import type { ControlChannel } from './control-channel.js';
import type { Counters } from './counters.js';
import type { Greetings } from './greetings.js';
import type { HelloAnswers } from './hello-answers.js';
import type { Peer } from './peer.js';

/** At most one ERROR frame per peer, or per connection of a stranger, in this time, so that two confused ranks do not flood each other. */
const ERROR_INTERVAL_MS = 1000;
/** Senders whose last ERROR is remembered. */
const REMEMBERED_SENDERS = 4096;
/** The endpoint that this rank greets has answered with something that is no answer. */
export interface RefusedGreeting {
  readonly endpoint: string;
  readonly error: KvTransceiverError;
}

/**
 * Role: what is said about frames that cannot be read: never silence, never more than was asked.
 * Ordering: answers go on the connection of the frame. What comes by a connection of ours is never answered: two builds that share no version
 *   would send each other errors for ever.
 */
export class BadFrames {
  readonly #channel: ControlChannel;
  readonly #clock: Clock;
  readonly #counters: Counters;
  readonly #greetings: Greetings;
  readonly #answers: HelloAnswers;
  readonly #lastErrorMs = new BoundedMap<string, number>(REMEMBERED_SENDERS);

  constructor(options: {
    readonly channel: ControlChannel;
    readonly clock: Clock;
    readonly counters: Counters;
    readonly greetings: Greetings;
    readonly answers: HelloAnswers;
  }) {
    this.#channel = options.channel;
    this.#clock = options.clock;
    this.#counters = options.counters;
    this.#greetings = options.greetings;
    this.#answers = options.answers;
  }

  /**
   * @param peer its sender, null for a stranger
   * @returns the greeting that it ends
   */
  on(error: WireError, origin: FrameOrigin, peer: Peer | null): RefusedGreeting | null {
    const { typeNumber, nonce } = error.details;
    if (typeNumber === MessageType.HELLO_ACK && typeof nonce === 'bigint') return this.#unreadableAck(nonce, error);
    if (origin.kind === 'dialed') return this.#unreadableAnswer(origin.endpoint, error);
    if (typeNumber === MessageType.HELLO && typeof nonce === 'bigint') {
      const message = `this HELLO cannot be believed: ${error.message}`;
      this.#answers.refuse({ nonce, origin, major: null }, message, [findingOf(error)]);
    } else if (typeNumber !== MessageType.ERROR) this.#sayError(error, origin, peer);
    return null;
  }

  /** It accepted, but what it publishes of itself is not possible. */
  #unreadableAck(nonce: bigint, error: WireError): RefusedGreeting | null {
    const endpoint = this.#greetings.endpointOf(nonce);
    if (endpoint === null) return null;
    this.#counters.add('hello_ack_refused');
    const details = { findings: [findingOf(error)] };
    return { endpoint, error: new CompatibilityError(`${endpoint}: ${error.message}`, { cause: error, details }) };
  }

  /** Each of our majors was tried, and none of its answers is of one of them. */
  #unreadableAnswer(endpoint: string, error: WireError): RefusedGreeting | null {
    const greeting = this.#greetings.at(endpoint);
    if (greeting === undefined || error.reason !== 'unsupported-major') return null;
    greeting.unreadable += 1;
    if (greeting.unreadable < this.#channel.majors.length) return null;
    return { endpoint, error: new ProtocolError(`${endpoint}: ${error.message}`, { cause: error }) };
  }

  #sayError(error: WireError, origin: FrameOrigin, peer: Peer | null): void {
    const sender = peer?.endpoint ?? (origin.kind === 'accepted' ? origin.connection : origin.endpoint);
    const { rid, typeNumber } = error.details;
    const now = this.#clock.now();
    const isSoon = now - (this.#lastErrorMs.get(sender) ?? Number.NEGATIVE_INFINITY) < ERROR_INTERVAL_MS;
    // Each HELLO of a version that is not spoken here: its sender tries another one next.
    if (isSoon && !(error.reason === 'unsupported-major' && typeNumber === MessageType.HELLO)) return;
    this.#lastErrorMs.set(sender, now);
    const about = { rid: typeof rid === 'bigint' ? rid : 0n, code: error.code, text: clipText(error.message) };
    if (peer === null) this.#channel.reply(origin, { type: 'ERROR', ...about });
    else this.#channel.send(peer.endpoint, { type: 'ERROR', ...about });
  }
}

function findingOf(error: WireError): Finding {
  return {
    field: error.reason === 'bad-page-table' ? 'pageTable' : 'hello',
    a: clipText(error.message),
    b: '',
    verdict: `refused: ${error.reason}`,
    whichSideToChange: 'the rank that published it',
  };
}
