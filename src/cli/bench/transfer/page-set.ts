import type { PageTable } from '../../../mapping/page-table.js';
import { SeededRandom, shuffle } from '../seeded-random.js';

/** Bytes of one element of the pages' only view. */
const ELEMENT_BYTES = 2;

/** Pools have this many times the pages that are moved, so that no two of them need to be neighbours. */
export const POOL_OVER_MOVED = 2;

/** Pages of one size in one pool: one layer, one token a page. */
export function pageTableOf(base: number, pageBytes: number, slotCount: number): PageTable {
  return {
    pools: [{ base, memory: { kind: 'host' }, slotBytes: pageBytes, slotStride: pageBytes, slotCount }],
    layerGroups: [
      {
        kind: 'latent',
        windowSize: null,
        tokensPerBlock: 1,
        slotCount,
        views: [
          {
            role: 'latent',
            dtype: 'bfloat16',
            layout: 'REPLICATED',
            headsPerRank: 1,
            headDim: pageBytes / ELEMENT_BYTES,
            layers: [{ layer: 0, pool: 0, offset: 0, bytes: pageBytes }],
          },
        ],
      },
    ],
    aux: null,
  };
}

/** `count` different slots of a pool of `POOL_OVER_MOVED` times as many, in random order. */
export function scatteredSlots(count: number, seed: bigint): Int32Array {
  const all = Int32Array.from({ length: count * POOL_OVER_MOVED }, (_, slot) => slot);
  return shuffle(all, new SeededRandom(seed)).slice(0, count);
}

/** Source slot, destination slot, ... ascending by source slot, as plans order them. */
export function sortedPairs(source: Int32Array, destination: Int32Array): Int32Array {
  const order = Uint32Array.from(source, (_, index) => index).sort((a, b) => (source[a] ?? 0) - (source[b] ?? 0));
  const pairs = new Int32Array(2 * order.length);
  order.forEach((index, place) => {
    pairs[2 * place] = source[index] ?? 0;
    pairs[2 * place + 1] = destination[index] ?? 0;
  });
  return pairs;
}

/** One token per page, so that every page has its own content. */
export function pageTokens(count: number, seed: number): Uint32Array {
  return Uint32Array.from({ length: count }, (_, page) => page + seed);
}
