import type { LlmRequest } from '../../../src/executor/request.js';
import { mix32 } from '../core/random.js';

export const TOKENS_PER_BLOCK = 4;
export const MAX_PROMPT_TOKENS = 64;
const FAMILIES = 6;
/** Tokens that a family shares with the one before it. */
const SHARED_TOKENS = 10;

/** Prompts of one family are prefixes of one token list, so that caches find something to reuse. */
const TOKENS: readonly Uint32Array[] = Array.from({ length: FAMILIES }, (_, family) =>
  Uint32Array.from({ length: MAX_PROMPT_TOKENS }, (__, i) => (i < SHARED_TOKENS ? family >> 1 : family) * 1000 + i),
);

/** seed[i] depends on tokens[0..i], as real KV does. */
const SEEDS: readonly Uint32Array[] = TOKENS.map((tokens) => {
  let seed = 1;
  return tokens.map((token) => {
    seed = mix32(seed ^ Math.imul(token + 1, 0x9e3779b1));
    return seed;
  });
});

const HASHES: readonly string[][] = SEEDS.map((seeds) =>
  Array.from({ length: MAX_PROMPT_TOKENS / TOKENS_PER_BLOCK }, (_, block) => {
    const last = seeds[(block + 1) * TOKENS_PER_BLOCK - 1] as number;
    return `${block}:${last.toString(16)}`;
  }),
);

const families = new WeakMap<Uint32Array, number>();

const prompts: Uint32Array[][] = TOKENS.map(() => []);

export function promptOf(family: number, length: number): Uint32Array {
  const ofFamily = prompts[family % FAMILIES] as Uint32Array[];
  let tokens = ofFamily[length];
  if (tokens === undefined) {
    tokens = (TOKENS[family % FAMILIES] as Uint32Array).slice(0, length);
    ofFamily[length] = tokens;
    families.set(tokens, family % FAMILIES);
  }
  return tokens;
}

export function blockHashesOf(request: LlmRequest): readonly string[] {
  const blocks = Math.floor(request.promptTokens.length / TOKENS_PER_BLOCK);
  return (HASHES[familyOf(request.promptTokens)] as string[]).slice(0, blocks);
}

export function seedsOf(tokens: Uint32Array): Uint32Array {
  return SEEDS[familyOf(tokens)] as Uint32Array;
}

/** What a page holds for one token of one layer, role and KV head of the model: 32 bits. */
export function contentWord(seed: number, layer: number, role: number, head: number): number {
  return mix32(seed ^ Math.imul((head << 8) + layer * 2 + role + 1, 0x85ebca6b));
}

/** The token a model would say at `index`, on either server. */
export function tokenAt(tokens: Uint32Array, index: number): number {
  return mix32((seedsOf(tokens)[tokens.length - 1] as number) + index) >>> 8;
}

function familyOf(tokens: Uint32Array): number {
  const family = families.get(tokens);
  if (family === undefined) throw new Error('a prompt that promptOf did not make');
  return family;
}

const BLOCK_PLACES = new Map<string, { readonly seeds: Uint32Array; readonly block: number }>(
  HASHES.flatMap((hashes, family) =>
    hashes.map((hash, block): [string, { readonly seeds: Uint32Array; readonly block: number }] => [
      hash,
      { seeds: SEEDS[family] as Uint32Array, block },
    ]),
  ),
);

/** Seeds of the tokens of the block that lies `before` blocks before the one that has this hash. */
export function blockSeeds(hash: string, before = 0): Uint32Array | undefined {
  const place = BLOCK_PLACES.get(hash);
  if (place === undefined) return undefined;
  const begin = (place.block - before) * TOKENS_PER_BLOCK;
  return place.seeds.subarray(begin, begin + TOKENS_PER_BLOCK);
}
