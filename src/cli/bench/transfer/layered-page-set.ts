import type { PageTable } from '../../../mapping/page-table.js';
import type { Fragment } from '../../../mapping/transfer-plan.js';
import { POOL_OVER_MOVED } from './page-set.js';
import type { PageShape } from './page-shape.js';

/** Blocks of a model with 32 layers, of which the receiver has one of two heads: what a TP split makes of real pages. */
const LAYERS = 32;
const HEADS = 2;
const HEAD = 1;
const TOKENS_PER_BLOCK = 16;
const HEAD_DIM = 128;
const ELEMENT_BYTES = 2;
const ROLES = ['key', 'value'] as const;
/** One head of one layer: what lies together. */
const PIECE_BYTES = TOKENS_PER_BLOCK * HEAD_DIM * ELEMENT_BYTES;

function tableOf(base: number, slotCount: number, heads: number): PageTable {
  const bytes = heads * PIECE_BYTES;
  const slotBytes = LAYERS * ROLES.length * bytes;
  return {
    pools: [{ base, memory: { kind: 'host' }, slotBytes, slotStride: slotBytes, slotCount }],
    layerGroups: [
      {
        kind: 'attention',
        windowSize: null,
        tokensPerBlock: TOKENS_PER_BLOCK,
        slotCount,
        views: ROLES.map((role, index) => ({
          role,
          dtype: 'bfloat16',
          layout: 'HND' as const,
          headsPerRank: heads,
          headDim: HEAD_DIM,
          layers: Array.from({ length: LAYERS }, (_, layer) => {
            return { layer, pool: 0, offset: (layer * ROLES.length + index) * bytes, bytes };
          }),
        })),
      },
    ],
    aux: null,
  };
}

const FRAGMENTS: readonly Fragment[] = Array.from({ length: LAYERS }, (_, layer) => {
  const first = layer * ROLES.length;
  return {
    srcPool: 0,
    srcOffset: (first * HEADS + HEAD) * PIECE_BYTES,
    srcStride: HEADS * PIECE_BYTES,
    dstPool: 0,
    dstOffset: first * PIECE_BYTES,
    dstStride: PIECE_BYTES,
    bytes: PIECE_BYTES,
    count: ROLES.length,
  };
});

/** `totalBytes` in pieces of 4 KiB, 64 of them in each pair of blocks. */
export function layeredShape(totalBytes: number): PageShape {
  const bytesPerPair = LAYERS * ROLES.length * PIECE_BYTES;
  const pairCount = Math.max(1, Math.floor(totalBytes / bytesPerPair));
  const slotCount = pairCount * POOL_OVER_MOVED;
  return {
    label: `layers ${PIECE_BYTES}`,
    kind: 'layers',
    pieceBytes: PIECE_BYTES,
    bytesPerPair,
    pairCount,
    tokensPerPage: TOKENS_PER_BLOCK,
    firstHead: HEAD,
    slotCount,
    fragments: FRAGMENTS,
    source: (base) => tableOf(base, slotCount, HEADS),
    destination: (base) => tableOf(base, slotCount, 1),
  };
}

/** Bytes of the writer's pool for `layeredShape(totalBytes)`. */
export function layeredSourceBytes(totalBytes: number): number {
  const shape = layeredShape(totalBytes);
  return shape.slotCount * shape.bytesPerPair * HEADS;
}
