import { InternalError, type KvTransceiverError } from '../errors.js';
import { isToken, shown, TOKEN_RANGE } from '../token.js';
import type { LlmRequest } from './request.js';
import type { Entry } from './request-table.js';

/** What a forward sampled. */
export interface SampledTokens {
  readonly tokens: ReadonlyMap<LlmRequest, number>;
  /** Requests that were to get a token and did not, and why. */
  readonly refused: ReadonlyMap<Entry, KvTransceiverError>;
}

/**
 * Reads what an engine handed over, once: the engine may use its map again.
 * Why: an aux slot and a user's prompt carry words of 32 bits, where NaN is token 0 and -1 the largest of all; behind this line a token is one.
 * @param sampling the requests that the forward samples a token for; what it hands over for others is not looked at
 * @throws InternalError when it is no map at all
 */
export function readTokens(sampling: Iterable<Entry>, answer: unknown): SampledTokens {
  if (!isMap(answer)) {
    throw new InternalError(
      `the model engine failed: its tokens are ${shown(answer)}; ForwardResult.tokens must resolve to a Map of each request to its token`,
    );
  }
  const tokens = new Map<LlmRequest, number>();
  const refused = new Map<Entry, KvTransceiverError>();
  for (const entry of sampling) {
    const token = answer.get(entry.request);
    const fault = faultOf(entry, token);
    if (fault === null) tokens.set(entry.request, token as number);
    else refused.set(entry, new InternalError(`request ${entry.request.id}: the model engine ${fault}`));
  }
  return { tokens, refused };
}

function faultOf({ request, role, outputCount }: Entry, token: unknown): string | null {
  if (token === undefined) return 'returned no token';
  if (!isToken(token)) return `returned ${shown(token)} as its token; ${TOKEN_RANGE}`;
  // Its count is what says which token comes next, and which one is the last.
  if (request.outputTokens.length !== outputCount)
    return `changed outputTokens, which has ${request.outputTokens.length} tokens where ${outputCount} were delivered; an engine only reads it, and returns tokens in ForwardResult.tokens`;
  // Those of a context half travel with its first token.
  const logProb: unknown = role === 'context' ? request.outputLogProbs?.[0] : undefined;
  if (logProb !== undefined && (typeof logProb !== 'number' || Number.isNaN(logProb)))
    return `gave ${shown(logProb)} as the log-prob of its token; it must be a number`;
  return null;
}

function isMap(value: unknown): value is Pick<ReadonlyMap<LlmRequest, unknown>, 'get'> {
  return typeof value === 'object' && value !== null && 'get' in value && typeof value.get === 'function';
}
