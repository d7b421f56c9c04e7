import type { PlannedRequest } from '../../../../src/cli/bench/ttft/workload.js';

/**
 * A prefix cache in a few lines, without the bench and the cache managers: whole blocks by the hash ids that lead to them, what was used longest ago
 * evicted first, of one prompt the deepest block first. One request at a time.
 */
export class PlainLru {
  readonly #slotCount: number;
  readonly #blockTokens: number;
  /** Oldest first. */
  readonly #blocks = new Set<string>();

  constructor(slotCount: number, blockTokens: number) {
    this.#slotCount = slotCount;
    this.#blockTokens = blockTokens;
  }

  /** @returns tokens that were found */
  serve({ prompt, maxTokens }: PlannedRequest): number {
    if (prompt.kind !== 'trace') throw new TypeError('only prompts of traces have hash ids');
    const { tokenCount, hashIds, blockTokens: idTokens = 512 } = prompt;
    const slots = Math.ceil(tokenCount / this.#blockTokens);
    // One whose answer does not fit is refused, too.
    if (Math.ceil((tokenCount + maxTokens - 1) / this.#blockTokens) > this.#slotCount) return 0;
    const names = Array.from({ length: Math.floor(tokenCount / this.#blockTokens) }, (_, block) => {
      const ids = hashIds.slice(0, Math.ceil(((block + 1) * this.#blockTokens) / idTokens));
      return `${ids.join(',')}/${block}`;
    });
    // At least one token is computed.
    const most = Math.floor((tokenCount - 1) / this.#blockTokens);
    const missing = names.findIndex((name) => !this.#blocks.has(name));
    const found = Math.min(most, missing < 0 ? names.length : missing);
    for (const name of names.slice(0, found)) this.#blocks.delete(name);
    for (const oldest of this.#blocks) {
      if (this.#blocks.size + slots <= this.#slotCount) break;
      this.#blocks.delete(oldest);
    }
    for (const name of names.toReversed()) {
      this.#blocks.delete(name);
      this.#blocks.add(name);
    }
    return found * this.#blockTokens;
  }
}
