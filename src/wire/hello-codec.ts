import { decode, Encoder } from '@msgpack/msgpack';
import { ArgumentError, WireError } from '../errors.js';
import type { Finding } from '../mapping/compatibility.js';
import type { RankInfo } from '../mapping/rank-info.js';
import type { BodyCodec } from './body-codec.js';
import type { ByteReader } from './byte-reader.js';
import type { ByteWriter } from './byte-writer.js';
import { asInteger, DecodedMap } from './decoded-map.js';
import { MAX_FINDINGS, MAX_MAJORS, MAX_NAME_BYTES, MAX_TEXT_BYTES } from './limits.js';
import type { Hello, HelloAck } from './messages.js';
import { checkMsgpackShape } from './msgpack-shape.js';
import { rankInfoFields, readRankInfo } from './rank-info-codec.js';
import { RankInfoMemory } from './rank-info-memory.js';
import { wireError } from './wire-reason.js';

/** A message is written in one go, so that all of them share one buffer. */
const encoder = new Encoder({ useBigInt64: true });

/** HELLO:  msgpack { nonce, supportedMajors, rankInfo, and probe: true in a probe } */
export const helloCodec: BodyCodec<Hello> = {
  write(writer, message) {
    const { nonce, supportedMajors, rankInfo, probe } = message;
    writeMap(writer, {
      nonce,
      supportedMajors: [...supportedMajors],
      rankInfo: () => encodeRankInfo(rankInfo),
      ...(probe === true ? { probe } : {}),
    });
  },
  read(reader) {
    const { map, rankInfo } = readMap(reader, 'hello');
    const nonce = map.u64('nonce');
    return answerable(nonce, () => ({
      type: 'HELLO',
      nonce,
      supportedMajors: map.list('supportedMajors', MAX_MAJORS, (item, path) => asInteger(item, 0, 255, path)),
      rankInfo: rankInfo(),
      ...(map.flag('probe') ? { probe: true } : {}),
    }));
  },
};

/** HELLO_ACK:  msgpack { nonce, endpoint, accepted, and rankInfo | message, findings } */
export const helloAckCodec: BodyCodec<HelloAck> = {
  write(writer, { nonce, endpoint, answer }) {
    writeMap(
      writer,
      answer.accepted
        ? { nonce, endpoint, accepted: true, rankInfo: () => encodeRankInfo(answer.rankInfo) }
        : {
            nonce,
            endpoint,
            accepted: false,
            message: cut(answer.message),
            findings: answer.findings.slice(0, MAX_FINDINGS).map(findingFields),
          },
    );
  },
  read(reader) {
    const { map, rankInfo } = readMap(reader, 'helloAck');
    const nonce = map.u64('nonce');
    return answerable(nonce, () => ({
      type: 'HELLO_ACK',
      nonce,
      endpoint: map.endpoint('endpoint'),
      answer: map.boolean('accepted')
        ? { accepted: true, rankInfo: rankInfo() }
        : {
            accepted: false,
            message: map.string('message', MAX_TEXT_BYTES),
            findings: map.list('findings', MAX_FINDINGS, readFinding),
          },
    }));
  },
};

/** What else is wrong with the message is told together with its nonce: its sender waits for an answer, or for this one. */
function answerable<M>(nonce: bigint, read: () => M): M {
  try {
    return read();
  } catch (error) {
    if (!(error instanceof WireError)) throw error;
    throw new WireError(error.reason, error.message, { cause: error.cause, details: { nonce } });
  }
}

/** Where what is published lies encoded: a rank says the same to every peer, and again in every repeat. */
const encodedInfos = new WeakMap<RankInfo, Uint8Array>();

function encodeRankInfo(info: RankInfo): Uint8Array {
  let bytes = encodedInfos.get(info);
  if (bytes === undefined) {
    bytes = encoder.encode(rankInfoFields(info));
    encodedInfos.set(info, bytes);
  }
  return bytes;
}

/** The head of a msgpack map of up to 15 entries, which follow. */
const FIXMAP = 0x80;

/** @param fields a function gives the msgpack of its value */
function writeMap(writer: ByteWriter, fields: Readonly<Record<string, unknown>>): void {
  try {
    const entries = Object.entries(fields);
    writer.u8(FIXMAP | entries.length, 'fields');
    for (const [name, value] of entries) {
      writer.raw(encoder.encodeSharedRef(name));
      writer.raw(typeof value === 'function' ? (value as () => Uint8Array)() : encoder.encodeSharedRef(value));
    }
  } catch (cause) {
    if (cause instanceof RangeError || cause instanceof TypeError) {
      throw new ArgumentError(`HELLO cannot be encoded: ${cause.message}`, { cause });
    }
    throw cause;
  }
}

