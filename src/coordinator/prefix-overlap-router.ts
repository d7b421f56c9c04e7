import { chainBlockHashes } from '../cache/block-hash.js';
import { LeastLoadedRouter } from './least-loaded-router.js';
import type { RouteCandidate, RoutedPrompt, Router } from './router.js';

/** How a prefix-overlap router weighs caches against load. */
export interface PrefixOverlapOptions {
  readonly tokensPerBlock: number;
  /** Blocks remembered per server, the newest. Default 65536: about what a server's pool holds. */
  readonly rememberedBlocks?: number;
  /**
   * Tokens that a busier server may be ahead for each cached token. Default 1: a cached token saves one token of prefill, and a token in
   * work before it costs one.
   */
  readonly loadWeight?: number;
}

interface Remembered {
  readonly incarnation: bigint;
  /** Block hash, least recently sent first. */
  readonly hashes: Set<string>;
}

/**
 * Role: sends a prompt where most of it is cached, unless that server is too far behind. Guesses the caches from what was sent there: a
 * server tells nobody what it evicted, so that the list is bounded by what it could hold.
 */
export class PrefixOverlapRouter implements Router {
  readonly #tokensPerBlock: number;
  readonly #rememberedBlocks: number;
  readonly #loadWeight: number;
  readonly #sent = new Map<string, Remembered>();
  readonly #equals = new LeastLoadedRouter();

  constructor(options: PrefixOverlapOptions) {
    this.#tokensPerBlock = options.tokensPerBlock;
    this.#rememberedBlocks = options.rememberedBlocks ?? 65536;
    this.#loadWeight = options.loadWeight ?? 1;
  }

  choose(candidates: readonly RouteCandidate[], { promptTokens }: RoutedPrompt): RouteCandidate {
    const hashes = chainBlockHashes(promptTokens, this.#tokensPerBlock);
    const scores = candidates.map((one) => this.#cachedTokens(one, hashes) - this.#loadWeight * one.liveTokens);
    const best = Math.max(...scores);
    const chosen = this.#equals.choose(candidates.filter((_, index) => scores[index] === best));
    this.#remember(chosen, hashes);
    return chosen;
  }

  forget(name: string): void {
    this.#sent.delete(name);
    this.#equals.forget(name);
  }

  #cachedTokens({ name, incarnation }: RouteCandidate, hashes: readonly string[]): number {
    const sent = this.#sent.get(name);
    if (sent === undefined || sent.incarnation !== incarnation) return 0;
    // A chain: the first block that is missing ends the prefix.
    const missing = hashes.findIndex((hash) => !sent.hashes.has(hash));
    return (missing < 0 ? hashes.length : missing) * this.#tokensPerBlock;
  }

  #remember({ name, incarnation }: RouteCandidate, hashes: readonly string[]): void {
    let sent = this.#sent.get(name);
    if (sent === undefined || sent.incarnation !== incarnation) {
      sent = { incarnation, hashes: new Set() };
      this.#sent.set(name, sent);
    }
    // Backwards, so that a prefix outlives what follows it.
    for (const hash of hashes.toReversed()) {
      sent.hashes.delete(hash);
      sent.hashes.add(hash);
    }
    for (const oldest of sent.hashes) {
      if (sent.hashes.size <= this.#rememberedBlocks) break;
      sent.hashes.delete(oldest);
    }
  }
}
