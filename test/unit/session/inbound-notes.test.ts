import { describe, expect, it } from 'vitest';
import { Counters } from '../../../src/session/counters.js';
import { InboundNotes } from '../../../src/session/inbound-notes.js';
import type { Peer } from '../../../src/session/peer.js';
import { decodeFrame, encodeFrame } from '../../../src/wire/index.js';
import type { Message, WriterReport } from '../../../src/wire/messages.js';

const INCARNATION = 7n;
const PEER = { incarnation: INCARNATION, endpoint: 'tcp://127.0.0.1:1' } as unknown as Peer;
const REPORT: WriterReport = {
  type: 'WRITER_REPORT',
  rid: 5n,
  ticket: 9n,
  outcome: 'DONE',
  slices: 2,
  bytes: 4096n,
  drained: true,
  errorCode: '',
  message: '',
};

function frame(message: Message, incarnation = INCARNATION): Uint8Array {
  return encodeFrame(message, { incarnation, major: 1, minor: 0 });
}

function doors(): { readonly notes: InboundNotes; readonly reports: WriterReport[]; readonly counters: Counters } {
  const counters = new Counters();
  const reports: WriterReport[] = [];
  const notes = new InboundNotes({
    counters,
    decode: (bytes) => {
      try {
        return decodeFrame(bytes);
      } catch {
        return null;
      }
    },
    speaker: (peerId) => (peerId === 'known' ? PEER : null),
    onReport: (peer, report) => {
      expect(peer).toBe(PEER);
      reports.push(report);
    },
  });
  return { notes, reports, counters };
}

describe('a note', () => {
  it('is the report of the peer whose agent said it', () => {
    const { notes, reports, counters } = doors();
    notes.take('known', frame(REPORT));
    expect(reports).toEqual([REPORT]);
    expect(counters.snapshot()).toEqual({ notes_received: 1 });
  });

  it.each([
    ['peer', 'another', frame(REPORT)],
    ['frame', 'known', frame(REPORT).subarray(0, 20)],
    ['frame', 'known', new Uint8Array([1, 2, 3])],
    ['incarnation', 'known', frame(REPORT, 8n)],
    ['type', 'known', frame({ type: 'REPORT_ACK', rid: 5n, ticket: 9n, drained: true })],
  ])('that is none (%s) is counted and changes nothing', (reason, from, bytes) => {
    const { notes, reports, counters } = doors();
    notes.take(from, bytes);
    expect(reports).toEqual([]);
    expect(counters.snapshot()).toEqual({ [`notes_refused:${reason}`]: 1 });
  });
});
