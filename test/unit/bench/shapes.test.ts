import { describe, expect, it } from 'vitest';
import { chainBlockHashes } from '../../../src/cache/block-hash.js';
import type { LayerGroup } from '../../../src/cache/kv-cache-manager.js';
import { presetNamed } from '../../../src/cli/bench/presets/index.js';
import { ContextParallelCache } from '../../../src/cli/bench/shape/context-parallel-cache.js';
import { ExpectedTransfer } from '../../../src/cli/bench/shape/expected-transfer.js';
import { rankLayout } from '../../../src/cli/bench/shape/rank-layout.js';
import { type Shapes, shapesOf } from '../../../src/cli/bench/shape/shapes-of.js';
import { describeShape, evenStages, ranksOf } from '../../../src/cli/bench/shape/side-shape.js';
import { TTFT_OPTIONS } from '../../../src/cli/bench/ttft/ttft-options.js';
import { readOptions } from '../../../src/cli/options.js';
import { UsageError } from '../../../src/cli/usage-error.js';
import { flatRank } from '../../../src/mapping/index.js';

function shapes(...args: readonly string[]): Shapes {
  const options = readOptions(TTFT_OPTIONS, args);
  return shapesOf(options, presetNamed(options.model));
}

describe('shapes of the command line', () => {
  it('split a model over stages, tensor and context ranks', () => {
    const { context, generation } = shapes(
      ...['--model', 'llama-3.3-70b', '--context-tp', '2', '--context-pp', '3', '--generation-pp', '50,30'],
      ...['--generation-cp', '2', '--generation-block-size', '64', '--layout', 'nhd', '--generation-layout', 'hnd'],
    );
    expect(describeShape(context)).toBe('TP2 x PP3 (27 + 27 + 26 layers), blocks of 32, NHD');
    expect(describeShape(generation)).toBe('PP2 (50 + 30 layers) x CP2, blocks of 64, HND');
    expect(ranksOf(context).map(flatRank)).toEqual([0, 1, 2, 3, 4, 5]);
    expect(ranksOf(generation).map(flatRank)).toEqual([0, 1, 2, 3]);
    expect(describeShape(shapes().context)).toBe('one rank, blocks of 32, HND');
    expect(evenStages(81, 2)).toEqual([41, 40]);
  });

  it.each([
    [
      ['--context-tp', '3'],
      /^--context-tp: 3 ranks cannot share the 8 KV heads of llama-3.1-8b evenly; choose one of 1, 2, 4, 8, 16, 32$/,
    ],
    [['--generation-tp', '0'], /^--generation-tp: '0' is not a whole number between 1 and 64$/],
    [['--generation-tp', '64'], /^--generation-tp: 64 ranks cannot share the 32 attention heads of llama-3.1-8b/],
    [['--context-pp', '40,41'], /^--context-pp: 40 \+ 41 layers are 81, llama-3.1-8b has 32; make the stages add up/],
    [['--generation-pp', '33'], /^--generation-pp: 33 stages for the 32 layers of llama-3.1-8b; choose at most 32$/],
    [['--context-pp', '16,0,16'], /^--context-pp: '0' is not a whole number of at least 1$/],
    [['--context-pp', '16,'], /^--context-pp: '' is not a whole number of at least 1$/],
    [
      ['--model', 'nemotron-h-8b', '--context-pp', '1,1,50'],
      /^--context-pp: stage 1 \(layers 1 to 1\) .* keeps no cache/,
    ],
    [
      ['--context-cp', '2', '--generation-cp', '2'],
      /^--context-cp, --generation-cp: 2 and 2: .*set the context parallel size of one side to 1$/,
    ],
    [
      ['--block-size', '2', '--generation-block-size', '1k'],
      /^--block-size, --generation-block-size: 2 and 1024: one block is more than 256/,
    ],
    [
      ['--block-size', '32', '--generation-block-size', '48'],
      /^--block-size, --generation-block-size: 32 and 48: neither block size divides/,
    ],
    [
      ['--context-tp', '16', '--context-pp', '8'],
      /^--context-tp, --context-pp, --context-cp: 128 ranks, one process holds at most 64/,
    ],
    [['--layout', 'hdn'], /^--layout: unknown block layout 'hdn'; did you mean/],
  ])('refuse %j', (args, message) => {
    expect(() => shapes(...args)).toThrow(UsageError);
    expect(() => shapes(...args)).toThrow(message);
  });

  it('refuse tensor parallel sizes of which neither divides the other', () => {
    const twelve = {
      ...presetNamed('llama-3.1-8b'),
      attentionHeads: 12,
      cache: { kind: 'attention', kvHeads: 12, headDim: 8 },
    } as const;
    const options = readOptions(TTFT_OPTIONS, ['--context-tp', '3', '--generation-tp', '4']);
    expect(() => shapesOf(options, twelve)).toThrow(
      /^--context-tp, --generation-tp: 3 and 4: neither .* multiple of the other$/,
    );
  });
});

