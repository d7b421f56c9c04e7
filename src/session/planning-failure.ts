import { InternalError, KvTransceiverError } from '../errors.js';

/**
 * What a request fails with because its blocks could not be planned. Both kinds of refusal end up here: planning runs in message
 * handlers, where one request's bad numbers must not end the process that serves the others.
 * @throws `cause` itself when it is no refusal but a bug
 */
export function planningFailure(cause: unknown, what: string): KvTransceiverError {
  if (cause instanceof KvTransceiverError) return cause;
  if (cause instanceof RangeError) return new InternalError(`${what}: ${cause.message}`, { cause });
  throw cause;
}
