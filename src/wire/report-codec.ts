import type { BodyCodec } from './body-codec.js';
import { MAX_CODE_BYTES, MAX_ORDINAL, MAX_TEXT_BYTES } from './limits.js';
import {
  type ReportAck,
  type SliceResult,
  WriterOutcome,
  type WriterOutcomeName,
  type WriterReport,
} from './messages.js';
import { wireError } from './wire-reason.js';

const OUTCOME_NAMES = new Map<number, WriterOutcomeName>(
  (Object.keys(WriterOutcome) as WriterOutcomeName[]).map((name) => [WriterOutcome[name], name]),
);

/**
 * SLICE_RESULT
 *
 *   0        8          12       13   14       22           26         30
 *   +--------+----------+--------+----+--------+------------+----------+
 *   | ticket | sliceSeq | isLast | ok | bytes  | beginBlock | endBlock |
 *   |  u64   |   u32    |   u8   | u8 |  u64   |    u32     |   u32    |
 *   +--------+----------+--------+----+--------+------------+----------+
 */
export const sliceResultCodec: BodyCodec<SliceResult> = {
  write(writer, message) {
    writer.u64(message.ticket, 'ticket');
    writer.u32(message.sliceSeq, 'sliceSeq');
    writer.bool(message.isLast);
    writer.bool(message.ok);
    writer.u64(message.bytes, 'bytes');
    writer.u32(message.beginBlock, 'beginBlock');
    writer.u32(message.endBlock, 'endBlock');
  },
  read(reader, rid) {
    const message: SliceResult = {
      type: 'SLICE_RESULT',
      rid,
      ticket: reader.u64('ticket'),
      sliceSeq: reader.u32('sliceSeq'),
      isLast: reader.bool('isLast'),
      ok: reader.bool('ok'),
      bytes: reader.u64('bytes'),
      beginBlock: reader.u32('beginBlock'),
      endBlock: reader.u32('endBlock'),
    };
    if (message.beginBlock > message.endBlock || message.endBlock > MAX_ORDINAL) {
      throw wireError('bad-value', `[${message.beginBlock}, ${message.endBlock}) is not a range of block ordinals`);
    }
    return message;
  },
};

/**
 * WRITER_REPORT
 *
 *   0        8         9         10       14      22
 *   +--------+---------+---------+--------+-------+-----------+-----------+
 *   | ticket | outcome | drained | slices | bytes | errorCode |  message  |
 *   |  u64   |   u8    |   u8    |  u32   |  u64  | u16+bytes | u16+bytes |
 *   +--------+---------+---------+--------+-------+-----------+-----------+
 */
export const writerReportCodec: BodyCodec<WriterReport> = {
  write(writer, message) {
    writer.u64(message.ticket, 'ticket');
    writer.u8(WriterOutcome[message.outcome], 'outcome');
    writer.bool(message.drained);
    writer.u32(message.slices, 'slices');
    writer.u64(message.bytes, 'bytes');
    writer.string(message.errorCode, MAX_CODE_BYTES, 'errorCode');
    writer.text(message.message, MAX_TEXT_BYTES, 'message');
  },
  read(reader, rid) {
    const ticket = reader.u64('ticket');
    const outcomeNumber = reader.u8('outcome');
    const outcome = OUTCOME_NAMES.get(outcomeNumber);
    if (outcome === undefined) throw wireError('bad-value', `unknown outcome ${outcomeNumber}`);
    return {
      type: 'WRITER_REPORT',
      rid,
      ticket,
      outcome,
      drained: reader.bool('drained'),
      slices: reader.u32('slices'),
      bytes: reader.u64('bytes'),
      errorCode: reader.ascii(MAX_CODE_BYTES, 'errorCode'),
      message: reader.string(MAX_TEXT_BYTES, 'message'),
    };
  },
};

/** REPORT_ACK:  | ticket u64 | drained u8 | */
export const reportAckCodec: BodyCodec<ReportAck> = {
  write(writer, message) {
    writer.u64(message.ticket, 'ticket');
    writer.bool(message.drained);
  },
  read: (reader, rid) => ({
    type: 'REPORT_ACK',
    rid,
    ticket: reader.u64('ticket'),
    drained: reader.bool('drained'),
  }),
};
