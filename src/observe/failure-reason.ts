import { ERROR_CODES, type KvTransceiverError } from '../errors.js';

/** Why a transfer failed, beside the class of its error: the clock that ran out, the peer's word, or what this rank saw itself. */
export const FAILURE_REASONS = ['queue_clock', 'progress_clock', 'transfer_clock', 'remote', 'local'] as const;

export function failureReason(error: KvTransceiverError | null): (typeof FAILURE_REASONS)[number] {
  const { clock, remoteCode } = error?.details ?? {};
  if (clock === 'queue' || clock === 'progress' || clock === 'transfer') return `${clock}_clock`;
  // A peer's word: only a code that there is.
  return typeof remoteCode === 'string' && remoteCode in ERROR_CODES ? 'remote' : 'local';
}
