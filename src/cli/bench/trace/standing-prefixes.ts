import { TRACE_BLOCK_TOKENS } from '../request-trace.js';
import type { PlannedRequest } from '../ttft/workload.js';

/** A cache that earlier requests have filled. */
export interface StandingCache {
  /** Tokens that it has pages for. */
  readonly poolTokens: number;
  /** Prefixes are found in whole blocks of this many tokens (of all context parallel ranks). */
  readonly stripeTokens: number;
}

/**
 * Prompt tokens of each request that a cache still holds of the requests before `begin`, the least recently used blocks being evicted first.
 * Only whole hash ids count: what is behind the last of them two prompts do not share. A prompt that never fits the pool finds nothing.
 */
export function standingPrefixes(
  requests: readonly PlannedRequest[],
  begin: number,
  end: number,
  { poolTokens, stripeTokens }: StandingCache,
): readonly number[] {
  const held = heldIds(requests, begin, poolTokens);
  return requests.slice(begin, end).map(({ prompt }) => {
    if (prompt.kind !== 'trace' || prompt.tokenCount > poolTokens) return 0;
    const ids = wholeIds(prompt);
    const missing = ids.findIndex((id) => !held.has(id));
    const tokens = (missing < 0 ? ids.length : missing) * blockTokensOf(prompt);
    // At least one token is left to compute.
    return Math.floor(Math.min(tokens, prompt.tokenCount - 1) / stripeTokens) * stripeTokens;
  });
}

type TracePrompt = Extract<PlannedRequest['prompt'], { kind: 'trace' }>;

function heldIds(requests: readonly PlannedRequest[], begin: number, poolTokens: number): ReadonlySet<number> {
  const held = new Set<number>();
  let tokens = 0;
  for (let index = begin - 1; index >= 0; index--) {
    const { prompt } = requests[index] as PlannedRequest;
    if (prompt.kind !== 'trace' || prompt.tokenCount > poolTokens) continue;
    const fresh = wholeIds(prompt).filter((id) => !held.has(id));
    const rest = prompt.tokenCount - wholeIds(prompt).length * blockTokensOf(prompt);
    tokens += fresh.length * blockTokensOf(prompt) + rest;
    if (tokens > poolTokens) break;
    for (const id of fresh) held.add(id);
  }
  return held;
}

function wholeIds({ hashIds }: TracePrompt): readonly number[] {
  return hashIds.slice(0, -1);
}

function blockTokensOf({ blockTokens = TRACE_BLOCK_TOKENS }: TracePrompt): number {
  return blockTokens;
}
