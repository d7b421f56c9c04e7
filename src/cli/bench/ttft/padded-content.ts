import type { ContentJob, PageContent, VerifyResult } from '../../../agent/page-content.js';
import { paddedToBlock } from '../prompt-source.js';

/**
 * Writes the rest of a prompt's last page as well.
 * Why: whole pages are moved. With known content up to the last byte every byte that was sent can be verified.
 */
export class PaddedContent implements PageContent {
  readonly #inner: PageContent;
  readonly #tokensPerBlock: number;
  /** All ranks of a side have the same prompt in hand. */
  readonly #seeds = new WeakMap<Uint32Array, BigUint64Array>();

  constructor(inner: PageContent, tokensPerBlock: number) {
    this.#inner = inner;
    this.#tokensPerBlock = tokensPerBlock;
  }

  /** One seed per token of the prompt's pages: the prompt's, then the padding's. */
  chainTokenSeeds(tokens: Uint32Array): BigUint64Array {
    const known = this.#seeds.get(tokens);
    if (known !== undefined) return known;
    const seeds = this.#inner.chainTokenSeeds(paddedToBlock(tokens, this.#tokensPerBlock));
    this.#seeds.set(tokens, seeds);
    return seeds;
  }

  /** A job that ends inside the last page is extended to its end; what a later chunk computes there overwrites the padding. */
  fill(job: ContentJob): Promise<{ readonly bytesWritten: number }> {
    return this.#inner.fill(this.padded(job));
  }

  /** The job as `fill` does it. */
  padded(job: ContentJob): ContentJob {
    // A state has no page to fill up: it has seen what it has seen.
    if (job.table.layerGroups[job.group]?.kind === 'state') return job;
    const lastPageBegin = job.tokenSeeds.length - this.#tokensPerBlock;
    return job.tokenEnd > lastPageBegin ? { ...job, tokenEnd: job.tokenSeeds.length } : job;
  }

  verify(job: ContentJob): Promise<VerifyResult> {
    return this.#inner.verify(job);
  }
}
