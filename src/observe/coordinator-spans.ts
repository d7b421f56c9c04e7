import { context, type Span, SpanKind, type Tracer } from '@opentelemetry/api';
import type { CoordinatorObserver, CoordinatorSubmission } from '../coordinator/coordinator-observer.js';
import { formatTraceparent, parseTraceparent } from '../wire/trace-context.js';
import { fail } from './span-failure.js';
import { remote, traceparentOf } from './span-identity.js';
import { ATTRIBUTES, SPAN_EVENTS, SPANS } from './span-names.js';
import type { WallTime } from './wall-time.js';

/** A span for each request of a coordinator. @param submissions the open ones */
export function coordinatorSpans(
  tracer: Tracer,
  wall: WallTime,
  submissions: Map<CoordinatorSubmission, Span>,
): CoordinatorObserver {
  return {
    onSubmitted: (submission) => {
      const { request, atMs } = submission;
      wall.sync(atMs);
      const from = parseTraceparent(request.traceparent ?? '');
      const span = tracer.startSpan(
        SPANS.coordinator,
        {
          kind: SpanKind.SERVER,
          startTime: wall.of(atMs),
          attributes: { [ATTRIBUTES.promptTokens]: request.promptTokens.length },
        },
        // Called inside `submit`, so that what is active there is the caller's.
        from === null ? context.active() : remote(from),
      );
      submissions.set(submission, span);
      return traceparentOf(span) ?? (from === null ? '' : formatTraceparent(from));
    },
    onFinished: (submission, result) => {
      const span = submissions.get(submission);
      if (span === undefined) return;
      submissions.delete(submission);
      if (span.isRecording()) {
        span.setAttributes({
          [ATTRIBUTES.rid]: result.id.toString(),
          [ATTRIBUTES.outcome]: result.outcome,
          [ATTRIBUTES.attempts]: result.attempts,
          [ATTRIBUTES.reusedTokens]: result.usage.cachedTokens,
          [ATTRIBUTES.outputTokens]: result.usage.completionTokens,
        });
        if (result.firstTokenAtMs !== null) span.addEvent(SPAN_EVENTS.firstToken, wall.of(result.firstTokenAtMs));
        if (result.outcome === 'failed') fail(span, result.error);
      }
      span.end(wall.of(result.finishedAtMs));
    },
  };
}
