import { describe, expect, it } from 'vitest';
import { ArgumentError, CompatibilityError } from '../../src/errors.js';
import {
  AUX_GROUP,
  buildPageTable,
  type Fragment,
  type GroupSpec,
  mapPeer,
  type PageTable,
  type PageTableSpec,
  planAux,
  planSlice,
  SINGLE_RANK,
  withAux,
} from '../../src/mapping/index.js';

function group(over: Partial<GroupSpec> = {}): GroupSpec {
  return { kind: 'attention', windowSize: null, tokensPerBlock: 4, layers: [0, 1, 2], slotCount: 64, ...over };
}

function table(over: Partial<PageTableSpec> = {}): PageTable {
  const spec: PageTableSpec = {
    groups: [group()],
    kvHeads: 2,
    headDim: 8,
    dtype: 'bfloat16',
    poolLayout: 'per-layer',
    blockLayout: 'HND',
    ...over,
  };
  return buildPageTable(spec).table;
}

// K or V of one layer and block: 2 heads x 8 elements x 4 tokens x 2 bytes.
const HALF = 128;
const run = (begin: number, ...slots: number[]) => ({ begin, slots: Int32Array.from(slots) });
const plain = { count: 1, srcStride: 0, dstStride: 0 };

function fragmentsOf(source: PageTable, destination: PageTable): readonly Fragment[] {
  return mapPeer(source, destination).groups.flatMap(({ fragments }) => fragments);
}

