import { ByteReader } from './byte-reader.js';
import type { ByteWriter } from './byte-writer.js';
import { wireError } from './wire-reason.js';

/** The bytes "KVT1" read as a little-endian u32. */
export const MAGIC = 0x3154564b;
export const WIRE_MAJOR = 1;
export const WIRE_MINOR = 0;
/** Majors this build speaks: N and N-1, where N-1 exists. */
export const SUPPORTED_MAJORS: readonly number[] = [WIRE_MAJOR];

/** One major, and the newest minor of it that is spoken. */
export interface SpokenMajor {
  readonly major: number;
  readonly minor: number;
}

/** What one rank speaks, lowest major first. A parameter of everything that reads or writes frames, so that tests can be of another version. */
export type WireVersions = readonly [SpokenMajor, ...SpokenMajor[]];

export const WIRE_VERSIONS: WireVersions = [{ major: WIRE_MAJOR, minor: WIRE_MINOR }];
export const HEADER_BYTES = 24;

const FLAG_MUST_UNDERSTAND = 0x01;
const FLAG_COMPUTED = 0x02;

/**
 *   0       4       5       6      7       8             16     24
 *   +-------+-------+-------+------+-------+-------------+------+
 *   | magic | major | minor | type | flags | incarnation | rid  |  body ...
 *   | KVT1  |  u8   |  u8   |  u8  |  u8   |     u64     | u64  |
 *   +-------+-------+-------+------+-------+-------------+------+
 *
 * flags: bit 0 = must understand: a receiver that does not know the type refuses the frame instead of skipping it. Bit 1, of REQUEST_DATA: the
 * prompt is computed. Other bits are reserved and ignored. `rid` is 0 in messages that concern no request.
 */
export interface FrameHeader {
  readonly major: number;
  readonly minor: number;
  readonly typeNumber: number;
  readonly mustUnderstand: boolean;
  readonly isComputed: boolean;
  readonly incarnation: bigint;
  readonly rid: bigint;
}

export function writeHeader(writer: ByteWriter, header: FrameHeader): void {
  writer.u32(MAGIC, 'magic');
  writer.u8(header.major, 'major');
  writer.u8(header.minor, 'minor');
  writer.u8(header.typeNumber, 'type');
  writer.u8((header.mustUnderstand ? FLAG_MUST_UNDERSTAND : 0) | (header.isComputed ? FLAG_COMPUTED : 0), 'flags');
  writer.u64(header.incarnation, 'incarnation');
  writer.u64(header.rid, 'rid');
}

/** @throws WireError truncated, bad-magic, unsupported-major */
export function readHeader(reader: ByteReader, versions: WireVersions = WIRE_VERSIONS): FrameHeader {
  readMagic(reader);
  const header = readFields(reader);
  if (!versions.some(({ major }) => major === header.major)) {
    throw wireError(
      'unsupported-major',
      `peer speaks wire major ${header.major}, this build ${majorsOf(versions).join(', ')}; upgrade the older side`,
    );
  }
  return header;
}

export function majorsOf(versions: WireVersions): number[] {
  return versions.map(({ major }) => major);
}

/**
 * What can be said about a frame that was refused, for the counter, the log and an ERROR answer.
 * @returns null when not even the header is ours
 */
export function peekHeader(bytes: Uint8Array): FrameHeader | null {
  if (bytes.length < HEADER_BYTES) return null;
  const reader = new ByteReader(bytes);
  return reader.u32('magic') === MAGIC ? readFields(reader) : null;
}

/** Highest major both sides speak, or null. */
export function negotiateMajor(
  peerMajors: readonly number[],
  ownMajors: readonly number[] = SUPPORTED_MAJORS,
): number | null {
  const common = ownMajors.filter((major) => peerMajors.includes(major));
  return common.length === 0 ? null : Math.max(...common);
}

/**
 * What is spoken with a peer from now on. Its minor is known for the major that its HELLO travelled in; of a higher one it speaks at least the
 * first.
 * @param heard major and minor in the header of the HELLO or HELLO_ACK
 * @param peerMajors those it lists; null when its message lists none
 */
export function negotiate(
  heard: SpokenMajor,
  peerMajors: readonly number[] | null,
  versions: WireVersions,
): SpokenMajor | null {
  const major = peerMajors === null ? heard.major : negotiateMajor(peerMajors, majorsOf(versions));
  const own = versions.find((version) => version.major === major);
  if (own === undefined) return null;
  return { major: own.major, minor: own.major === heard.major ? negotiateMinor(heard.minor, own.minor) : 0 };
}

/** The minor in use with a peer: the smaller of the two. */
export function negotiateMinor(peerMinor: number, ownMinor = WIRE_MINOR): number {
  return Math.min(ownMinor, peerMinor);
}

function readMagic(reader: ByteReader): void {
  const magic = reader.u32('magic');
  if (magic !== MAGIC) throw wireError('bad-magic', `not a control frame: it starts with 0x${magic.toString(16)}`);
}

function readFields(reader: ByteReader): FrameHeader {
  const major = reader.u8('major');
  const minor = reader.u8('minor');
  const typeNumber = reader.u8('type');
  const flags = reader.u8('flags');
  const incarnation = reader.u64('incarnation');
  const rid = reader.u64('rid');
  return {
    major,
    minor,
    typeNumber,
    mustUnderstand: (flags & FLAG_MUST_UNDERSTAND) !== 0,
    isComputed: (flags & FLAG_COMPUTED) !== 0,
    incarnation,
    rid,
  };
}
