/** The parts of a W3C `traceparent` that are used. */
export interface TraceContext {
  /** 32 lower-case hexadecimal digits, not all 0. */
  readonly traceId: string;
  /** 16 lower-case hexadecimal digits, not all 0. */
  readonly spanId: string;
  readonly isSampled: boolean;
}

const TRACEPARENT = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]{1,64})?$/;

/**
 * Reads a `traceparent` (https://www.w3.org/TR/trace-context/#traceparent-header). It comes from outside: what does not fit exactly is null,
 * never repaired. A version after 00 may have more fields, which are not looked at.
 */
export function parseTraceparent(text: string): TraceContext | null {
  const match = TRACEPARENT.exec(text);
  if (match === null) return null;
  const [, version = '', traceId = '', spanId = '', flags = '', more] = match;
  if (version === 'ff' || (version === '00' && more !== undefined)) return null;
  if (/^0+$/.test(traceId) || /^0+$/.test(spanId)) return null;
  return { traceId, spanId, isSampled: (Number.parseInt(flags, 16) & 1) === 1 };
}

/** As version 00 writes it. */
export function formatTraceparent({ traceId, spanId, isSampled }: TraceContext): string {
  return `00-${traceId}-${spanId}-${isSampled ? '01' : '00'}`;
}