describe('mapPeer: fragments', () => {
  it.each(['HND', 'NHD'] as const)(
    'identical %s pools per layer: K and V of a layer are one fragment',
    (blockLayout) => {
      const same = table({ blockLayout });
      expect(fragmentsOf(same, same)).toEqual(
        [0, 1, 2].map((pool) => ({
          srcPool: pool,
          srcOffset: 0,
          dstPool: pool,
          dstOffset: 0,
          bytes: 2 * HALF,
          ...plain,
        })),
      );
    },
  );

  it('identical pools per block: the whole slot is one fragment', () => {
    const same = table({ poolLayout: 'per-block' });
    expect(fragmentsOf(same, same)).toEqual([
      { srcPool: 0, srcOffset: 0, dstPool: 0, dstOffset: 0, bytes: 6 * HALF, ...plain },
    ]);
  });

  it('pools per layer into pools per block: one fragment per layer', () => {
    expect(fragmentsOf(table(), table({ poolLayout: 'per-block' }))).toEqual(
      [0, 1, 2].map((layer) => ({
        srcPool: layer,
        srcOffset: 0,
        dstPool: 0,
        dstOffset: layer * 2 * HALF,
        bytes: 2 * HALF,
        ...plain,
      })),
    );
  });

  it('meets layers by global id, and merges only what touches on both sides', () => {
    const source = table({ groups: [group({ layers: [0, 1, 2, 3] })], poolLayout: 'per-block' });
    const tail = table({ groups: [group({ layers: [2, 3, 4] })], poolLayout: 'per-block' });
    expect(fragmentsOf(source, tail)).toEqual([
      { srcPool: 0, srcOffset: 4 * HALF, dstPool: 0, dstOffset: 0, bytes: 4 * HALF, ...plain },
    ]);
    const gap = table({ groups: [group({ layers: [1, 3] })], poolLayout: 'per-block' });
    expect(fragmentsOf(source, gap)).toEqual([
      { srcPool: 0, srcOffset: 2 * HALF, dstPool: 0, dstOffset: 0, bytes: 2 * HALF, ...plain },
      { srcPool: 0, srcOffset: 6 * HALF, dstPool: 0, dstOffset: 2 * HALF, bytes: 2 * HALF, ...plain },
    ]);
    expect(fragmentsOf(source, table({ groups: [group({ layers: [7] })] }))).toEqual([]);
  });

  it('does not merge across pools, however the offsets look', () => {
    const source = table({ groups: [group({ layers: [0] })] });
    const [pool, view] = [source.pools[0], source.layerGroups[0]?.views[1]];
    if (pool === undefined || view === undefined) throw new Error('no pool or view');
    const layers = view.layers.map((entry) => ({ ...entry, pool: 1 }));
    const views = [...(source.layerGroups[0]?.views.slice(0, 1) ?? []), { ...view, layers }];
    const split = { ...source, pools: [pool, { ...pool, base: 4096 * 8 }], layerGroups: [{ ...group(), views }] };
    const pieces = [0, HALF].map((offset, index) => ({ srcOffset: offset, dstOffset: offset, index }));
    expect(fragmentsOf(source, split)).toEqual(
      pieces.map(({ index, ...at }) => ({ ...at, srcPool: 0, dstPool: index, bytes: HALF, ...plain })),
    );
    expect(fragmentsOf(split, source)).toEqual(
      pieces.map(({ index, ...at }) => ({ ...at, srcPool: index, dstPool: 0, bytes: HALF, ...plain })),
    );
  });

  it('replicated latent moves whole', () => {
    const mla = table({ groups: [group({ kind: 'latent' })], latentDim: 36, poolLayout: 'per-block' });
    expect(fragmentsOf(mla, mla)).toEqual([
      { srcPool: 0, srcOffset: 0, dstPool: 0, dstOffset: 0, bytes: 3 * 36 * 4 * 2, ...plain },
    ]);
  });

  it.each([
    [{ dtype: 'float16' }, 'layerGroups[0].key.dtype'],
    [{ headDim: 16 }, 'layerGroups[0].key.headDim'],
    [{ kvHeads: 4 }, 'layerGroups[0].key.headsPerRank'],
    [{ groups: [group({ tokensPerBlock: 6 })] }, 'layerGroups[0].tokensPerBlock'],
    [{ groups: [group({ windowSize: 8 })] }, 'layerGroups[0].windowSize'],
    [{ groups: [group({ kind: 'latent' })], latentDim: 8 }, 'layerGroups[0].kind'],
  ] as [Partial<PageTableSpec>, string][])('never plans a wrong transfer: %j', (over, field) => {
    expect(() => fragmentsOf(table(), table(over))).toThrow(CompatibilityError);
    expect(() => fragmentsOf(table(), table(over))).toThrow(field);
    expect(() => mapPeer(table(over), table())).toThrow(CompatibilityError);
  });

  it('groups meet by the layers they hold, in canonical order', () => {
    const cut = table({ groups: [group({ layers: [2] }), group({ layers: [0, 1] })] });
    const met = mapPeer(table(), cut).groups.map(({ group: index, peerGroup, fragments }) => [
      index,
      peerGroup,
      fragments.map(({ srcPool, dstPool }) => [srcPool, dstPool]),
    ]);
    expect(met).toEqual([
      [0, 0, [[2, 0]]],
      [
        0,
        1,
        [
          [0, 1],
          [1, 2],
        ],
      ],
    ]);
    expect(mapPeer(table(), table({ groups: [group({ layers: [7] })] })).groups).toEqual([]);
  });
});

