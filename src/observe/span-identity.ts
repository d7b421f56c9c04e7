import { type Context, type Link, ROOT_CONTEXT, type Span, TraceFlags, trace } from '@opentelemetry/api';
import { formatTraceparent, parseTraceparent, type TraceContext } from '../wire/trace-context.js';

/** The span whose identity came from outside. */
export function remote({ traceId, spanId, isSampled }: TraceContext): Context {
  const traceFlags = isSampled ? TraceFlags.SAMPLED : TraceFlags.NONE;
  return trace.setSpanContext(ROOT_CONTEXT, { traceId, spanId, traceFlags, isRemote: true });
}

export function linkTo({ traceId, spanId, isSampled }: TraceContext): Link {
  const traceFlags = isSampled ? TraceFlags.SAMPLED : TraceFlags.NONE;
  return { context: { traceId, spanId, traceFlags, isRemote: true } };
}

/** Undefined for a span without an identity, which is what there is without a provider and a trace from outside. */
export function traceparentOf(span: Span): string | undefined {
  const { traceId, spanId, traceFlags } = span.spanContext();
  const text = formatTraceparent({ traceId, spanId, isSampled: (traceFlags & TraceFlags.SAMPLED) !== 0 });
  return parseTraceparent(text) === null ? undefined : text;
}
