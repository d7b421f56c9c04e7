import type { Clock } from '../clock.js';
import { ERROR_CODES } from '../errors.js';
import type { ErrorFrame } from '../wire/messages.js';
import type { Counters } from './counters.js';
import { LogShare } from './log-share.js';
import type { Peer } from './peer.js';

/** What our own ERROR frames keep to: whoever sends more is no rank of this build. */
const LINE_INTERVAL_MS = 1000;
/** Of a text that some process chose. */
const MAX_LINE_CHARS = 512;
/** What would move a terminal's cursor, or make one line look like two. */
const UNPRINTABLE = /[\p{Cc}\p{Zl}\p{Zp}]+/gu;

/**
 * Role: ERROR frames, by which peers say that they did not understand this rank: each is counted, few are told.
 * Why: nothing else limits how many a peer sends, what is in them, and so how fast it fills a disk.
 */
export class PeerComplaints {
  readonly #clock: Clock;
  readonly #counters: Counters;
  readonly #onWarning: (message: string) => void;
  /** When the next line of a peer may come. */
  readonly #nextAtMs = new WeakMap<Peer, number>();
  readonly #share: LogShare;

  constructor(options: {
    readonly clock: Clock;
    readonly counters: Counters;
    readonly onWarning: (message: string) => void;
  }) {
    this.#clock = options.clock;
    this.#counters = options.counters;
    this.#onWarning = options.onWarning;
    this.#share = new LogShare(options.clock);
  }

  on(peer: Peer, { code, text }: ErrorFrame): void {
    // The peer chooses the text of the code, and counters are never forgotten.
    this.#counters.add(`peer_error:${Object.hasOwn(ERROR_CODES, code) ? code : 'other'}`);
    const now = this.#clock.now();
    const more = now < (this.#nextAtMs.get(peer) ?? Number.NEGATIVE_INFINITY) ? null : this.#share.take();
    if (more === null) {
      this.#counters.add('peer_errors_unlogged');
      return;
    }
    this.#nextAtMs.set(peer, now + LINE_INTERVAL_MS);
    this.#onWarning(`${peer.name} reports ${printable(code)}: ${printable(text)}${more}`);
  }
}

function printable(text: string): string {
  const line = text.replace(UNPRINTABLE, ' ');
  return line.length <= MAX_LINE_CHARS ? line : `${line.slice(0, MAX_LINE_CHARS - 1)}…`;
}