describe('planSlice', () => {
  const twoGroups = table({ groups: [group(), group({ windowSize: 8, layers: [3], slotCount: 16 })] });
  const mapping = mapPeer(twoGroups, twoGroups);

  it('pairs by ordinal, ascending by source slot, with exact counts', () => {
    const plan = planSlice(
      mapping,
      [run(4, 40, 7, 22, 9), run(6, 15, 3)],
      [run(0, 1, 2, 3, 4, 5, 6, -1, 8, 9), run(7, 11, 12)],
    );
    expect(plan.groups.map(({ group: index, slotPairs }) => [index, [...slotPairs]])).toEqual([
      [0, [7, 6, 9, 8, 40, 5]],
      [1, [3, 11]],
    ]);
    expect(plan.groups[0]?.fragments).toBe(mapping.groups[0]?.fragments);
    expect(plan.stats).toEqual({
      pairs: 4,
      fragments: 4,
      bytes: 3 * 3 * 256 + 256,
      descriptors: 10,
      coalescedDescriptors: 10,
      averageDescriptorBytes: 256,
    });
  });

  it('a run of another stride than its rank has is refused', () => {
    const strided = { ...run(0, 1), stride: 2 };
    expect(() => planSlice(mapping, [strided, null], [run(0, 1), null])).toThrow(/source run has stride 2/);
    expect(() => planSlice(mapping, [run(0, 1), null], [strided, null])).toThrow(ArgumentError);
  });

  it('joins neighbours where the fragment fills the stride', () => {
    const plan = planSlice(mapping, [run(0, 10, 11, 12, 14), null], [run(0, 5, 6, 7, 8), null]);
    // Per layer: 10..12 -> 5..7 is one piece, 14 -> 8 is another.
    expect(plan.stats).toMatchObject({
      pairs: 4,
      fragments: 3,
      descriptors: 12,
      coalescedDescriptors: 6,
      bytes: 12 * 256,
    });
    const crossed = planSlice(mapping, [run(0, 10, 11, 12), null], [run(0, 7, 6, 5), null]);
    expect(crossed.stats.coalescedDescriptors).toBe(9);
  });

  it('does not join neighbours when the slot holds more than the fragment', () => {
    const all = table({ poolLayout: 'per-block', groups: [group({ layers: [0, 1, 2, 3] })] });
    const half = table({ poolLayout: 'per-block', groups: [group({ layers: [0, 1] })] });
    const plan = planSlice(mapPeer(all, half), [run(0, 1, 2, 3)], [run(0, 1, 2, 3)]);
    expect(plan.stats).toMatchObject({ descriptors: 3, coalescedDescriptors: 3, averageDescriptorBytes: 4 * HALF });
  });

  it('joins the end of one pool with the start of the next', () => {
    // 16 slots x 256 bytes fill exactly one memory page, so the pools touch.
    const touching = table({ groups: [group({ layers: [0, 1], slotCount: 16 })] });
    const slots = Array.from({ length: 16 }, (_, slot) => slot);
    const plan = planSlice(mapPeer(touching, touching), [run(0, ...slots)], [run(0, ...slots)]);
    expect(plan.stats).toMatchObject({ descriptors: 32, coalescedDescriptors: 1, averageDescriptorBytes: 8192 });
  });

  it('an empty slice is an empty plan', () => {
    const nothing = {
      pairs: 0,
      fragments: 0,
      bytes: 0,
      descriptors: 0,
      coalescedDescriptors: 0,
      averageDescriptorBytes: 0,
    };
    expect(planSlice(mapping, [null, null], [run(0, 1), run(0, 1)])).toEqual({ groups: [], stats: nothing });
    expect(planSlice(mapping, [run(0, 1), null], [run(1, 1), run(0, 1)])).toEqual({ groups: [], stats: nothing });
    expect(planSlice(mapping, [run(0, 1), run(0, 1)], [run(0, -1), null])).toEqual({ groups: [], stats: nothing });
  });

  it('refuses slots that do not exist, and a wrong number of runs', () => {
    expect(() => planSlice(mapping, [run(0, 64), null], [run(0, 1), null])).toThrow(
      /group 0: source slot 64 is outside \[0, 64\)/,
    );
    expect(() => planSlice(mapping, [null, run(0, 1)], [null, run(0, 16)])).toThrow(/group 1: destination slot 16/);
    expect(() => planSlice(mapping, [null, run(0, 1)], [null, run(0, 16)])).toThrow(ArgumentError);
    expect(() => planSlice(mapping, [run(0, -5), null], [run(0, 1), null])).toThrow(RangeError);
    expect(() => planSlice(mapping, [null], [null, null])).toThrow(/1 source runs for 2 layer groups/);
    expect(() => planSlice(mapping, [null, null], [null])).toThrow(/1 destination runs for 2 layer groups/);
  });
});

