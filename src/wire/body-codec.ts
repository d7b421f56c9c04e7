import { ArgumentError } from '../errors.js';
import type { ByteReader } from './byte-reader.js';
import type { ByteWriter } from './byte-writer.js';
import { isEndpoint } from './endpoint.js';
import { MAX_ENDPOINT_BYTES } from './limits.js';
import type { Message } from './messages.js';

/** Body of one message type. `read` consumes what its version knows; the frame codec judges what is left. */
export interface BodyCodec<M extends Message> {
  write(writer: ByteWriter, message: M): void;
  /** @param rid from the header, as `isComputed`; messages without one ignore it */
  read(reader: ByteReader, rid: bigint, isComputed: boolean): M;
}

/** An endpoint that a peer would refuse must not leave this process. */
export function writeEndpoint(writer: ByteWriter, endpoint: string): void {
  if (!isEndpoint(endpoint)) {
    throw new ArgumentError(`endpoint must be tcp://host:port, got ${JSON.stringify(endpoint)}`);
  }
  writer.string(endpoint, MAX_ENDPOINT_BYTES, 'endpoint');
}
