import { type Span, SpanStatusCode } from '@opentelemetry/api';
import { ERROR_CODES, type KvTransceiverError } from '../errors.js';
import { ATTRIBUTES } from './span-names.js';

/** Text of errors in spans. */
const MAX_TEXT = 500;

/** Marks a span as failed, with the class of the error and the one that the peer named. */
export function fail(span: Span, error: KvTransceiverError | null): void {
  span.setAttribute(ATTRIBUTES.error, error?.code ?? 'ERR_KVT_INTERNAL');
  // A peer's word: only a code that there is.
  const remoteCode = error?.details['remoteCode'];
  if (typeof remoteCode === 'string' && remoteCode in ERROR_CODES)
    span.setAttribute(ATTRIBUTES.remoteError, remoteCode);
  span.setStatus({ code: SpanStatusCode.ERROR, message: (error?.message ?? '').slice(0, MAX_TEXT) });
}
