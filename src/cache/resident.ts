import type { KvTransceiverError } from '../errors.js';
import type { BlockTable } from './block-table.js';
import type { CachePrompt } from './kv-cache-manager.js';
import type { TakenPrefix } from './prefix-reuse.js';

/** One request in the cache. */
export class Resident {
  readonly prompt: CachePrompt;
  /** One per layer group. */
  readonly tables: readonly BlockTable[];
  /** Batch of moves that brings the hit; 0 = none. */
  readonly contentAfter: number;
  /** Tokens `[0, computedEnd)` are final. */
  computedEnd: number;
  /** Blocks `[0, publishedEnd)` were published, or were found. */
  publishedEnd: number;
  /** Blocks that were asked for; what the tables hold beyond is speculative. */
  endBlock: number;
  /** Batch of moves after which all its pages may be read and written; 0 = now. */
  readyAfter: number;
  /** Tokens `[begin, end)` are computed elsewhere and arrive as a transfer sends them: without what lies below the window at `end`. */
  received: { readonly begin: number; readonly end: number } | null = null;
  /** Why its pages will never hold what they should. */
  failure: KvTransceiverError | null = null;

  constructor(prompt: CachePrompt, taken: TakenPrefix, tokensPerBlock: number) {
    this.prompt = prompt;
    this.tables = taken.tables;
    this.contentAfter = taken.contentAfter;
    this.readyAfter = taken.contentAfter;
    this.computedEnd = taken.prepopulatedLen;
    this.publishedEnd = taken.blocks;
    this.endBlock = Math.ceil(taken.prepopulatedLen / tokensPerBlock);
  }
}
