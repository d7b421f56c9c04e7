import { describe, expect, it } from 'vitest';
import { staleBlockEnd } from '../../src/geometry/index.js';
import {
  auxWriter,
  buildPageTable,
  expectedBytes,
  expectedReceivers,
  expectedWriters,
  kvHeadShard,
  mapRanks,
  ownsAux,
  type PageTable,
  planSlice,
  type RankPlaceInDp,
  SINGLE_RANK,
  writersOfEveryGroup,
} from '../../src/mapping/index.js';

/** The worked examples of the layout and mapping design, by hand: ranks, offsets, expected reports. */

const TOKENS = 32;
const HEAD_DIM = 128;
/** One head of one block, K or V, in bfloat16. */
const HEAD = TOKENS * HEAD_DIM * 2;

type Rank = RankPlaceInDp & { readonly pageTable: PageTable };

interface Split {
  readonly tpSize?: number;
  readonly layersPerStage?: readonly number[];
  readonly cpSize?: number;
  readonly dpSize?: number;
  readonly dpRank?: number;
  readonly attentionDp?: boolean;
  readonly blockLayout?: 'HND' | 'NHD';
}

function rank(kvHeads: number, split: Split, at: { tp?: number; pp?: number; cp?: number } = {}): Rank {
  const { tpSize = 1, layersPerStage = [32], cpSize = 1, blockLayout = 'HND', ...dp } = split;
  const { tp: tpRank = 0, pp: ppRank = 0, cp: cpRank = 0 } = at;
  const place = { ...SINGLE_RANK, ...dp, tpSize, tpRank, cpSize, cpRank, layersPerStage, ppRank };
  const perGroup = place.attentionDp ? tpSize / place.dpSize : tpSize;
  const first = layersPerStage.slice(0, ppRank).reduce((total, layers) => total + layers, 0);
  const { table } = buildPageTable({
    groups: [
      {
        kind: 'attention',
        windowSize: null,
        tokensPerBlock: TOKENS,
        layers: Array.from({ length: layersPerStage[ppRank] as number }, (_, index) => first + index),
        slotCount: 64,
      },
    ],
    kvHeads: kvHeadShard(kvHeads, perGroup, tpRank % perGroup).headsPerRank,
    headDim: HEAD_DIM,
    dtype: 'bfloat16',
    poolLayout: 'per-block',
    blockLayout,
  });
  return { ...place, ppSize: layersPerStage.length, pageTable: table };
}

const fragments = (source: Rank, destination: Rank) => mapRanks(source, destination).groups[0]?.fragments ?? [];
const run = (begin: number, ...slots: number[]) => ({ begin, slots: Int32Array.from(slots) });

describe('8 KV heads, context TP2 -> generation TP4', () => {
  const [context, generation] = [{ tpSize: 2 }, { tpSize: 4 }];

  it('context 0 writes to generation 0 and 1; each generation rank expects 1 report', () => {
    expect(expectedReceivers(rank(8, context, { tp: 0 }), rank(8, generation), 0)).toEqual([0, 1]);
    expect(expectedReceivers(rank(8, context, { tp: 1 }), rank(8, generation), 0)).toEqual([2, 3]);
    for (const tp of [0, 1, 2, 3]) {
      expect(expectedWriters(rank(8, generation, { tp }), rank(8, context), 0)).toEqual([Math.floor(tp / 2)]);
    }
  });

  it('context 0 -> generation 1 reads from the offset of heads 2..3', () => {
    const moves = fragments(rank(8, context, { tp: 0 }), rank(8, generation, { tp: 1 }));
    // One fragment per layer and K or V: four heads a buffer here, two there.
    expect(moves.length).toBe(32 * 2);
    expect(moves[0]).toMatchObject({ srcOffset: 2 * HEAD, dstOffset: 0, bytes: 2 * HEAD, count: 1 });
    expect(moves[1]).toMatchObject({ srcOffset: (4 + 2) * HEAD, dstOffset: 2 * HEAD, bytes: 2 * HEAD, count: 1 });
    expect(moves[63]).toMatchObject({ srcOffset: (63 * 4 + 2) * HEAD, dstOffset: 63 * 2 * HEAD, bytes: 2 * HEAD });
    expect(fragments(rank(8, context, { tp: 0 }), rank(8, generation, { tp: 0 }))[0]).toMatchObject({ srcOffset: 0 });
    expect(fragments(rank(8, context, { tp: 0 }), rank(8, generation, { tp: 2 }))).toEqual([]);
  });

  it('NHD: the same heads token by token', () => {
    const nhd = { blockLayout: 'NHD' } as const;
    const moves = fragments(rank(8, { ...context, ...nhd }), rank(8, { ...generation, ...nhd }, { tp: 1 }));
    const cell = HEAD_DIM * 2;
    expect(moves.length).toBe(32 * 2);
    expect(moves[0]).toMatchObject({
      srcOffset: 2 * cell,
      dstOffset: 0,
      bytes: 2 * cell,
      count: TOKENS,
      srcStride: 4 * cell,
      dstStride: 2 * cell,
    });
  });
});

