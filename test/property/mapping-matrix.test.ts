import { describe, expect, it } from 'vitest';
import { runWorld, type WorldCase, type WorldModel, type WorldServer } from './mapping-world.js';

const TP = [1, 2, 4, 8];
const MODELS: Record<string, WorldModel['attention']> = {
  MHA: { kvHeads: 16 },
  'GQA 8': { kvHeads: 8 },
  // Duplicated from TP4 on.
  'GQA 2': { kvHeads: 2 },
  MLA: 'mla',
};
const SPLITS = {
  equal: [
    [2, 2],
    [2, 2],
  ],
  unequal: [
    [3, 1],
    [1, 2, 1],
  ],
} as const;
const BLOCKS = [
  [16, 64],
  [64, 16],
  [16, 16],
] as const;
const LAYERS = {
  full: ['full', 'full', 'full', 'full'],
  window: ['window', 'full', 'window', 'full'],
  hybrid: ['state', 'full', 'state', 'full'],
} as const;

/** Small and repeatable; which slots a block gets is all that is random here. */
function randomFrom(seed: number): () => number {
  let state = seed >>> 0 || 1;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
}

describe('every byte right, each once, nothing outside', () => {
  let seed = 0;
  for (const [model, attention] of Object.entries(MODELS)) {
    for (const blockLayout of ['HND', 'NHD'] as const) {
      it(`${model}, ${blockLayout}: TP x TP x PP x block sizes x layer kinds`, { timeout: 120_000 }, () => {
        let cases = 0;
        for (const tpContext of TP) {
          for (const tpGeneration of TP) {
            for (const [split, [stagesContext, stagesGeneration]] of Object.entries(SPLITS)) {
              for (const [tokensContext, tokensGeneration] of BLOCKS) {
                for (const [kinds, layers] of Object.entries(LAYERS)) {
                  seed++;
                  // What does not multiply the matrix turns with it: replica election, pool layouts, cached prefixes.
                  const server = (
                    tpSize: number,
                    layersPerStage: readonly number[],
                    tokensPerBlock: number,
                    turn: number,
                  ): WorldServer => ({
                    tpSize,
                    layersPerStage,
                    tokensPerBlock,
                    blockLayout,
                    dpSize: 8,
                    dpRank: (seed + turn) % 8,
                    poolLayout: (seed >> turn) % 2 === 0 ? 'per-layer' : 'per-block',
                  });
                  const world: WorldCase = {
                    model: { attention, layers, windowTokens: 40, headDim: 1 },
                    context: server(tpContext, stagesContext, tokensContext, 0),
                    generation: server(tpGeneration, stagesGeneration, tokensGeneration, 1),
                    promptLen: 133,
                    chunkEnds: [50, 64, 70],
                    cachedTokens: seed % 3 === 0 ? 64 : 0,
                  };
                  const name = `TP${tpContext} -> TP${tpGeneration}, PP ${split}, blocks ${tokensContext} -> ${tokensGeneration}, ${kinds}`;
                  let result: ReturnType<typeof runWorld>;
                  try {
                    result = runWorld(world, randomFrom(seed));
                  } catch (cause) {
                    throw new Error(`${name}: ${cause instanceof Error ? cause.message : String(cause)}`, { cause });
                  }
                  expect(result.bytes).toBeGreaterThan(0);
                  expect(result.plans).toBeGreaterThanOrEqual(result.writers);
                  cases++;
                }
              }
            }
          }
        }
        expect(cases).toBe(16 * 2 * 3 * 3);
      });
    }
  }
});

