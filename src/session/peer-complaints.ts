import type { Clock } from '../clock.js';
import { ERROR_CODES } from '../errors.js';
import type { ErrorFrame } from '../wire/messages.js';
import type { Counters } from './counters.js';
import type { Peer } from './peer.js';

/** What our own ERROR frames keep to: whoever sends more is no rank of this build. */
const LINE_INTERVAL_MS = 1000;
/** Lines in that time of all peers together: each may be thousands of processes in turn. */
const MAX_LINES = 16;
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
  readonly #told = new WeakMap<Peer, { nextAtMs: number; unlogged: number }>();
  #windowEndMs = Number.NEGATIVE_INFINITY;
  #linesInWindow = 0;

  constructor(options: {
    readonly clock: Clock;
    readonly counters: Counters;
    readonly onWarning: (message: string) => void;
  }) {
    this.#clock = options.clock;
    this.#counters = options.counters;
    this.#onWarning = options.onWarning;
  }

  on(peer: Peer, { code, text }: ErrorFrame): void {
    // The peer chooses the text of the code, and counters are never forgotten.
    this.#counters.add(`peer_error:${Object.hasOwn(ERROR_CODES, code) ? code : 'other'}`);
    const now = this.#clock.now();
    const told = this.#told.get(peer) ?? { nextAtMs: Number.NEGATIVE_INFINITY, unlogged: 0 };
    this.#told.set(peer, told);
    if (now < told.nextAtMs || !this.#hasLine(now)) {
      told.unlogged += 1;
      this.#counters.add('peer_errors_unlogged');
      return;
    }
    const more = told.unlogged === 0 ? '' : ` (and ${told.unlogged} more since the last line)`;
    this.#onWarning(`${peer.name} reports ${printable(code)}: ${printable(text)}${more}`);
    told.nextAtMs = now + LINE_INTERVAL_MS;
    told.unlogged = 0;
  }

  #hasLine(now: number): boolean {
    if (now >= this.#windowEndMs) {
      this.#windowEndMs = now + LINE_INTERVAL_MS;
      this.#linesInWindow = 0;
    }
    this.#linesInWindow += 1;
    return this.#linesInWindow <= MAX_LINES;
  }
}

function printable(text: string): string {
  const line = text.replace(UNPRINTABLE, ' ');
  return line.length <= MAX_LINE_CHARS ? line : `${line.slice(0, MAX_LINE_CHARS - 1)}…`;
}
