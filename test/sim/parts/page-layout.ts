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

  /** The words of one token, `seed` its content. */
  visit(token: number, seed: number, visit: (word: number, value: number) => void): void {
    const { layers, roles, heads, firstHead, blockLayout } = this.#spec;
    const offset = token % TOKENS_PER_BLOCK;
    for (let position = 0; position < layers.length; position++)
      for (let role = 0; role < roles; role++) {
        const base = (position * roles + role) * heads * TOKENS_PER_BLOCK;
        for (let head = 0; head < heads; head++) {
          const place = blockLayout === 'HND' ? head * TOKENS_PER_BLOCK + offset : offset * heads + head;
          visit(base + place, contentWord(seed, layers[position] as number, role, firstHead + head));
        }
      }
  }

  /** A whole page. */
  page(seeds: Uint32Array): Uint32Array {
    const words = new Uint32Array(this.words);
    seeds.forEach((seed, token) => {
      this.visit(token, seed, (word, value) => {
        words[word] = value;
      });
    });
    return words;
  }
}
