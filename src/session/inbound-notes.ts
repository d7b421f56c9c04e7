import type { Frame } from '../wire/index.js';
import type { WriterReport } from '../wire/messages.js';
import type { Counters } from './counters.js';
import type { Peer } from './peer.js';

/** Notes that are read ahead at once; more are read when they come. */
const MAX_AHEAD = 64;

export interface InboundNotesOptions {
  readonly counters: Counters;
  /** A frame's content; null for one that is none, which is counted. */
  readonly decode: (bytes: Uint8Array) => Frame | null;
  /** The peer that is watched under this name, if it is one still. */
  readonly speaker: (peerId: string) => Peer | null;
  readonly onReport: (peer: Peer, report: WriterReport) => void;
  /** This will be its report, unless something comes between. */
  readonly onReportSoon: (peer: Peer, report: WriterReport) => void;
}

/**
 * Role: reads what peers' agents say by themselves (`ArmedNote`): final reports that come ahead of themselves.
 * Trust: the agent says whose note it is, as the messenger says whose connection a frame came by; the incarnation in it must be that peer's, and
 *   ticket, writer and sums are checked as they are in a frame. A note can say nothing but a report, so that it can never do what a frame cannot.
 * Read ahead: what an agent means to say is decoded when it announces it, and is nothing but bytes and their meaning until it has said just that.
 * Ordering: none. The same report comes as a frame too, before or after.
 */
export class InboundNotes {
  readonly #o: InboundNotesOptions;
  /** The oldest first. */
  readonly #ahead: { readonly bytes: Uint8Array; readonly frame: Frame }[] = [];

  constructor(options: InboundNotesOptions) {
    this.#o = options;
  }

  /** @param bytes of a note that may follow; kept until then, and not changed by anybody */
  readAhead(peerId: string, bytes: Uint8Array): void {
    const { speaker, decode, onReportSoon } = this.#o;
    const peer = speaker(peerId);
    const frame = peer === null ? null : decode(bytes);
    if (peer === null || frame === null) return;
    this.#ahead.push({ bytes, frame });
    if (this.#ahead.length > MAX_AHEAD) this.#ahead.shift();
    if (frame.incarnation === peer.incarnation && frame.message.type === 'WRITER_REPORT')
      onReportSoon(peer, frame.message);
  }

  take(peerId: string, bytes: Uint8Array): void {
    const { counters, speaker, onReport } = this.#o;
    const peer = speaker(peerId);
    if (peer === null) {
      counters.add('notes_refused:peer');
      return;
    }
    const frame = this.#read(bytes);
    if (frame === null) counters.add('notes_refused:frame');
    else if (frame.incarnation !== peer.incarnation) counters.add('notes_refused:incarnation');
    else if (frame.message.type !== 'WRITER_REPORT') counters.add('notes_refused:type');
    else {
      counters.add('notes_received');
      onReport(peer, frame.message);
    }
  }

  #read(bytes: Uint8Array): Frame | null {
    const at = this.#ahead.findLastIndex((known) => Buffer.compare(known.bytes, bytes) === 0);
    return this.#ahead.splice(at, at === -1 ? 0 : 1)[0]?.frame ?? this.#o.decode(bytes);
  }
}
