import type { PageTable } from '../../../mapping/page-table.js';
import type { Fragment } from '../../../mapping/transfer-plan.js';

/** Pages as a tensor parallel split reads them: the writer has all eight KV heads, the receiver one of them. */
export const SPLIT = { heads: 8, head: 3, tokensPerBlock: 16, headDim: 128, elementBytes: 2 } as const;

/** One head of one block: what lies together on the writer's side. */
export const SPLIT_PIECE_BYTES = SPLIT.tokensPerBlock * SPLIT.headDim * SPLIT.elementBytes;
/** Keys and values. */
const ROLES = ['key', 'value'] as const;
export const SPLIT_BYTES_PER_PAIR = ROLES.length * SPLIT_PIECE_BYTES;
export const SPLIT_SOURCE_BYTES = SPLIT.heads * SPLIT_BYTES_PER_PAIR;

function splitTable(base: number, slotCount: number, heads: number): PageTable {
  const bytes = heads * SPLIT_PIECE_BYTES;
  const slotBytes = ROLES.length * bytes;
  return {
    pools: [{ base, memory: { kind: 'host' }, slotBytes, slotStride: slotBytes, slotCount }],
    layerGroups: [
      {
        kind: 'attention',
        windowSize: null,
        tokensPerBlock: SPLIT.tokensPerBlock,
        slotCount,
        views: ROLES.map((role, index) => ({
          role,
          dtype: 'bfloat16',
          layout: 'HND' as const,
          headsPerRank: heads,
          headDim: SPLIT.headDim,
          layers: [{ layer: 0, pool: 0, offset: index * bytes, bytes }],
        })),
      },
    ],
    aux: null,
  };
}

export function splitSourceTable(base: number, slotCount: number): PageTable {
  return splitTable(base, slotCount, SPLIT.heads);
}

export function splitDestinationTable(base: number, slotCount: number): PageTable {
  return splitTable(base, slotCount, 1);
}

/** The receiver's head out of each page, keys and values. */
export const SPLIT_FRAGMENTS: readonly Fragment[] = [
  {
    srcPool: 0,
    srcOffset: SPLIT.head * SPLIT_PIECE_BYTES,
    srcStride: SPLIT.heads * SPLIT_PIECE_BYTES,
    dstPool: 0,
    dstOffset: 0,
    dstStride: SPLIT_PIECE_BYTES,
    bytes: SPLIT_PIECE_BYTES,
    count: ROLES.length,
  },
];
