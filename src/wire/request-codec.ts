import { ArgumentError } from '../errors.js';
import { type BlockRun, HOLE } from '../geometry/block-run.js';
import { type BodyCodec, writeEndpoint } from './body-codec.js';
import type { ByteReader } from './byte-reader.js';
import type { ByteWriter } from './byte-writer.js';
import { MAX_LAYER_GROUPS, MAX_ORDINAL, MAX_TRACEPARENT_BYTES } from './limits.js';
import type { Accepted, RequestData, StatusQuery } from './messages.js';
import { wireError } from './wire-reason.js';

/**
 * REQUEST_DATA
 *
 *   0        8            12          16             20        24
 *   +--------+------------+-----------+--------------+---------+
 *   | ticket | timeLeftMs | promptLen | cachedTokens | auxSlot |
 *   |  u64   |    u32     |    u32    |     u32      |   i32   |
 *   +--------+--+---------+--+--------+---+----------+---------+
 *   | endpoint  | traceparent | groupCount|  groupCount runs   |
 *   | u16+bytes |  u16+bytes  |    u16    |                    |
 *   +-----------+-------------+-----------+--------------------+
 *
 *   run:  | begin u32 | count u32 | count slots i32, HOLE = -1 |
 */
export const requestDataCodec: BodyCodec<RequestData> = {
  write(writer, message) {
    writer.u64(message.ticket, 'ticket');
    writer.u32(wholeMs(message.timeLeftMs), 'timeLeftMs');
    writer.u32(message.promptLen, 'promptLen');
    writer.u32(message.cachedTokens, 'cachedTokens');
    writer.i32(message.auxSlot, 'auxSlot');
    writeEndpoint(writer, message.endpoint);
    writer.string(message.traceparent, MAX_TRACEPARENT_BYTES, 'traceparent');
    if (message.runs.length > MAX_LAYER_GROUPS) {
      throw new ArgumentError(`a request has at most ${MAX_LAYER_GROUPS} layer groups, got ${message.runs.length}`);
    }
    writer.u16(message.runs.length, 'groupCount');
    for (const run of message.runs) writeRun(writer, run);
  },
  read(reader, rid, isComputed) {
    const ticket = reader.u64('ticket');
    const timeLeftMs = reader.u32('timeLeftMs');
    const promptLen = reader.u32('promptLen');
    const cachedTokens = reader.u32('cachedTokens');
    const auxSlot = reader.i32('auxSlot');
    if (auxSlot < -1) throw wireError('bad-value', `auxSlot must be -1 or a slot, got ${auxSlot}`);
    const endpoint = reader.endpoint('endpoint');
    const traceparent = reader.ascii(MAX_TRACEPARENT_BYTES, 'traceparent');
    const groupCount = reader.u16('groupCount');
    if (groupCount > MAX_LAYER_GROUPS) {
      throw wireError('count-over-cap', `${groupCount} layer groups; at most ${MAX_LAYER_GROUPS}`);
    }
    const runs: BlockRun[] = [];
    for (let group = 0; group < groupCount; group++) runs.push(readRun(reader));
    const type = 'REQUEST_DATA';
    return isComputed
      ? { type, rid, ticket, timeLeftMs, promptLen, cachedTokens, auxSlot, endpoint, traceparent, runs, isComputed }
      : { type, rid, ticket, timeLeftMs, promptLen, cachedTokens, auxSlot, endpoint, traceparent, runs };
  },
};

/** ACCEPTED:  | ticket u64 | */
export const acceptedCodec: BodyCodec<Accepted> = {
  write: (writer, message) => writer.u64(message.ticket, 'ticket'),
  read: (reader, rid) => ({ type: 'ACCEPTED', rid, ticket: reader.u64('ticket') }),
};

/** STATUS:  | ticket u64 | endpoint u16+bytes | */
export const statusCodec: BodyCodec<StatusQuery> = {
  write(writer, message) {
    writer.u64(message.ticket, 'ticket');
    writeEndpoint(writer, message.endpoint);
  },
  read: (reader, rid) => ({
    type: 'STATUS',
    rid,
    ticket: reader.u64('ticket'),
    endpoint: reader.endpoint('endpoint'),
  }),
};

function writeRun(writer: ByteWriter, run: BlockRun): void {
  writer.u32(run.begin, 'begin');
  writer.u32(run.slots.length, 'count');
  const problem = runProblem(run);
  if (problem !== null) throw new ArgumentError(problem);
  writer.i32Array(run.slots);
}

function readRun(reader: ByteReader): BlockRun {
  const begin = reader.u32('begin');
  const count = reader.u32('count');
  const run = { begin, slots: reader.i32Array(count, 'slots') };
  const problem = runProblem(run);
  if (problem !== null) throw wireError('bad-value', problem);
  return run;
}

function runProblem({ begin, slots }: BlockRun): string | null {
  if (begin + slots.length > MAX_ORDINAL) return `a run may not reach beyond ordinal ${MAX_ORDINAL}`;
  for (let i = 0; i < slots.length; i++) {
    const slot = slots[i] as number;
    if (slot < HOLE) return `slot of ordinal ${begin + i} must be a slot or HOLE, got ${slot}`;
  }
  return null;
}

/** A remaining time may be fractional or just over; the peer gets whole milliseconds and never a promise longer than ours. */
function wholeMs(timeMs: number): number {
  if (Number.isNaN(timeMs)) throw new ArgumentError('timeLeftMs must be a number, got NaN');
  return Math.min(Math.max(Math.floor(timeMs), 0), 0xffff_ffff);
}