describe('8 KV heads, TP4 -> TP2', () => {
  const [context, generation] = [{ tpSize: 4 }, { tpSize: 2 }];

  it('generation 0 expects 2 reports, each context rank serves one receiver', () => {
    expect(expectedWriters(rank(8, generation, { tp: 0 }), rank(8, context), 0)).toEqual([0, 1]);
    expect(expectedWriters(rank(8, generation, { tp: 1 }), rank(8, context), 0)).toEqual([2, 3]);
    for (const tp of [0, 1, 2, 3]) {
      expect(expectedReceivers(rank(8, context, { tp }), rank(8, generation), 0)).toEqual([Math.floor(tp / 2)]);
    }
  });

  it('context 1 writes at the offset of its heads', () => {
    const moves = fragments(rank(8, context, { tp: 1 }), rank(8, generation, { tp: 0 }));
    expect(moves[0]).toMatchObject({ srcOffset: 0, dstOffset: 2 * HEAD, bytes: 2 * HEAD, count: 1 });
    expect(fragments(rank(8, context, { tp: 0 }), rank(8, generation, { tp: 0 }))[0]).toMatchObject({ dstOffset: 0 });
  });

  it('aux comes from the first rank of each group', () => {
    const owners = [0, 1, 2, 3].map((tp) =>
      [0, 1].map((peer) => ownsAux(rank(8, context, { tp }), rank(8, generation, { tp: peer }))),
    );
    expect(owners).toEqual([
      [true, false],
      [false, false],
      [false, true],
      [false, false],
    ]);
    expect([0, 1].map((tp) => auxWriter(rank(8, generation, { tp }), rank(8, context), 0))).toEqual([0, 2]);
  });
});

describe('2 KV heads, TP4 (duplicated) -> TP2', () => {
  const context = { tpSize: 4 };
  const generation = (dpRank: number) => ({ tpSize: 2, dpSize: 4, dpRank });
  const writers = (dpRank: number) =>
    [0, 1, 2, 3].filter((tp) =>
      [0, 1].some((peer) => fragments(rank(2, context, { tp }), rank(2, generation(dpRank), { tp: peer })).length > 0),
    );

  it('generation DP 0: contexts 0 and 2 write, 1 and 3 write nothing and still report', () => {
    expect(writers(0)).toEqual([0, 2]);
    expect(expectedWriters(rank(2, generation(0), { tp: 0 }), rank(2, context), 0)).toEqual([0, 1]);
    expect(expectedWriters(rank(2, generation(0), { tp: 1 }), rank(2, context), 0)).toEqual([2, 3]);
    const silent = mapRanks(rank(2, context, { tp: 1 }), rank(2, generation(0), { tp: 0 }));
    expect(planSlice(silent, [run(0, 1, 2)], [run(0, 3, 4)])).toMatchObject({ groups: [], stats: { bytes: 0 } });
    expect(expectedBytes(silent, [run(0, 3, 4)], 64)).toBe(0);
  });

  it('the election turns with the DP rank of the destination', () => {
    expect([1, 2, 3].map(writers)).toEqual([
      [1, 3],
      [0, 2],
      [1, 3],
    ]);
  });

  it('the elected rank writes its one head to where it lies', () => {
    const moves = fragments(rank(2, context, { tp: 2 }), rank(2, generation(0), { tp: 1 }));
    expect(moves).toEqual([
      { srcPool: 0, srcOffset: 0, dstPool: 0, dstOffset: 0, bytes: 64 * HEAD, count: 1, srcStride: 0, dstStride: 0 },
    ]);
  });

  it('an absolute copy on both sides needs no election', () => {
    for (const tp of [0, 1, 2, 3]) expect(fragments(rank(2, context, { tp }), rank(2, context, { tp })).length).toBe(1);
  });
});

