import { parseTraceparent, type TraceContext } from '../wire/trace-context.js';
import type { Counters } from './counters.js';

/** What a `traceparent` says; null for '' or none. One that is not valid is dropped and counted by where it came from. */
export function readTrace(
  text: string | undefined,
  source: 'request' | 'wire',
  counters: Counters,
): TraceContext | null {
  if (text === undefined || text === '') return null;
  const trace = parseTraceparent(text);
  if (trace === null) counters.add(`bad_traceparent:${source}`);
  return trace;
}
