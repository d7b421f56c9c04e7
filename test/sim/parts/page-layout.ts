import { contentWord, TOKENS_PER_BLOCK } from './prompts.js';

export interface PageLayoutSpec {
  /** Global ids of the layers of one group on this rank. */
  readonly layers: readonly number[];
  /** K and V, or one latent vector. */
  readonly roles: 1 | 2;
  /** KV heads on this rank, and the first of them. */
  readonly heads: number;
  readonly firstHead: number;
  readonly blockLayout: 'HND' | 'NHD';
}

/** Role: which word of a page of one layer group holds what, on one rank. One token of one layer, role and head is one word. */
export class PageLayout {
  readonly words: number;
  readonly #spec: PageLayoutSpec;

  constructor(spec: PageLayoutSpec) {
    this.#spec = spec;
    this.words = spec.layers.length * spec.roles * spec.heads * TOKENS_PER_BLOCK;
  }

  /**
   * Puts the words of one token into its page, or only looks at them; `seed` is its content.
   * @returns how many words are not what it left there
   */
  token(words: Uint32Array, token: number, seed: number, act: 'put' | 'look'): number {
    const { layers, roles, heads, firstHead, blockLayout } = this.#spec;
    const offset = token % TOKENS_PER_BLOCK;
    let wrong = 0;
    for (let position = 0; position < layers.length; position++)
      for (let role = 0; role < roles; role++) {
        const base = (position * roles + role) * heads * TOKENS_PER_BLOCK;
        for (let head = 0; head < heads; head++) {
          const place = base + (blockLayout === 'HND' ? head * TOKENS_PER_BLOCK + offset : offset * heads + head);
          const word = contentWord(seed, layers[position] as number, role, firstHead + head);
          if (act === 'put') words[place] = word;
          else if (words[place] !== word) wrong += 1;
        }
      }
    return wrong;
  }

  /** A whole page. */
  page(seeds: Uint32Array): Uint32Array {
    const words = new Uint32Array(this.words);
    for (const [token, seed] of seeds.entries()) this.token(words, token, seed, 'put');
    return words;
  }
}