describe('what each rank must move, counted from the shapes', () => {
  const expected = (prompt: number, cached: number, ...args: readonly string[]) => {
    const { context, generation } = shapes(...args);
    const options = readOptions(TTFT_OPTIONS, args);
    return new ExpectedTransfer(context, generation, presetNamed(options.model)).of(prompt, cached);
  };
  const layerBlock = 32 * 2 * 128 * 2;

  it('heads: two writers of four heads, four receivers of two', () => {
    const block = 32 * layerBlock;
    expect(expected(100, 0, '--context-tp', '2', '--generation-tp', '4')).toEqual({
      context: [4 * 4 * block, 4 * 4 * block],
      generation: Array(4).fill(4 * 2 * block),
    });
    expect(expected(100, 64, '--context-tp', '2', '--generation-tp', '4').generation).toEqual(
      Array(4).fill(2 * 2 * block),
    );
  });

  it('layers, blocks, and the copies of duplicated heads', () => {
    const block = 8 * 32 * layerBlock;
    expect(expected(100, 0, '--context-pp', '20,12')).toEqual({
      context: [(4 * block * 20) / 32, (4 * block * 12) / 32],
      generation: [4 * block],
    });
    expect(expected(150, 0, '--context-cp', '2')).toEqual({ context: [3 * block, 2 * block], generation: [5 * block] });
    // Of 16 ranks for 8 heads every second one is elected.
    const { context } = expected(32, 0, '--context-tp', '16');
    expect(context).toEqual(Array.from({ length: 16 }, (_, rank) => (rank % 2 === 0 ? block / 8 : 0)));
  });

  it('blocks of the smaller size at the end, whole states once', () => {
    const block = 8 * 32 * layerBlock;
    expect(expected(70, 0, '--block-size', '16', '--generation-block-size', '64').generation).toEqual([
      (5 * block) / 2,
    ]);
    const hybrid = expected(64, 0, '--model', 'nemotron-h-8b', '--context-tp', '2', '--generation-tp', '2');
    expect(hybrid.context).toEqual(Array(2).fill((64 * 16_384 + 51_806_208) / 2));
    expect(hybrid.generation).toEqual(hybrid.context);
  });
});

describe('layout of one rank', () => {
  it('has the groups of its stage, its heads and its units', () => {
    const { context } = shapes('--model', 'nemotron-h-8b', '--context-tp', '16', '--context-pp', '7,45');
    const ranks = ranksOf(context).map((place) =>
      rankLayout(presetNamed('nemotron-h-8b'), context, place, { blocks: 2, states: 3 }),
    );
    expect(ranks[0]?.stageGroups.map(({ kind, layers, slotCount }) => [kind, layers, slotCount])).toEqual([
      ['state', [0, 2, 4, 6], 3],
    ]);
    expect(ranks[16]?.stageGroups.map(({ kind, layers, slotCount }) => [kind, layers.length, slotCount])).toEqual([
      ['attention', 4, 2],
      ['state', 20, 3],
    ]);
    expect(ranks.slice(0, 4).map(({ content }) => content)).toEqual([
      { firstHead: 0, firstUnits: { conv_state: [0, 0, 0], ssm_state: [0] } },
      { firstHead: 0, firstUnits: { conv_state: [8, 0, 0], ssm_state: [8] } },
      { firstHead: 1, firstUnits: { conv_state: [16, 1, 1], ssm_state: [16] } },
      { firstHead: 1, firstUnits: { conv_state: [24, 1, 1], ssm_state: [24] } },
    ]);
  });
});

