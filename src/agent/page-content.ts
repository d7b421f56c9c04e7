import type { BlockRun } from '../geometry/block-run.js';
import type { PageTable, ViewRole } from '../mapping/page-table.js';

/** Which pages, and what they must hold. */
export interface ContentJob {
  readonly table: PageTable;
  /** Index into `table.layerGroups`. */
  readonly group: number;
  /** Slots of the blocks; HOLE entries are skipped, and ordinals between those of a run with a stride. */
  readonly run: BlockRun;
  /**
   * Prompt tokens `[tokenBegin, tokenEnd)`; only those inside the run's blocks are touched. Of a state group: the state after
   * `tokenEnd` tokens, whole, whatever `tokenBegin` is.
   */
  readonly tokenBegin: number;
  readonly tokenEnd: number;
  /** One 64-bit seed per prompt token, from `chainTokenSeeds`. */
  readonly tokenSeeds: BigUint64Array;
  /** Global index of this rank's first KV head. */
  readonly firstHead: number;
  /** Global index of this rank's first unit of each section, by role. Needed by views of layout SECTIONED (recurrent state). */
  readonly firstUnits?: Readonly<Partial<Record<ViewRole, readonly number[]>>>;
}

/** What a check of page content found. */
export interface VerifyResult {
  readonly bytesChecked: number;
  readonly wrongBytes: number;
  /** Where the first wrong byte is, or null. */
  readonly firstWrong: {
    readonly layer: number;
    readonly role: string;
    /** Global; of a state the unit. */
    readonly head: number;
    /** Of a state the last token it has seen. */
    readonly token: number;
  } | null;
}

/**
 * Synthetic KV cache content: each byte is a function of (token seed, layer, role, head, position in the head), all of them global, so
 * that a page in a wrong place, a swapped head or layer, or a page of another prompt is seen, however writer and reader split the model.
 * Works on the thread pool, never on the JS thread.
 */
export interface PageContent {
  /** seed[i] depends on tokens[0..i], as real KV does: equal prefixes give equal content. */
  chainTokenSeeds(tokens: Uint32Array): BigUint64Array;
  fill(job: ContentJob): Promise<{ readonly bytesWritten: number }>;
  verify(job: ContentJob): Promise<VerifyResult>;
}
