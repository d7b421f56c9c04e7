import { TRACE_BLOCK_TOKENS } from './request-trace.js';
import { mixSeed, SeededRandom } from './seeded-random.js';

/** Token ids stay below this, so that no real prompt holds `PAD_TOKEN`. */
const TOKEN_ID_BOUND = 2 ** 31;

/** Stands behind the prompt up to the block's end, so that every byte of the last page has known content too. */
export const PAD_TOKEN = 0xffffffff;

/** How both servers make the same prompt without sending it: small, and the same on every machine. */
export type PromptSource =
  | { readonly kind: 'random'; readonly seed: bigint; readonly tokenCount: number }
  /** Equal (salt, hash id, place inside its block) gives equal tokens, so that prefix sharing of the trace is real. */
  | {
      readonly kind: 'trace';
      readonly salt: bigint;
      readonly hashIds: readonly number[];
      readonly tokenCount: number /** Tokens of one hash id; default 512. */;
      readonly blockTokens?: number;
    };

export function promptTokens(source: PromptSource): Uint32Array {
  const tokens = new Uint32Array(source.tokenCount);
  if (source.kind === 'random') {
    const random = new SeededRandom(source.seed);
    for (let index = 0; index < tokens.length; index++) tokens[index] = random.below(TOKEN_ID_BOUND);
    return tokens;
  }
  const { blockTokens = TRACE_BLOCK_TOKENS } = source;
  for (const [block, hashId] of source.hashIds.entries()) {
    const random = new SeededRandom(mixSeed(source.salt, hashId));
    const begin = block * blockTokens;
    const end = Math.min(begin + blockTokens, tokens.length);
    for (let index = begin; index < end; index++) tokens[index] = random.below(TOKEN_ID_BOUND);
  }
  return tokens;
}

/** The prompt and the padding behind it, up to the next multiple of `tokensPerBlock`. */
export function paddedToBlock(tokens: Uint32Array, tokensPerBlock: number): Uint32Array {
  const padded = new Uint32Array(Math.ceil(tokens.length / tokensPerBlock) * tokensPerBlock).fill(PAD_TOKEN);
  padded.set(tokens);
  return padded;
}
