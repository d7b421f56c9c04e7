import { type BodyCodec, writeEndpoint } from './body-codec.js';
import type { ByteReader } from './byte-reader.js';
import type { ByteWriter } from './byte-writer.js';
import { MAX_CODE_BYTES, MAX_TEXT_BYTES } from './limits.js';
import type { ErrorFrame, Goodbye, Ping, Pong } from './messages.js';

/** PING and PONG:  | sessions u32 | freeAuxSlots u32 | endpoint u16+bytes | */
export const pingCodec: BodyCodec<Ping> = {
  write: writeLoad,
  read: (reader) => ({ type: 'PING', ...readLoad(reader) }),
};

export const pongCodec: BodyCodec<Pong> = {
  write: writeLoad,
  read: (reader) => ({ type: 'PONG', ...readLoad(reader) }),
};

/** GOODBYE:  | drainMs u32 | endpoint u16+bytes | reason u16+bytes | */
export const goodbyeCodec: BodyCodec<Goodbye> = {
  write(writer, message) {
    writer.u32(message.drainMs, 'drainMs');
    writeEndpoint(writer, message.endpoint);
    writer.text(message.reason, MAX_TEXT_BYTES, 'reason');
  },
  read: (reader) => ({
    type: 'GOODBYE',
    drainMs: reader.u32('drainMs'),
    endpoint: reader.endpoint('endpoint'),
    reason: reader.string(MAX_TEXT_BYTES, 'reason'),
  }),
};

/** ERROR:  | code u16+bytes | text u16+bytes |  The header's rid names the request it is about, 0 = none. */
export const errorCodec: BodyCodec<ErrorFrame> = {
  write(writer, message) {
    writer.string(message.code, MAX_CODE_BYTES, 'code');
    writer.text(message.text, MAX_TEXT_BYTES, 'text');
  },
  read: (reader, rid) => ({
    type: 'ERROR',
    rid,
    code: reader.ascii(MAX_CODE_BYTES, 'code'),
    text: reader.string(MAX_TEXT_BYTES, 'text'),
  }),
};

type Load = Omit<Ping, 'type'>;

function writeLoad(writer: ByteWriter, { sessions, freeAuxSlots, endpoint }: Load): void {
  writer.u32(sessions, 'sessions');
  writer.u32(freeAuxSlots, 'freeAuxSlots');
  writeEndpoint(writer, endpoint);
}

function readLoad(reader: ByteReader): Load {
  return {
    sessions: reader.u32('sessions'),
    freeAuxSlots: reader.u32('freeAuxSlots'),
    endpoint: reader.endpoint('endpoint'),
  };
}