describe('PP [16,16] -> PP [32]', () => {
  const stages = { layersPerStage: [16, 16] };
  const layerBytes = 2 * 8 * HEAD;

  it('2 reports; aux from stage 0 only', () => {
    expect(expectedWriters(rank(8, {}), rank(8, stages), 0)).toEqual([0, 1]);
    expect([0, 1].map((pp) => ownsAux(rank(8, stages, { pp }), rank(8, {})))).toEqual([true, false]);
    expect(auxWriter(rank(8, {}), rank(8, stages), 0)).toBe(0);
    // The other way round both receivers get it from the one sender.
    expect([0, 1].map((pp) => ownsAux(rank(8, {}), rank(8, stages, { pp })))).toEqual([true, true]);
  });

  it('each stage moves its 16 layers at a constant destination offset, as one piece', () => {
    const whole = {
      srcPool: 0,
      srcOffset: 0,
      dstPool: 0,
      bytes: 16 * layerBytes,
      count: 1,
      srcStride: 0,
      dstStride: 0,
    };
    expect(fragments(rank(8, stages, { pp: 0 }), rank(8, {}))).toEqual([{ ...whole, dstOffset: 0 }]);
    expect(fragments(rank(8, stages, { pp: 1 }), rank(8, {}))).toEqual([{ ...whole, dstOffset: 16 * layerBytes }]);
  });

  it('each stage is expected to move exactly its part', () => {
    const runs = [run(2, 9, 8, 7)];
    const bytes = [0, 1].map((pp) => expectedBytes(mapRanks(rank(8, stages, { pp }), rank(8, {})), runs, 5 * TOKENS));
    expect(bytes).toEqual([3 * 16 * layerBytes, 3 * 16 * layerBytes]);
  });

  it('unequal splits meet where their layers do', () => {
    const [from, to] = [{ layersPerStage: [20, 12] }, { layersPerStage: [8, 24] }];
    expect(expectedReceivers(rank(8, from, { pp: 0 }), rank(8, to), 0)).toEqual([0, 1]);
    expect(expectedReceivers(rank(8, from, { pp: 1 }), rank(8, to), 0)).toEqual([1]);
    expect(fragments(rank(8, from, { pp: 0 }), rank(8, to, { pp: 1 }))).toMatchObject([
      { srcOffset: 8 * layerBytes, dstOffset: 0, bytes: 12 * layerBytes },
    ]);
    expect(fragments(rank(8, from, { pp: 1 }), rank(8, to, { pp: 1 }))).toMatchObject([
      { srcOffset: 0, dstOffset: 12 * layerBytes, bytes: 12 * layerBytes },
    ]);
    expect([0, 1].map((pp) => ownsAux(rank(8, from, { pp }), rank(8, to, { pp: 1 })))).toEqual([true, false]);
  });
});

describe('context parallel on one side', () => {
  it('receiver rank r of n owns the ordinals r, r + n, ...: a run with stride n', () => {
    const split = { cpSize: 3 };
    expect(expectedReceivers(rank(8, {}), rank(8, split), 0)).toEqual([0, 1, 2]);
    const plans = [0, 1, 2].map((cp) => {
      const mapping = mapRanks(rank(8, {}), rank(8, split, { cp }));
      // Ordinals 2..6 of the sender; the receiver's slots of its own ordinals below 9.
      const plan = planSlice(mapping, [run(2, 12, 13, 14, 15, 16)], [run(cp, 20, 21, 22)]);
      return [...(plan.groups[0]?.slotPairs ?? [])];
    });
    expect(plans).toEqual([
      [13, 21, 16, 22],
      [14, 21],
      [12, 20, 15, 21],
    ]);
  });

  it('flat ranks count context parallel ranks first', () => {
    const split = { tpSize: 2, cpSize: 2, layersPerStage: [16, 16] };
    expect(expectedReceivers(rank(8, { tpSize: 2 }, { tp: 1 }), rank(8, split), 0)).toEqual([2, 3, 6, 7]);
    const writer = { tpSize: 2, cpSize: 2 };
    const owners = [0, 1].map((cp) => ownsAux(rank(8, writer, { tp: 1, cp }), rank(8, { tpSize: 2 }, { tp: 1 })));
    expect(owners).toEqual([true, false]);
  });
});

