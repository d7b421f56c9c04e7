import { WireError } from '../errors.js';
import type { BodyCodec } from './body-codec.js';
import { ByteReader } from './byte-reader.js';
import { ByteWriter } from './byte-writer.js';
import { cancelAckCodec, cancelCodec } from './cancel-codec.js';
import {
  peekHeader,
  readHeader,
  WIRE_MAJOR,
  WIRE_MINOR,
  WIRE_VERSIONS,
  type WireVersions,
  writeHeader,
} from './frame-header.js';
import { helloAckCodec, helloCodec } from './hello-codec.js';
import { MAX_FRAME_BYTES } from './limits.js';
import { errorCodec, goodbyeCodec, pingCodec, pongCodec } from './liveness-codec.js';
import { type Frame, type Message, MessageType } from './messages.js';
import { reportAckCodec, sliceResultCodec, writerReportCodec } from './report-codec.js';
import { acceptedCodec, requestDataCodec, statusCodec } from './request-codec.js';
import { wireError } from './wire-reason.js';

type MessageName = Message['type'];
type CodecTable = { readonly [Name in MessageName]: BodyCodec<Extract<Message, { type: Name }>> };

const CODECS: CodecTable = {
  HELLO: helloCodec,
  HELLO_ACK: helloAckCodec,
  REQUEST_DATA: requestDataCodec,
  ACCEPTED: acceptedCodec,
  SLICE_RESULT: sliceResultCodec,
  WRITER_REPORT: writerReportCodec,
  REPORT_ACK: reportAckCodec,
  CANCEL: cancelCodec,
  CANCEL_ACK: cancelAckCodec,
  STATUS: statusCodec,
  PING: pingCodec,
  PONG: pongCodec,
  GOODBYE: goodbyeCodec,
  ERROR: errorCodec,
};

const writer = new ByteWriter(4096);

const NAMES = new Map<number, MessageName>(
  (Object.keys(MessageType) as MessageName[]).map((name) => [MessageType[name], name]),
);

/** Messages whose sender waits for an answer: a peer that does not know them has to say so. */
const MUST_UNDERSTAND: ReadonlySet<MessageName> = new Set([
  'HELLO',
  'REQUEST_DATA',
  'WRITER_REPORT',
  'CANCEL',
  'STATUS',
]);

export interface EncodeOptions {
  /** The sender's incarnation. */
  readonly incarnation: bigint;
  /** The major and minor in use with the receiver; default: this build's. */
  readonly major?: number;
  readonly minor?: number;
}

/**
 * One control frame. The result is a fresh buffer, at most 16 MiB.
 * @throws ArgumentError when a value does not fit its field
 * @throws RequestTooLargeError when the frame would exceed the cap
 */
export function encodeFrame(message: Message, options: EncodeOptions): Uint8Array {
  // A frame is written in one go, so that all of them can share one buffer.
  writer.restart();
  writeHeader(writer, {
    major: options.major ?? WIRE_MAJOR,
    minor: options.minor ?? WIRE_MINOR,
    typeNumber: MessageType[message.type],
    mustUnderstand: MUST_UNDERSTAND.has(message.type),
    isComputed: message.type === 'REQUEST_DATA' && message.isComputed === true,
    incarnation: options.incarnation,
    rid: 'rid' in message ? message.rid : 0n,
  });
  codecFor(message.type).write(writer, message);
  return writer.take();
}

/**
 * Reads a frame from an untrusted peer. Linear in the frame's size, and so is what it allocates; the result does not share its memory.
 * Within a major, a later minor may only append to a body: what follows is ignored when the frame's minor is newer than ours, else refused.
 * @param versions what the reader speaks; default: this build's
 * @throws WireError with a `reason`; `details` has `typeNumber`, `rid` and `incarnation` when the header could be read, and of a HELLO or
 *   HELLO_ACK the `nonce` when that could be, so that it can be answered
 */
export function decodeFrame(bytes: Uint8Array, versions: WireVersions = WIRE_VERSIONS): Frame {
  try {
    return decode(bytes, versions);
  } catch (error) {
    if (!(error instanceof WireError)) throw error;
    const header = bytes.length > MAX_FRAME_BYTES ? null : peekHeader(bytes);
    if (header === null) throw error;
    const { typeNumber, rid, incarnation } = header;
    const details = { ...error.details, typeNumber, rid, incarnation };
    throw new WireError(error.reason, error.message, { cause: error.cause, details });
  }
}

function decode(bytes: Uint8Array, versions: WireVersions): Frame {
  if (bytes.length > MAX_FRAME_BYTES) {
    throw wireError('frame-too-large', `frame has ${bytes.length} bytes; at most ${MAX_FRAME_BYTES}`);
  }
  const reader = new ByteReader(bytes);
  const { major, minor, typeNumber, mustUnderstand, isComputed, incarnation, rid } = readHeader(reader, versions);
  const name = NAMES.get(typeNumber);
  if (name === undefined) {
    if (mustUnderstand) throw wireError('unknown-type', `message type ${typeNumber} is not known to this build`);
    return { major, minor, incarnation, message: { type: 'UNKNOWN', typeNumber, rid } };
  }
  const message = codecFor(name).read(reader, rid, isComputed);
  const known = versions.find((version) => version.major === major)?.minor ?? 0;
  if (reader.remaining > 0 && minor <= known) {
    throw wireError('trailing-bytes', `${reader.remaining} bytes after the body of ${name}`);
  }
  return { major, minor, incarnation, message };
}

function codecFor(name: MessageName): BodyCodec<Message> {
  // The table pairs each name with its own codec; TypeScript cannot express that a union of names selects the matching one.
  return CODECS[name] as BodyCodec<Message>;
}
