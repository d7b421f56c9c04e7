/**
 * Whether a send or a receive ended with nothing done and is made again: a wake-up without a message, the time after which whoever waits looks again, or a
 * signal that came meanwhile (a profiler sends hundreds a second). Anything else is not expected, and must leave nobody deaf in silence.
 */
export function isWakeUp(error: unknown): boolean {
  const { code } = error as { readonly code?: unknown };
  return code === 'EAGAIN' || code === 'EINTR';
}
