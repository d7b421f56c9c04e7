/** Counters, by the word before their colon, of frames that were not acted on. */
export const REFUSAL_KINDS: readonly string[] = [
  'wire_error',
  'protocol_error',
  'stale',
  'unknown_peer',
  'foreign_ticket',
  'foreign_request',
  'request_data_refused',
  'introductions_refused',
];
/** And those that are one counter each. */
const NAMES: ReadonlySet<string> = new Set([
  'hello_refused',
  'hello_refused_full',
  'hello_ack_refused',
  'greetings_dropped',
  'early_requests_full',
  'early_requests_peer_full',
  'unknown_message',
]);

/** What kind of refusal a counter of `TransceiverStats.counters` is about; null: it is about something else. */
export function refusalOf(counter: string): { readonly kind: string; readonly reason: string } | null {
  if (NAMES.has(counter)) return { kind: 'refused', reason: counter };
  const [kind = '', reason] = counter.split(':', 2);
  return reason !== undefined && REFUSAL_KINDS.includes(kind) ? { kind, reason } : null;
}

/** Whether a counter is about a frame that was not acted on. */
export function isRefusal(counter: string): boolean {
  return refusalOf(counter) !== null;
}
