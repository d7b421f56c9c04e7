/** Messages of the log lines; docs/observability.md has the same ones, and a test compares them. */
export const LOG_LINES = {
  transfer: 'transfer ended',
  request: 'request ended',
  coordinated: 'coordinated request ended',
  fallback: 'fallback',
  frameRefused: 'frame refused',
  peerReady: 'peer ready',
  peerLost: 'peer lost',
  executorWarning: 'executor warning',
  rankGroupLost: 'rank group lost',
} as const;
