import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import {
  earlyPrefixSlice,
  prefillSlice,
  projectBlocksToGlobalChunk,
  sourceRange,
  staleBlockEnd,
} from '../../src/geometry/index.js';

interface SliceVector {
  name: string;
  tokensPerBlock: number;
  promptLen: number;
  prepopulatedLen: number;
  early: boolean;
  windowSize: number | null;
  chunks: [number, number][];
  expect: { earlySlice: unknown; slices: unknown[]; staleBlockEnd: number; sourceRanges: unknown[] };
}

interface ProjectionVector {
  blockIds: number[];
  residentBlockEnd: number;
  chunkBlockOffset: number;
  chunkBlockCount: number;
  expect: number[];
}

const vectors = JSON.parse(readFileSync(new URL('../data/geometry.json', import.meta.url), 'utf8')) as {
  slices: SliceVector[];
  projections: ProjectionVector[];
};

describe('geometry vectors', () => {
  it('come in full', () => {
    expect(vectors.slices.length).toBe(157);
    expect(vectors.projections.length).toBe(150);
  });

  it.each(vectors.slices.map((vector) => [vector.name, vector] as const))('slices: %s', (_name, vector) => {
    const { tokensPerBlock, promptLen, prepopulatedLen, windowSize } = vector;
    const earlySlice = earlyPrefixSlice({
      prepopulatedLen,
      tokensPerBlock,
      isFirstChunk: true,
      cancelled: false,
      pipelined: vector.early,
    });
    const slices = vector.chunks.map(([chunkStart, chunkEnd]) =>
      prefillSlice({
        chunkStart,
        chunkEnd,
        promptLen,
        prepopulatedLen,
        remaining: promptLen - chunkEnd,
        tokensPerBlock,
        prefixSent: earlySlice !== null,
      }),
    );
    const group = { kind: 'attention', windowSize } as const;
    const sourceRanges = slices.map((slice) => slice && sourceRange(slice, group, promptLen, tokensPerBlock));
    expect({
      earlySlice,
      slices,
      staleBlockEnd: staleBlockEnd(promptLen, windowSize, tokensPerBlock),
      sourceRanges,
    }).toEqual(vector.expect);
  });

  it.each(vectors.projections.map((vector, index) => [index, vector] as const))('projection %i', (_index, vector) => {
    const projected = projectBlocksToGlobalChunk(
      vector.blockIds,
      vector.residentBlockEnd,
      vector.chunkBlockOffset,
      vector.chunkBlockCount,
    );
    expect(projected).toBeInstanceOf(Int32Array);
    expect([...projected]).toEqual(vector.expect);
  });
});
