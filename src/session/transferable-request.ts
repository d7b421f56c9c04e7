import { ArgumentError, RequestTooLargeError } from '../errors.js';
import { type DisaggregatedParams, type LlmRequest, requestKey } from '../executor/request.js';
import { isToken, shown, TOKEN_RANGE } from '../token.js';
import { isEndpoint } from '../wire/endpoint.js';
import { AUX_MAX_TOKENS } from './aux-buffer.js';

const MAX_REQUEST_ID = 0xffff_ffff_ffff_ffffn;
/** Of an aux slot: the rest is for the first token and its log-prob. */
export const MAX_DRAFT_TOKENS: number = AUX_MAX_TOKENS - 2;

/** Draft tokens that a request may have: those of a context half that is generation first travel in an aux slot, all others with the request. */
export function maxDraftTokens({
  requestType,
  scheduleStyle,
}: Pick<DisaggregatedParams, 'requestType' | 'scheduleStyle'>): number {
  const isInSlot = requestType === 'context_only' && scheduleStyle === 'generation_first';
  return isInSlot ? MAX_DRAFT_TOKENS : Number.POSITIVE_INFINITY;
}

/**
 * What no frame and no aux slot can carry is refused where the request comes in: behind that it would be found out by a timer or a completion,
 * where nobody waits for the error.
 * @throws ArgumentError for an id that is no u64, a `ctxInfoEndpoint` that is none, a first or draft token that is no u32
 * @throws RequestTooLargeError for more draft tokens than fit beside the first token and its log-prob
 */
export function requireTransferable(request: LlmRequest): void {
  const { id, disagg } = request;
  if (disagg === null) return;
  const rid = requestKey(request);
  if (typeof rid !== 'bigint' || rid < 0n || rid > MAX_REQUEST_ID)
    throw new ArgumentError(
      `request ${id}: disagg.${disagg.ctxRequestId === null ? 'disaggRequestId' : 'ctxRequestId'} is ${String(rid)}; it must be a bigint in [0, 2^64)`,
    );
  const { requestType, draftTokens, ctxInfoEndpoint } = disagg;
  if (requestType === 'generation_only' && ctxInfoEndpoint !== null && !isEndpoint(ctxInfoEndpoint))
    throw new ArgumentError(
      `request ${id}: disagg.ctxInfoEndpoint must be tcp://host:port, the control endpoint of a context rank, got ${shown(ctxInfoEndpoint)}`,
    );
  const maxTokens = maxDraftTokens(disagg);
  if (draftTokens.length > maxTokens)
    throw new RequestTooLargeError(
      `request ${id}: ${draftTokens.length} draft tokens do not fit an aux slot beside the first token and its log-prob; send at most ${MAX_DRAFT_TOKENS}, or use scheduleStyle 'context_first'`,
    );
  // Written into the slot they would be other tokens, and arrive as such; those that came with the request go to its user as they are.
  for (const field of ['draftTokens', 'firstGenTokens'] as const) {
    const bad = disagg[field].findIndex((token) => !isToken(token));
    if (bad >= 0)
      throw new ArgumentError(`request ${id}: disagg.${field}[${bad}] is ${shown(disagg[field][bad])}; ${TOKEN_RANGE}`);
  }
}
