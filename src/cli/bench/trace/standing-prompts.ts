import type { PromptSource } from '../prompt-source.js';
import { TRACE_BLOCK_TOKENS } from '../request-trace.js';
import type { PlannedRequest } from '../ttft/workload.js';

/** A cache that earlier requests have filled. */
export interface StandingCache {
  /** Tokens that it has pages for. */
  readonly poolTokens: number;
  /** Prefixes are found in whole blocks of this many tokens (of all context parallel ranks). */
  readonly stripeTokens: number;
}

/** A prompt that a cache is given again. */
export interface StandingPrompt {
  readonly prompt: PromptSource;
  /** From its start, whole blocks. */
  readonly tokens: number;
  /** Of those, what a request of the round may find. The rest takes the room that it would take, and is not written: nobody would read it. */
  readonly filledTokens: number;
}

type TracePrompt = Extract<PromptSource, { kind: 'trace' }>;

/**
 * What a cache must be given again, in this order, to be as the requests before `begin` left it: the least recently used blocks were evicted first.
 * Why all of it: what nobody will ask for takes room, too. Without it a cache would keep what is asked for longer than one of its size can.
 * Accounting: such a cache holds what was used last, as much of it as fits, so that older prompts need not be looked at; nor those of which all was
 *   used again later.
 * @param end of the round that begins at `begin`
 */
export function standingPrompts(
  requests: readonly PlannedRequest[],
  begin: number,
  end: number,
  cache: StandingCache,
): readonly StandingPrompt[] {
  const wanted = idsOf(requests.slice(begin, end));
  const { stripeTokens } = cache;
  return lastUsed(requests, begin, cache).map((prompt) => {
    const tokens = Math.floor(prompt.tokenCount / stripeTokens) * stripeTokens;
    const strange = prompt.hashIds.findIndex((id) => !wanted.has(id));
    const shared = (strange < 0 ? prompt.hashIds.length : strange) * blockTokensOf(prompt);
    return { prompt, tokens, filledTokens: Math.min(tokens, Math.ceil(shared / stripeTokens) * stripeTokens) };
  });
}

/** Prompts before `begin` that fill the pool, or all, oldest first. A request that never fits is refused and leaves nothing. */
function lastUsed(
  requests: readonly PlannedRequest[],
  begin: number,
  { poolTokens: atMost, stripeTokens }: StandingCache,
): readonly TracePrompt[] {
  const poolTokens = Math.floor(atMost / stripeTokens) * stripeTokens;
  const prompts: TracePrompt[] = [];
  /** Tokens of each id that were used later. */
  const used = new Map<number, number>();
  let tokens = 0;
  for (let index = begin - 1; index >= 0 && tokens < poolTokens; index--) {
    const { prompt, maxTokens } = requests[index] as PlannedRequest;
    if (prompt.kind !== 'trace' || prompt.tokenCount + maxTokens - 1 > poolTokens) continue;
    const before = tokens;
    for (const [place, id] of prompt.hashIds.entries()) {
      const length = Math.min(blockTokensOf(prompt), prompt.tokenCount - place * blockTokensOf(prompt));
      const fresh = length - (used.get(id) ?? 0);
      if (fresh <= 0) continue;
      used.set(id, length);
      tokens += fresh;
    }
    if (tokens > before) prompts.push(prompt);
  }
  return prompts.reverse();
}

function idsOf(requests: readonly PlannedRequest[]): ReadonlySet<number> {
  return new Set(requests.flatMap(({ prompt }) => (prompt.kind === 'trace' ? prompt.hashIds : [])));
}

function blockTokensOf({ blockTokens = TRACE_BLOCK_TOKENS }: TracePrompt): number {
  return blockTokens;
}
