import type { BlockRun } from '../geometry/block-run.js';
import type { PageTable } from '../mapping/page-table.js';

/** Which pages, and what they must hold. */
export interface ContentJob {
  readonly table: PageTable;
  /** Index into `table.layerGroups`. */
  readonly group: number;
  /** Slots of the blocks; HOLE entries are skipped. */
  readonly run: BlockRun;
  /** Prompt tokens `[tokenBegin, tokenEnd)`; only those inside the run's blocks are touched. */
  readonly tokenBegin: number;
  readonly tokenEnd: number;
  /** One 64-bit seed per prompt token, from `chainTokenSeeds`. */
  readonly tokenSeeds: BigUint64Array;
  /** Global index of this rank's first KV head. */
  readonly firstHead: number;
}

/** What a check of page content found. */
export interface VerifyResult {
  readonly bytesChecked: number;
  readonly wrongBytes: number;
  /** Where the first wrong byte is, or null. */
  readonly firstWrong: {
    readonly layer: number;
    readonly role: string;
    readonly head: number;
    readonly token: number;
  } | null;
}

/**
 * Synthetic KV cache content: each byte is a function of (token seed, layer, role, head, position in the head), so that a page in a
 * wrong place, a swapped head or layer, or a page of another prompt is seen. Works on the thread pool, never on the JS thread.
 */
export interface PageContent {
  /** seed[i] depends on tokens[0..i], as real KV does: equal prefixes give equal content. */
  chainTokenSeeds(tokens: Uint32Array): BigUint64Array;
  fill(job: ContentJob): Promise<{ readonly bytesWritten: number }>;
  verify(job: ContentJob): Promise<VerifyResult>;
}