describe('aux', () => {
  const aux = withAux(table(), { base: 1 << 20, slotBytes: 512, slotCount: 4 });
  const small = withAux(table(), { base: 1 << 20, slotBytes: 256, slotCount: 4 });

  it('moves one slot of one view', () => {
    const plan = planAux(mapPeer(aux, aux), 3, 1);
    expect(plan.groups.map(({ group: index, slotPairs, fragments }) => [index, [...slotPairs], fragments])).toEqual([
      [AUX_GROUP, [3, 1], [{ srcPool: 3, srcOffset: 0, dstPool: 3, dstOffset: 0, bytes: 512, ...plain }]],
    ]);
    expect(plan.stats).toMatchObject({ pairs: 1, fragments: 1, bytes: 512, descriptors: 1, coalescedDescriptors: 1 });
  });

  it('is absent when a side has none, and refused when the slots differ', () => {
    expect(mapPeer(aux, table()).aux).toBeNull();
    expect(() => planAux(mapPeer(table(), aux), 0, 0)).toThrow(/no aux buffer/);
    expect(() => mapPeer(aux, small)).toThrow(CompatibilityError);
  });

  it('is mapped at the rank that sends it, and refused at the others', () => {
    const place = (tpSize: number, tpRank: number) => ({ ...SINGLE_RANK, layersPerStage: [3], tpSize, tpRank });
    const pages = (kvHeads: number) => withAux(table({ kvHeads }), { base: 1 << 20, slotBytes: 512, slotCount: 4 });
    const to = (tpRank: number) => mapPeer(pages(1), pages(2), { source: place(4, tpRank), destination: place(2, 1) });
    expect(planAux(to(2), 3, 1).stats.bytes).toBe(512);
    expect([0, 1, 3].map((tpRank) => to(tpRank).aux)).toEqual([null, null, null]);
    expect(() => planAux(to(3), 3, 1)).toThrow(/another rank sends aux to this peer/);
  });

  it.each([4, -1, 0.5, Number.NaN])('refuses slot %s', (slot) => {
    const mapping = mapPeer(aux, aux);
    expect(() => planAux(mapping, slot, 0)).toThrow(/source slot/);
    expect(() => planAux(mapping, 0, slot)).toThrow(/destination slot/);
  });
});

describe('planSlice: how it is counted and sorted', () => {
  it.each([
    [4, 16],
    [16, 4],
  ])('blocks of %i tokens into %i: the pairs of each part, in both orders, whatever the first block is', (from, to) => {
    const [source, destination] = [from, to].map((tokensPerBlock) =>
      table({ groups: [group({ tokensPerBlock, slotCount: 4096 })] }),
    );
    const mapping = mapPeer(source as PageTable, destination as PageTable);
    // Scattered, over more than one digit of the sort.
    const scattered = (count: number, step: number) =>
      Int32Array.from({ length: count }, (_, i) => (i * step + 5) % 4096);
    const [fineCount, coarseCount] = [1021, 255];
    const [sourceSlots, destinationSlots] =
      from < to
        ? [scattered(fineCount, 1597), scattered(coarseCount, 611)]
        : [scattered(coarseCount, 611), scattered(fineCount, 1597)];
    // The smaller blocks begin inside a larger one.
    const [sourceBegin, destinationBegin] = from < to ? [6, 1] : [1, 6];
    const runs = [
      [{ begin: sourceBegin, slots: sourceSlots }],
      [{ begin: destinationBegin, slots: destinationSlots }],
    ] as const;
    const expected: number[][][] = [[], [], [], []];
    for (let fine = 0; fine < 2048; fine++) {
      const coarse = Math.floor(fine / 4);
      const [at, other] = from < to ? [fine, coarse] : [coarse, fine];
      const pair = [sourceSlots[at - sourceBegin], destinationSlots[other - destinationBegin]];
      if (pair.every((slot) => slot !== undefined)) expected[fine % 4]?.push(pair as number[]);
    }
    const byOrdinal = planSlice(mapping, ...runs, 'ordinal').groups.map(({ slotPairs }) => [...slotPairs]);
    expect(byOrdinal).toEqual(expected.map((pairs) => pairs.flat()));
    const bySlot = planSlice(mapping, ...runs).groups.map(({ slotPairs }) => [...slotPairs]);
    expect(bySlot).toEqual(
      expected.map((pairs) => [...pairs].sort((x, y) => (x[0] as number) - (y[0] as number)).flat()),
    );
  });
});