describe('further shapes', () => {
  const base: WorldCase = {
    model: { attention: { kvHeads: 4 }, layers: ['full', 'window', 'state'], windowTokens: 40, headDim: 2 },
    context: { tpSize: 2, layersPerStage: [3], tokensPerBlock: 16, blockLayout: 'HND', poolLayout: 'per-layer' },
    generation: { tpSize: 2, layersPerStage: [3], tokensPerBlock: 16, blockLayout: 'HND', poolLayout: 'per-block' },
    promptLen: 133,
    chunkEnds: [50, 64, 70],
    cachedTokens: 0,
  };
  const context = (over: Partial<WorldServer>) => ({ ...base.context, ...over });
  const generation = (over: Partial<WorldServer>) => ({ ...base.generation, ...over });
  const dp = { attentionDp: true, dpSize: 2, tpSize: 4, dpRank: 1 };

  it.each<[string, Partial<WorldCase>]>([
    ['HND into NHD', { generation: generation({ blockLayout: 'NHD', tpSize: 4 }) }],
    ['NHD into HND of other blocks', { context: context({ blockLayout: 'NHD', tokensPerBlock: 64, tpSize: 1 }) }],
    ['attention DP on both sides', { context: context(dp), generation: generation({ ...dp, dpRank: 0 }) }],
    [
      'attention DP into TP',
      { context: context({ ...dp, dpSize: 4, dpRank: 3 }), generation: generation({ tpSize: 4 }) },
    ],
    [
      'TP into attention DP',
      { context: context({ tpSize: 4 }), generation: generation({ ...dp, dpSize: 4, dpRank: 2 }) },
    ],
    ['receiver context parallel', { generation: generation({ cpSize: 3 }) }],
    [
      'receiver context parallel, cached prefix',
      { generation: generation({ cpSize: 2, tpSize: 4 }), cachedTokens: 48 },
    ],
    ['sender context parallel', { context: context({ cpSize: 4, tpSize: 1 }) }],
    [
      'sender context parallel, other DP rank',
      { context: context({ cpSize: 4 }), generation: generation({ dpSize: 4, dpRank: 3 }) },
    ],
    ['receiver context parallel of larger blocks', { generation: generation({ cpSize: 2, tokensPerBlock: 32 }) }],
    [
      'receiver context parallel of smaller blocks',
      { context: context({ tokensPerBlock: 64 }), generation: generation({ cpSize: 3 }) },
    ],
    [
      'sender context parallel of smaller blocks',
      { context: context({ cpSize: 2 }), generation: generation({ tokensPerBlock: 64 }) },
    ],
    ['context parallel beyond the blocks', { generation: generation({ cpSize: 16 }) }],
    ['everything cached but the last block', { cachedTokens: 132 }],
    [
      'everything cached but a part of a larger block',
      { generation: generation({ tokensPerBlock: 64 }), cachedTokens: 132 },
    ],
    ['prompt shorter than a block', { promptLen: 5, chunkEnds: [2], generation: generation({ tokensPerBlock: 64 }) }],
    ['prompt shorter than the window', { promptLen: 30, chunkEnds: [] }],
    ['scales next to K and V', { model: { ...base.model, scales: true }, generation: generation({ tpSize: 4 }) }],
    [
      'scales, NHD, other blocks',
      {
        model: { ...base.model, scales: true },
        context: context({ blockLayout: 'NHD', tpSize: 4 }),
        generation: generation({ blockLayout: 'NHD', tpSize: 1, tokensPerBlock: 64 }),
      },
    ],
    [
      'MLA with index keys',
      {
        model: { ...base.model, attention: 'mla', indexKeys: true },
        context: context({ tpSize: 8 }),
        generation: generation({ dpSize: 4, dpRank: 2, tokensPerBlock: 32 }),
      },
    ],
    [
      'three stages into two, one without layers',
      {
        context: context({ layersPerStage: [1, 0, 2] }),
        generation: generation({ layersPerStage: [2, 1] }),
      },
    ],
  ])('%s', (name, over) => {
    for (let seed = 1; seed <= 10; seed++) {
      const result = runWorld({ ...base, ...over }, randomFrom(seed));
      expect(result.bytes, name).toBeGreaterThan(0);
    }
  });
});
