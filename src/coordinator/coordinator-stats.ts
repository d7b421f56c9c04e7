import type { ServerStatus } from './server-pool.js';

/** One server as the coordinator sees it. */
export interface CoordinatorServerStats {
  readonly name: string;
  /** Hexadecimal. */
  readonly incarnation: string;
  readonly phase: ServerStatus['phase'];
  /** '' when ready. */
  readonly reason: string;
  /** Requests it works on for this coordinator, or is about to: of a context server until their pages have left, not until they are decoded. */
  readonly liveRequests: number;
  /** Prompt tokens of those. */
  readonly liveTokens: number;
}

/** A snapshot of a coordinator. JSON-serialisable. */
export interface CoordinatorStats {
  /** Requests that some server still works on. */
  readonly live: number;
  /** Errors that a handler, a server or this package itself threw: the requests that they belonged to have failed, and each is a warning. */
  readonly internalErrors: number;
  readonly context: readonly CoordinatorServerStats[];
  readonly generation: readonly CoordinatorServerStats[];
}

export function serverStats({ name, incarnation, phase, reason, liveRequests, liveTokens }: ServerStatus) {
  const stats: CoordinatorServerStats = {
    name,
    incarnation: incarnation.toString(16),
    phase,
    reason,
    liveRequests,
    liveTokens,
  };
  return stats;
}
