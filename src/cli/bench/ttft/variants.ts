import type { TransferPolicy } from '../../../executor/request.js';
import type { TtftVariant } from '../output-contract.js';

export function policyOf(variant: TtftVariant): TransferPolicy {
  return { pipelined: variant !== 'monolithic', earlyPrefix: variant === 'pipelined-early-prefix' };
}

/** Prompt tokens that the context server is made to hold before the request: whole blocks (of all context parallel
 * ranks), at least one token left to compute. */
export function contextWarmTokens(promptTokens: number, prefixHit: number, tokensPerBlock: number): number {
  const wanted = Math.floor((promptTokens * prefixHit) / tokensPerBlock) * tokensPerBlock;
  return Math.min(wanted, Math.floor((promptTokens - 1) / tokensPerBlock) * tokensPerBlock);
}

/**
 * Prompt tokens that the generation server is made to hold: for `ideal` everything but the last slice, so that the transfer adds nothing
 * to the prefill but what can never be hidden.
 */
export function generationWarmTokens(
  variant: TtftVariant,
  promptTokens: number,
  contextCachedTokens: number,
  chunkTokens: number,
  tokensPerBlock: number,
): number {
  if (variant !== 'ideal') return 0;
  const computed = promptTokens - contextCachedTokens;
  const chunksBeforeLast = Math.ceil(computed / chunkTokens) - 1;
  const lastChunkStart = contextCachedTokens + chunksBeforeLast * chunkTokens;
  return Math.floor(lastChunkStart / tokensPerBlock) * tokensPerBlock;
}