describe('attention DP', () => {
  const context = { tpSize: 4, dpSize: 2, attentionDp: true };

  it('one group writes; while it is not known every group is asked', () => {
    const generation = rank(8, { tpSize: 2 }, { tp: 1 });
    expect(expectedWriters(generation, rank(8, context), 1)).toEqual([3]);
    expect(writersOfEveryGroup(generation, rank(8, context))).toEqual([[1], [3]]);
    expect(writersOfEveryGroup(generation, rank(8, { tpSize: 2 }))).toEqual([[1]]);
  });

  it('heads are split inside a group', () => {
    const source = rank(8, { ...context, dpRank: 1 }, { tp: 3 });
    expect(fragments(source, rank(8, {}))[0]).toMatchObject({ srcOffset: 0, dstOffset: 4 * HEAD, bytes: 4 * HEAD });
  });
});

describe('unequal block sizes', () => {
  const spec = (tokensPerBlock: number, blockLayout: 'HND' | 'NHD'): Rank => ({
    ...SINGLE_RANK,
    layersPerStage: [1],
    pageTable: buildPageTable({
      groups: [{ kind: 'attention', windowSize: null, tokensPerBlock, layers: [0], slotCount: 64 }],
      kvHeads: 2,
      headDim: 8,
      dtype: 'bfloat16',
      poolLayout: 'per-block',
      blockLayout,
    }).table,
  });

  it('a fragment addresses a part of the larger block; pairs are of the smaller one', () => {
    const mapping = mapRanks(spec(16, 'HND'), spec(64, 'HND'));
    expect(mapping.groups.map(({ part }) => part)).toEqual([0, 1, 2, 3]);
    // 16 tokens of a head are contiguous on both sides; the next head is 64 tokens further at the receiver.
    expect(mapping.groups[3]?.fragments[0]).toEqual({
      srcPool: 0,
      srcOffset: 0,
      dstPool: 0,
      dstOffset: 48 * 16,
      bytes: 256,
      count: 2,
      srcStride: 256,
      dstStride: 1024,
    });
    const plan = planSlice(mapping, [run(3, 30, 31, 32)], [run(0, 5, 6)]);
    expect(plan.groups.map(({ part, slotPairs }) => [part, [...slotPairs]])).toEqual([
      [0, [31, 6]],
      [1, [32, 6]],
      [3, [30, 5]],
    ]);
  });

  it('NHD: a part is one piece', () => {
    const [large, small] = [spec(64, 'NHD'), spec(16, 'NHD')];
    expect(mapRanks(large, small).groups[2]?.fragments[1]).toMatchObject({
      srcOffset: 2 * 64 * 16 + 32 * 2 * 16,
      dstOffset: 512,
      bytes: 512,
      count: 1,
    });
  });
});

it('window: a prompt of exactly 16 blocks and a window of 4 blocks keeps [12, 16)', () => {
  expect(staleBlockEnd(16 * TOKENS, 4 * TOKENS, TOKENS)).toBe(12);
});

describe('both sides derive the same plan in canonical order', () => {
  it('the receiver needs only the ordinals', () => {
    const mapping = mapRanks(rank(8, { tpSize: 4 }, { tp: 1 }), rank(8, { tpSize: 2 }, { tp: 0 }));
    const wanted = [run(0, 9, -1, 7, 30, 5)];
    const sender = planSlice(mapping, [run(1, 40, 3, 22, 8)], wanted, 'ordinal');
    const receiver = planSlice(mapping, [run(1, 0, 1, 2, 3)], wanted, 'ordinal');
    const destinations = (plan: typeof sender) =>
      plan.groups.map(({ group, peerGroup, part, fragments: moves, slotPairs }) => [
        [group, peerGroup, part],
        moves.map(({ dstOffset, bytes, count }) => [dstOffset, bytes, count]),
        [...slotPairs.filter((_, index) => index % 2 === 1)],
      ]);
    expect(destinations(sender)).toEqual(destinations(receiver));
    expect([...(sender.groups[0]?.slotPairs ?? [])]).toEqual([3, 7, 22, 30, 8, 5]);
    expect(sender.stats.bytes).toBe(receiver.stats.bytes);
  });
});
