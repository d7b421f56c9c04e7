import type { ContextAnswer, LlmRequest } from '../executor/request.js';

/** Context first, the answer came with the request. */
export function answeredBefore({ disagg, promptTokens }: LlmRequest): ContextAnswer {
  return {
    firstTokens: disagg?.firstGenTokens ?? [],
    firstLogProbs: disagg?.firstGenLogProbs ?? [],
    draftTokens: disagg?.draftTokens ?? [],
    promptLen: promptTokens.length,
    cachedTokens: disagg?.ctxUsage?.cachedTokens ?? 0,
  };
}