interface HelloMap {
  readonly map: DecodedMap;
  readonly rankInfo: () => RankInfo;
}

const memory = new RankInfoMemory();

/** A rank info that was read before is not read again. It is decoded by itself, so that it is its own bytes that it is known by. */
function readMap(reader: ByteReader, path: string): HelloMap {
  const body = reader.rest();
  const place = placeOfRankInfo(body, checkMsgpackShape(body));
  if (place === null) {
    const map = decodedMap(body, path);
    return { map, rankInfo: () => readRankInfo(map.map('rankInfo')) };
  }
  const map = decodedMap(withNil(body, place), path);
  const bytes = body.subarray(place.begin, place.end);
  const known = memory.find(bytes);
  if (known !== null) return { map, rankInfo: () => known };
  const value = decoded(bytes, path);
  return {
    map,
    rankInfo: () => {
      const info = readRankInfo(new DecodedMap(value, map.pathOf('rankInfo')));
      memory.keep(bytes, info);
      return info;
    },
  };
}

function decodedMap(body: Uint8Array, path: string): DecodedMap {
  return new DecodedMap(decoded(body, path), path);
}

function decoded(bytes: Uint8Array, path: string): unknown {
  try {
    return decode(bytes, { useBigInt64: true });
  } catch (cause) {
    throw wireError('bad-msgpack', `${path} is not a msgpack map that can be read`, cause);
  }
}

interface Range {
  readonly begin: number;
  readonly end: number;
}

const RANK_INFO_KEY = encoder.encode('rankInfo');
/** Heads of an array of up to 15 items, which this is not. */
const FIXMAP_END = 0x90;

/** Where the value of `rankInfo` lies in a map that has one, written as this codec does; null: nothing is known of it. */
function placeOfRankInfo(body: Uint8Array, begins: readonly number[]): Range | null {
  const head = body[0] ?? 0;
  if (head < FIXMAP || head >= FIXMAP_END) return null;
  let place: Range | null = null;
  for (let key = 0; key < begins.length; key += 2) {
    const begin = begins[key + 1] as number;
    if (!isRankInfoKey(body, begins[key] as number, begin)) continue;
    // Which of two counts is for the decoder to say.
    if (place !== null) return null;
    place = { begin, end: begins[key + 2] ?? body.length };
  }
  return place;
}

function isRankInfoKey(body: Uint8Array, begin: number, end: number): boolean {
  return end - begin === RANK_INFO_KEY.length && RANK_INFO_KEY.every((byte, index) => body[begin + index] === byte);
}

const NIL = 0xc0;

function withNil(body: Uint8Array, { begin, end }: Range): Uint8Array {
  const rest = new Uint8Array(body.length - (end - begin) + 1);
  rest.set(body.subarray(0, begin));
  rest[begin] = NIL;
  rest.set(body.subarray(end), begin + 1);
  return rest;
}

function readFinding(item: unknown, path: string): Finding {
  const map = new DecodedMap(item, path);
  return {
    field: map.string('field', MAX_NAME_BYTES),
    a: map.string('a', MAX_TEXT_BYTES),
    b: map.string('b', MAX_TEXT_BYTES),
    verdict: map.string('verdict', MAX_TEXT_BYTES),
    whichSideToChange: map.string('whichSideToChange', MAX_NAME_BYTES),
  };
}

function findingFields(finding: Finding): Record<string, unknown> {
  return {
    field: cut(finding.field, MAX_NAME_BYTES),
    a: cut(finding.a),
    b: cut(finding.b),
    verdict: cut(finding.verdict),
    whichSideToChange: cut(finding.whichSideToChange, MAX_NAME_BYTES),
  };
}

/** A refusal must reach the peer however long its texts are. */
function cut(text: string, maxBytes = MAX_TEXT_BYTES): string {
  // Of a UTF-16 unit come three bytes at most.
  if (text.length * 3 <= maxBytes) return text;
  const room = new Uint8Array(maxBytes);
  const { read } = new TextEncoder().encodeInto(text, room);
  return text.slice(0, read);
}
