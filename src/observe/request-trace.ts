import type { Context, Span } from '@opentelemetry/api';
import type { TraceContext } from '../wire/trace-context.js';

/**
 * Role: the spans of one request at one server: its time at the executor, and its transfer inside that. Either may be missing.
 * Ordering: a context request without a trace of its own joins the one that its first receiver names, so its spans are made when that
 *   comes, or at their end, with the times at which they began.
 */
export class RequestTrace {
  /** Of the request's own parameters. */
  own: TraceContext | null = null;
  /** Of the first receiver's question. */
  asked: TraceContext | null = null;
  /** When the executor took it; null: no executor is observed, or none had it. */
  submittedAtMs: number | null = null;
  transferAtMs: number | null = null;
  /** Of which attachments that is, so that an end of one ends what it would have told of. */
  submittedBy: object | null = null;
  transferBy: object | null = null;
  rid: bigint | null = null;
  request: Span | null = null;
  transfer: Span | null = null;
  /** Parent of slices, made once. */
  transferContext: Context | null = null;
  prefillStartedAtMs: number | null = null;
  prefillDoneAtMs: number | null = null;
  firstTokenAtMs: number | null = null;
  hasFinished = false;
  hasSettled = false;

  /** Nothing more will be heard of it. */
  get isOver(): boolean {
    return (this.submittedAtMs === null || this.hasFinished) && (this.transferAtMs === null || this.hasSettled);
  }
}
