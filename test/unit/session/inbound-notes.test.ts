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

function doors(): {
  readonly notes: InboundNotes;
  readonly reports: WriterReport[];
  readonly counters: Counters;
  readonly decoded: Uint8Array[];
  readonly soon: WriterReport[];
} {
  const counters = new Counters();
  const reports: WriterReport[] = [];
  const decoded: Uint8Array[] = [];
  const soon: WriterReport[] = [];
  const notes = new InboundNotes({
    counters,
    decode: (bytes) => {
      decoded.push(bytes);
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
    onReportSoon: (peer, report) => {
      expect(peer).toBe(PEER);
      soon.push(report);
    },
  });
  return { notes, reports, counters, decoded, soon };
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

describe('a note that was announced', () => {
  const other: WriterReport = { ...REPORT, ticket: 10n };

  it('is read once, ahead, and changes nothing until it is said', () => {
    const { notes, reports, counters, decoded, soon } = doors();
    notes.readAhead('known', frame(REPORT));
    expect(decoded).toHaveLength(1);
    expect(soon).toEqual([REPORT]);
    expect(reports).toEqual([]);
    expect(counters.snapshot()).toEqual({});
    notes.take('known', frame(REPORT));
    expect(decoded).toHaveLength(1);
    expect(reports).toEqual([REPORT]);
    expect(counters.snapshot()).toEqual({ notes_received: 1 });
    notes.take('known', frame(REPORT));
    expect(decoded).toHaveLength(2);
    expect(reports).toEqual([REPORT, REPORT]);
  });

  it('is what is said, not what was announced', () => {
    const { notes, reports, decoded } = doors();
    notes.readAhead('known', frame(REPORT));
    notes.take('known', frame(other));
    expect(reports).toEqual([other]);
    expect(decoded).toHaveLength(2);
  });

  it('may come in any order with others', () => {
    const { notes, reports, decoded } = doors();
    for (const report of [REPORT, other]) notes.readAhead('known', frame(report));
    for (const report of [other, REPORT]) notes.take('known', frame(report));
    expect(reports).toEqual([other, REPORT]);
    expect(decoded).toHaveLength(2);
  });

  it.each([
    ['peer', 'another', frame(REPORT)],
    ['frame', 'known', new Uint8Array([1, 2, 3])],
    ['incarnation', 'known', frame(REPORT, 8n)],
    ['type', 'known', frame({ type: 'REPORT_ACK', rid: 5n, ticket: 9n, drained: true })],
  ])('is refused (%s) as any other', (reason, from, bytes) => {
    const { notes, reports, counters, soon } = doors();
    notes.readAhead(from, bytes);
    expect(soon).toEqual([]);
    expect(counters.snapshot()).toEqual({});
    notes.take(from, bytes);
    expect(reports).toEqual([]);
    expect(counters.snapshot()).toEqual({ [`notes_refused:${reason}`]: 1 });
  });

  it('is decoded for nobody who is not watched', () => {
    const { notes, decoded } = doors();
    notes.readAhead('another', frame(REPORT));
    expect(decoded).toEqual([]);
  });

  it('is forgotten behind many others', () => {
    const { notes, decoded } = doors();
    for (let ticket = 0n; ticket <= 64n; ticket++) notes.readAhead('known', frame({ ...REPORT, ticket }));
    notes.take('known', frame({ ...REPORT, ticket: 1n }));
    expect(decoded).toHaveLength(65);
    notes.take('known', frame({ ...REPORT, ticket: 0n }));
    expect(decoded).toHaveLength(66);
  });
});
