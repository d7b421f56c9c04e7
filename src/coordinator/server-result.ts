import type { RequestOutcome } from '../executor/executor-events.js';
import type { LlmRequest, PromptUsage } from '../executor/request.js';
import type { ServerResult } from './disagg-server.js';

/** How a request of an executor ended, as its server says it. */
export function resultOf(request: LlmRequest, outcome: RequestOutcome): ServerResult {
  const { outputTokens, error, prepopulatedLen, promptTokens } = request;
  const contextUsage = contextUsageOf(request);
  return {
    outcome,
    outputTokens: [...outputTokens],
    error,
    usage: { promptTokens: promptTokens.length, cachedTokens: prepopulatedLen },
    ...(contextUsage === null ? {} : { contextUsage }),
  };
}

/** Null before a context server's answer is here, and where none comes: an answer has a first token. */
export function contextUsageOf({ contextAnswer }: LlmRequest): PromptUsage | null {
  if (contextAnswer === undefined || contextAnswer.firstTokens.length === 0) return null;
  const { promptLen, cachedTokens } = contextAnswer;
  return { promptTokens: promptLen, cachedTokens };
}
