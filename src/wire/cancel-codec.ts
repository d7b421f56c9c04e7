import { type BodyCodec, writeEndpoint } from './body-codec.js';
import { MAX_TEXT_BYTES } from './limits.js';
import type { Cancel, CancelAck } from './messages.js';
import { wireError } from './wire-reason.js';

const FROM_GENERATION = 1;
const FROM_CONTEXT = 2;

/** CANCEL:  | ticket u64 | from u8 (1 generation, 2 context) | endpoint u16+bytes | reason u16+bytes | */
export const cancelCodec: BodyCodec<Cancel> = {
  write(writer, message) {
    writer.u64(message.ticket, 'ticket');
    writer.u8(message.from === 'generation' ? FROM_GENERATION : FROM_CONTEXT, 'from');
    writeEndpoint(writer, message.endpoint);
    writer.text(message.reason, MAX_TEXT_BYTES, 'reason');
  },
  read(reader, rid) {
    const ticket = reader.u64('ticket');
    const from = reader.u8('from');
    if (from !== FROM_GENERATION && from !== FROM_CONTEXT) throw wireError('bad-value', `unknown side ${from}`);
    return {
      type: 'CANCEL',
      rid,
      ticket,
      from: from === FROM_GENERATION ? 'generation' : 'context',
      endpoint: reader.endpoint('endpoint'),
      reason: reader.string(MAX_TEXT_BYTES, 'reason'),
    };
  },
};

/** CANCEL_ACK:  | ticket u64 | */
export const cancelAckCodec: BodyCodec<CancelAck> = {
  write: (writer, message) => writer.u64(message.ticket, 'ticket'),
  read: (reader, rid) => ({ type: 'CANCEL_ACK', rid, ticket: reader.u64('ticket') }),
};
