import type { Frame } from '../wire/index.js';
import type { WriterReport } from '../wire/messages.js';
import type { Counters } from './counters.js';
import type { Peer } from './peer.js';

export interface InboundNotesOptions {
  readonly counters: Counters;
  /** A frame's content; null for one that is none, which is counted. */
  readonly decode: (bytes: Uint8Array) => Frame | null;
  /** The peer that is watched under this name, if it is one still. */
  readonly speaker: (peerId: string) => Peer | null;
  readonly onReport: (peer: Peer, report: WriterReport) => void;
}

/**
 * Role: reads what peers' agents say by themselves (`ArmedNote`): final reports that come ahead of themselves.
 * Trust: the agent says whose note it is, as the messenger says whose connection a frame came by; the incarnation in it must be that peer's, and
 *   ticket, writer and sums are checked as they are in a frame. A note can say nothing but a report, so that it can never do what a frame cannot.
 * Ordering: none. The same report comes as a frame too, before or after.
 */
export class InboundNotes {
  readonly #o: InboundNotesOptions;

  constructor(options: InboundNotesOptions) {
    this.#o = options;
  }

  take(peerId: string, bytes: Uint8Array): void {
    const { counters, decode, speaker, onReport } = this.#o;
    const peer = speaker(peerId);
    if (peer === null) {
      counters.add('notes_refused:peer');
      return;
    }
    const frame = decode(bytes);
    if (frame === null) counters.add('notes_refused:frame');
    else if (frame.incarnation !== peer.incarnation) counters.add('notes_refused:incarnation');
    else if (frame.message.type !== 'WRITER_REPORT') counters.add('notes_refused:type');
    else {
      counters.add('notes_received');
      onReport(peer, frame.message);
    }
  }
}
