import { BlockHashChain } from '../cache/block-hash.js';
import type { CachePrompt } from '../cache/kv-cache-manager.js';
import type { TurnBudget } from '../turn-budget.js';
import type { LlmRequest } from './request.js';

/** Blocks that are named between two looks at the clock: some 50 us. */
const BLOCKS_PER_LOOK = 32;

/** What names the content of a prompt for the cache manager. */
export type PromptContent = Pick<CachePrompt, 'blockHashes' | 'tokens'>;

export interface PromptContentsOptions {
  readonly tokensPerBlock: number;
  readonly turns: TurnBudget;
  /** See `ExecutorOptions.blockHashesOf`. */
  readonly blockHashesOf: ((request: LlmRequest) => CachePrompt['blockHashes']) | null;
}

/**
 * Role: names the content of prompts before they ask for blocks, once each.
 * Why apart from the admission: it costs time with the length of the prompt, so that a long one must be named in portions.
 */
export class PromptContents {
  readonly #o: PromptContentsOptions;
  readonly #chains = new WeakMap<LlmRequest, BlockHashChain>();

  constructor(options: PromptContentsOptions) {
    this.#o = options;
  }

  /** Null: it can be taken at once. */
  prepare(request: LlmRequest): Promise<void> | null {
    if (this.#o.blockHashesOf !== null) return null;
    const chain = this.#chainOf(request);
    return chain.advance(BLOCKS_PER_LOOK) ? null : this.#complete(chain);
  }

  take(request: LlmRequest): PromptContent {
    // Hashes of the caller's may cover more than the tokens, so that tokens alone do not name the content.
    if (this.#o.blockHashesOf !== null) return { blockHashes: this.#o.blockHashesOf(request) };
    const chain = this.#chainOf(request);
    chain.advance(Infinity);
    return { blockHashes: chain.hashes, tokens: request.promptTokens };
  }

  /** The request is in the cache, which knows them from now on. */
  drop(request: LlmRequest): void {
    this.#chains.delete(request);
  }

  async #complete(chain: BlockHashChain): Promise<void> {
    const { turns } = this.#o;
    while (!chain.advance(BLOCKS_PER_LOOK)) if (turns.isSpent()) await turns.nextTurn();
  }

  #chainOf(request: LlmRequest): BlockHashChain {
    const known = this.#chains.get(request);
    if (known !== undefined) return known;
    const chain = new BlockHashChain(request.promptTokens, this.#o.tokensPerBlock);
    this.#chains.set(request, chain);
    return chain;
  }
}