describe('cache of a context parallel rank', () => {
  const GROUPS: readonly LayerGroup[] = [
    { kind: 'attention', windowSize: null, tokensPerBlock: 4, layers: [0], slotCount: 12 },
    { kind: 'attention', windowSize: 8, tokensPerBlock: 4, layers: [1], slotCount: 12 },
  ];
  const tokens = Uint32Array.from({ length: 64 }, (_, i) => i);
  const open = (): ContextParallelCache =>
    new ContextParallelCache({ cpSize: 3, tokensPerBlock: 4, layerGroups: GROUPS, seed: 1 });
  const promptOf = (promptLen: number) => ({
    promptLen,
    blockHashes: chainBlockHashes(tokens.subarray(0, promptLen), 4),
  });

  it('keeps one block for each stripe, also of windows, and counts them from 0', () => {
    const cache = open();
    expect(cache.addRequest(1, promptOf(40))).toEqual({ prepopulatedLen: 0 });
    expect(cache.ensureCapacity(1, 13)).toBe(true);
    expect(() => cache.getBlockIdsRange(1, 0, 0, 3)).toThrow(RangeError);
    expect(cache.ensureCapacity(1, 40)).toBe(true);
    cache.markComputed(1, 40);
    for (const group of [0, 1]) {
      const run = cache.getBlockIdsRange(1, group, 0, 4);
      expect([run.begin, new Set(run.slots).size]).toEqual([0, 4]);
    }
    expect(cache.layerGroups.map(({ windowSize, slotCount }) => [windowSize, slotCount])).toEqual([
      [null, 36],
      [8, 36],
    ]);
    cache.pin(1);
    cache.freeRequest(1);
    expect(cache.isPinned(1)).toBe(true);
    cache.unpin(1);
    expect(cache.stats().map(({ free, reusable }) => free + reusable)).toEqual([12, 12]);
  });

  it('finds whole stripes that were computed to their end, and leaves a token', () => {
    const cache = open();
    cache.addRequest(1, promptOf(40));
    cache.ensureCapacity(1, 40);
    cache.markComputed(1, 23);
    cache.addRequest(2, promptOf(40));
    // The stripes are tokens 0 to 11, 12 to 23, 24 to 35; the second lacks a token.
    expect(cache.addRequest(3, promptOf(38)).prepopulatedLen).toBe(12);
    cache.markComputed(1, 40);
    for (const id of [1, 2, 3]) cache.freeRequest(id);
    expect(cache.addRequest(4, promptOf(40)).prepopulatedLen).toBe(36);
    // A prompt that ends with a stripe keeps that stripe to compute.
    expect(cache.addRequest(5, promptOf(36)).prepopulatedLen).toBe(24);
    expect(cache.addRequest(6, promptOf(11)).prepopulatedLen).toBe(0);
    // The fourth stripe has one whole block, which other prompts must not take for theirs.
    expect(cache.addRequest(7, promptOf(48)).prepopulatedLen).toBe(36);
  });

  it('lets nobody find what was received in part', () => {
    const received = open();
    const full = new ContextParallelCache({ cpSize: 3, tokensPerBlock: 4, layerGroups: GROUPS.slice(0, 1), seed: 1 });
    for (const [cache, found] of [
      [received, 0],
      [full, 36],
    ] as const) {
      cache.addRequest(1, { ...promptOf(40), firstToken: 40 });
      expect(cache.ensureCapacity(1, 40, 40)).toBe(true);
      cache.markComputed(1, 40);
      cache.freeRequest(1);
      expect(cache.addRequest(2, promptOf(40)).prepopulatedLen).toBe(found);
    }
  });

  it('says no without taking anything when slots are short', () => {
    const cache = open();
    cache.addRequest(1, promptOf(64));
    expect(cache.ensureCapacity(1, 64)).toBe(true);
    cache.addRequest(2, promptOf(64));
    expect(cache.ensureCapacity(2, 64)).toBe(true);
    const before = cache.stats();
    cache.addRequest(3, promptOf(64));
    expect(cache.ensureCapacity(3, 64)).toBe(false);
    expect(cache.stats()).toEqual(before);
  });
});
