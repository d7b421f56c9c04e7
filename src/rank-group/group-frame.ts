import { ByteReader } from '../wire/byte-reader.js';
import { ByteWriter } from '../wire/byte-writer.js';
import { MAX_CODE_BYTES, MAX_ENDPOINT_BYTES, MAX_FRAME_BYTES, MAX_TEXT_BYTES } from '../wire/limits.js';
import { wireError } from '../wire/wire-reason.js';
import type { RankReport } from './rank-report.js';
import { readReport, writeReport } from './report-codec.js';

/** The bytes "KVG1" read as a little-endian u32: not a frame of the transfers' control plane, and never taken for one. */
const MAGIC = 0x3147564b;
const GROUP_MAJOR = 1;
const TYPE_AT = 5;
const NONCE_AT = 8;
const HEADER_BYTES = 24;
/** Ranks of one instance. */
export const MAX_RANKS = 1024;

/** What ranks of one instance say to each other. */
export type GroupMessage =
  /** To rank 0, until it answers. */
  | { readonly type: 'JOIN'; readonly size: number; readonly endpoint: string }
  /** From rank 0: every rank is here. `incarnation` is the joiner's, so that an answer to an earlier process is not taken for this one's. */
  | { readonly type: 'WELCOME'; readonly incarnation: bigint }
  | { readonly type: 'REFUSED'; readonly incarnation: bigint; readonly code: string; readonly text: string }
  | { readonly type: 'REPORT'; readonly report: RankReport }
  /** From rank 0: the reports of all ranks, in rank order. */
  | { readonly type: 'AGREED'; readonly reports: readonly RankReport[] }
  /** From rank 0: some rank waits in the next exchange. */
  | { readonly type: 'AWAITED' }
  | { readonly type: 'PING' }
  | { readonly type: 'PONG' }
  /** The group has ended, and why. */
  | { readonly type: 'BROKEN'; readonly code: string; readonly text: string };

/** A message with its sender. */
export interface GroupFrame {
  readonly rank: number;
  /** One run of one instance. */
  readonly nonce: bigint;
  /** One process. */
  readonly incarnation: bigint;
  readonly message: GroupMessage;
}

const TYPES = ['JOIN', 'WELCOME', 'REFUSED', 'REPORT', 'AGREED', 'AWAITED', 'PING', 'PONG', 'BROKEN'] as const;

/**
 *   0       4       5      6      8       16            24
 *   +-------+-------+------+------+-------+-------------+
 *   | magic | major | type | rank | nonce | incarnation |  body ...
 *   | KVG1  |  u8   |  u8  | u16  |  u64  |     u64     |
 *   +-------+-------+------+------+-------+-------------+
 *
 * All ranks of an instance run one build, so there is no second version to speak: another major is refused.
 */
export function encodeGroupFrame(frame: GroupFrame): Uint8Array {
  const writer = new ByteWriter(256);
  const { message } = frame;
  writer.u32(MAGIC, 'magic');
  writer.u8(GROUP_MAJOR, 'major');
  writer.u8(TYPES.indexOf(message.type), 'type');
  writer.u16(frame.rank, 'rank');
  writer.u64(frame.nonce, 'nonce');
  writer.u64(frame.incarnation, 'incarnation');
  switch (message.type) {
    case 'JOIN':
      writer.u16(message.size, 'size');
      writer.string(message.endpoint, MAX_ENDPOINT_BYTES, 'endpoint');
      break;
    case 'WELCOME':
      writer.u64(message.incarnation, 'incarnation');
      break;
    case 'REFUSED':
      writer.u64(message.incarnation, 'incarnation');
      writeError(writer, message);
      break;
    case 'REPORT':
      writeReport(writer, message.report);
      break;
    case 'AGREED':
      writer.u16(message.reports.length, 'reports');
      for (const report of message.reports) writeReport(writer, report);
      break;
    case 'BROKEN':
      writeError(writer, message);
      break;
    default:
      break;
  }
  return writer.finish();
}

/**
 * Who speaks, as far as that can be told without reading the frame: a rank of this run, one that says it is and wants to be let in, or somebody
 * who does not know what whoever started the ranks told them.
 */
export function speakerOf(bytes: Uint8Array, nonce: bigint): 'rank' | 'joiner' | 'stranger' {
  if (bytes.length < HEADER_BYTES) return 'stranger';
  if (new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(NONCE_AT, true) !== nonce) return 'stranger';
  return TYPES[bytes[TYPE_AT] as number] === 'JOIN' ? 'joiner' : 'rank';
}

/** @throws WireError for anything that is not exactly one frame of this version */
export function decodeGroupFrame(bytes: Uint8Array): GroupFrame {
  if (bytes.length > MAX_FRAME_BYTES) {
    throw wireError('frame-too-large', `${bytes.length} bytes, at most ${MAX_FRAME_BYTES}`);
  }
  const reader = new ByteReader(bytes);
  const magic = reader.u32('magic');
  if (magic !== MAGIC)
    throw wireError('bad-magic', `not a frame of a rank group: it starts with 0x${magic.toString(16)}`);
  const major = reader.u8('major');
  if (major !== GROUP_MAJOR) {
    throw wireError(
      'unsupported-major',
      `the rank speaks version ${major}, this build ${GROUP_MAJOR}; run one build on all ranks`,
    );
  }
  const type = TYPES[reader.u8('type')];
  if (type === undefined) throw wireError('unknown-type', 'a message type that no rank sends');
  const rank = reader.u16('rank');
  if (rank >= MAX_RANKS) throw wireError('bad-value', `rank ${rank}; a group has at most ${MAX_RANKS}`);
  const nonce = reader.u64('nonce');
  const incarnation = reader.u64('incarnation');
  const message = readMessage(reader, type);
  if (reader.remaining > 0) throw wireError('trailing-bytes', `${reader.remaining} bytes after a ${type}`);
  return { rank, nonce, incarnation, message };
}

function readMessage(reader: ByteReader, type: GroupMessage['type']): GroupMessage {
  switch (type) {
    case 'JOIN':
      return { type, size: reader.u16('size'), endpoint: reader.endpoint('endpoint') };
    case 'WELCOME':
      return { type, incarnation: reader.u64('incarnation') };
    case 'REFUSED':
      return { type, incarnation: reader.u64('incarnation'), ...readError(reader) };
    case 'REPORT':
      return { type, report: readReport(reader) };
    case 'AGREED': {
      const count = reader.u16('reports');
      if (count > MAX_RANKS) throw wireError('count-over-cap', `${count} reports, at most ${MAX_RANKS}`);
      const reports: RankReport[] = [];
      for (let rank = 0; rank < count; rank++) reports.push(readReport(reader));
      return { type, reports };
    }
    case 'BROKEN':
      return { type, ...readError(reader) };
    default:
      return { type };
  }
}

function writeError(writer: ByteWriter, { code, text }: { readonly code: string; readonly text: string }): void {
  writer.text(code, MAX_CODE_BYTES, 'code');
  writer.text(text, MAX_TEXT_BYTES, 'text');
}

function readError(reader: ByteReader): { readonly code: string; readonly text: string } {
  return { code: reader.ascii(MAX_CODE_BYTES, 'code'), text: reader.string(MAX_TEXT_BYTES, 'text') };
}
