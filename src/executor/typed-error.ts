import { InternalError, KvTransceiverError } from '../errors.js';

/** What plugged-in code threw, as one of our errors; ours pass unchanged. */
export function typedError(error: unknown, what: string): KvTransceiverError {
  if (error instanceof KvTransceiverError) return error;
  const text = error instanceof Error ? error.message : String(error);
  return new InternalError(`${what}: ${text}`, { cause: error });
}
