import type { PageTable } from '../../../mapping/page-table.js';
import type { Fragment } from '../../../mapping/transfer-plan.js';
import { POOL_OVER_MOVED, pageTableOf } from './page-set.js';
import {
  SPLIT,
  SPLIT_BYTES_PER_PAIR,
  SPLIT_FRAGMENTS,
  SPLIT_PIECE_BYTES,
  SPLIT_SOURCE_BYTES,
  splitDestinationTable,
  splitSourceTable,
} from './split-page-set.js';

/** What is moved for each pair of slots, and how many pairs pools of one size have room for. */
export interface PageShape {
  readonly label: string;
  readonly kind: 'pages' | 'split' | 'layers';
  /** Of what lies together on both sides. */
  readonly pieceBytes: number;
  readonly bytesPerPair: number;
  readonly pairCount: number;
  readonly tokensPerPage: number;
  readonly firstHead: number;
  readonly slotCount: number;
  readonly fragments: readonly Fragment[];
  readonly source: (base: number) => PageTable;
  readonly destination: (base: number) => PageTable;
}

const WHOLE = { srcPool: 0, srcOffset: 0, srcStride: 0, dstPool: 0, dstOffset: 0, dstStride: 0, count: 1 } as const;

/** Whole pages, as many as `totalBytes` hold. */
export function pageShape(pageBytes: number, totalBytes: number): PageShape {
  const pairCount = Math.floor(totalBytes / pageBytes);
  const slotCount = pairCount * POOL_OVER_MOVED;
  return {
    label: String(pageBytes),
    kind: 'pages',
    pieceBytes: pageBytes,
    bytesPerPair: pageBytes,
    pairCount,
    tokensPerPage: 1,
    firstHead: 0,
    slotCount,
    fragments: [{ ...WHOLE, bytes: pageBytes }],
    source: (base) => pageTableOf(base, pageBytes, slotCount),
    destination: (base) => pageTableOf(base, pageBytes, slotCount),
  };
}

/** Pieces of larger pages: half of the writer's pages, the receiver's share of each. */
export function splitShape(totalBytes: number): PageShape {
  const slotCount = Math.floor((totalBytes * POOL_OVER_MOVED) / SPLIT_SOURCE_BYTES);
  return {
    label: `split ${SPLIT_PIECE_BYTES}`,
    kind: 'split',
    pieceBytes: SPLIT_PIECE_BYTES,
    bytesPerPair: SPLIT_BYTES_PER_PAIR,
    pairCount: slotCount / POOL_OVER_MOVED,
    tokensPerPage: SPLIT.tokensPerBlock,
    firstHead: SPLIT.head,
    slotCount,
    fragments: SPLIT_FRAGMENTS,
    source: (base) => splitSourceTable(base, slotCount),
    destination: (base) => splitDestinationTable(base, slotCount),
  };
}
