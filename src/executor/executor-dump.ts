import type { ExecutorStats } from './executor-options.js';
import { type RequestState, requestKey } from './request.js';
import type { RequestTable } from './request-table.js';

const DEFAULT_MAX_ENTRIES = 100;

/** One live request. */
export interface RequestDump {
  /** What this server calls it. */
  readonly request: number;
  /** What both servers call it. */
  readonly rid: string;
  readonly role: string;
  readonly state: RequestState;
  readonly ageMs: number;
  readonly promptTokens: number;
  /** Prompt tokens found in the cache, and those computed or scheduled so far. */
  readonly prepopulatedTokens: number;
  readonly computedTokens: number;
  readonly outputTokens: number;
  readonly maxTokens: number;
  readonly isCancelRequested: boolean;
  /** A forward that writes its pages is under way. */
  readonly isComputing: boolean;
  /** Null while it is open. */
  readonly outcome: string | null;
}

/** Everything live in one executor, bounded in size. JSON-serialisable; in order of arrival. */
export interface ExecutorDump {
  readonly phase: string;
  readonly stats: ExecutorStats;
  readonly requests: readonly RequestDump[];
  readonly leftOut: number;
}

export function executorDump(
  phase: string,
  stats: ExecutorStats,
  table: RequestTable,
  nowMs: number,
  maxEntries = DEFAULT_MAX_ENTRIES,
): ExecutorDump {
  const requests: RequestDump[] = [];
  for (const { request, role, submittedAtMs, stepsInFlight, outcome } of table.all()) {
    if (requests.length >= maxEntries) break;
    requests.push({
      request: request.id,
      rid: requestKey(request).toString(),
      role,
      state: request.state,
      ageMs: nowMs - submittedAtMs,
      promptTokens: request.promptTokens.length,
      prepopulatedTokens: request.prepopulatedLen,
      computedTokens: request.chunkEnd,
      outputTokens: request.outputTokens.length,
      maxTokens: request.maxTokens,
      isCancelRequested: request.cancelRequested,
      isComputing: stepsInFlight > 0,
      outcome,
    });
  }
  return { phase, stats, requests, leftOut: table.size - requests.length };
}
