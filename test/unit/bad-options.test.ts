import { describe, expect, it } from 'vitest';
import { GrowingCacheManager, type LayerGroup, ReservingCacheManager } from '../../src/cache/index.js';
import { ArgumentError } from '../../src/errors.js';
import { pairRuns, projectBlocksToGlobalChunk, sourceRange } from '../../src/geometry/index.js';
import * as root from '../../src/index.js';
import {
  buildPageTable,
  mapPeer,
  mapRanks,
  type PageTableSpec,
  peersOf,
  SINGLE_RANK,
} from '../../src/mapping/index.js';

const GROUP: LayerGroup = { kind: 'attention', windowSize: null, tokensPerBlock: 4, layers: [0, 1], slotCount: 8 };
const SPEC: PageTableSpec = {
  groups: [GROUP],
  kvHeads: 1,
  headDim: 4,
  dtype: 'int8',
  poolLayout: 'per-block',
  blockLayout: 'HND',
};

describe('values that the types rule out', () => {
  it.each<[Readonly<Record<string, unknown>>, RegExp]>([
    [{ layerGroups: null }, /layerGroups/],
    [{ layerGroups: [null] }, /layerGroups\[0\] must be a layer group, got null/],
    [{ layerGroups: [{ ...GROUP, kind: 'bogus' }] }, /layerGroups\[0\]\.kind must be .* got bogus/],
    [{ seed: Number.NaN }, /seed must be an integer/],
    [{ seed: 0.5 }, /seed must be an integer/],
    [{ seed: null }, /seed must be an integer/],
  ])('cache managers refuse %j', (over, message) => {
    for (const Manager of [GrowingCacheManager, ReservingCacheManager]) {
      const make = () => new Manager({ tokensPerBlock: 4, layerGroups: [GROUP], ...over });
      expect(make).toThrow(ArgumentError);
      expect(make).toThrow(message);
    }
  });

  it.each<[Readonly<Record<string, unknown>>, RegExp]>([
    [{ poolLayout: 'bogus' }, /poolLayout must be per-layer or per-block, got bogus/],
    [{ blockLayout: 'REPLICATED' }, /blockLayout must be HND or NHD, got REPLICATED/],
    [{ groups: null }, /groups/],
    [{ groups: [{ ...GROUP, kind: 'bogus' }] }, /groups\[0\]\.kind/],
    [{ groups: [{ ...GROUP, layers: null }] }, /groups\[0\]\.layers must be a list/],
    [{ groups: [GROUP, { ...GROUP, layers: [2, 1] }] }, /groups\[1\]\.layers: layer 1 is in groups\[0\] already/],
  ])('buildPageTable refuses %j', (over, message) => {
    const build = () => buildPageTable({ ...SPEC, ...over });
    expect(build).toThrow(ArgumentError);
    expect(build).toThrow(message);
  });

  it('a layer may have blocks and a state', () => {
    const state = {
      conv: { dtype: 'int8', width: 3, sections: [{ channels: 4, unitChannels: 2 }] },
      ssm: { dtype: 'int8', heads: 2, headElements: 6 },
    };
    const groups = [GROUP, { ...GROUP, kind: 'state' as const }];
    expect(buildPageTable({ ...SPEC, groups, state }).table.layerGroups).toHaveLength(2);
  });

  it('mapPeer takes valid page tables only, peersOf places only', () => {
    const { table } = buildPageTable(SPEC);
    const moved = structuredClone(table) as unknown as { layerGroups: { views: { layers: { offset: number }[] }[] }[] };
    const [entry] = moved.layerGroups[0]?.views[0]?.layers ?? [];
    if (entry === undefined) throw new Error('no entry');
    entry.offset = -64;
    for (const bad of [null, {}, moved]) {
      expect(() => mapPeer(table, bad as typeof table)).toThrow(ArgumentError);
      expect(() => mapPeer(bad as typeof table, table)).toThrow(ArgumentError);
    }
    const place = { ...SINGLE_RANK, layersPerStage: [2] };
    for (const bad of [null, undefined, 5, {}, { ...place, layersPerStage: null }]) {
      expect(() => peersOf(bad as typeof place, place, 0)).toThrow(ArgumentError);
      expect(() => peersOf(place, bad as typeof place, 0)).toThrow(ArgumentError);
      expect(() => mapRanks({ ...place, pageTable: table }, bad as never)).toThrow(ArgumentError);
    }
  });

  it('geometry: a list without a length, a state group with a bad window', () => {
    for (const length of [Number.NaN, -1, null, undefined, 1.5])
      expect(() => projectBlocksToGlobalChunk({ length } as ArrayLike<number>, 1, 0, 1)).toThrow(RangeError);
    for (const windowSize of [0, -1, Number.NaN, 1.5, undefined])
      for (const isLast of [true, false])
        expect(() =>
          sourceRange(
            { beginBlock: 0, endBlock: 1, isLast },
            { kind: 'state', windowSize: windowSize as number },
            4,
            4,
          ),
        ).toThrow(RangeError);
    const run = { begin: 0, slots: Int32Array.of(1) };
    expect([...root.pairRuns(root.joinRuns(run, { begin: 2, slots: Int32Array.of(3) }), run)]).toEqual([
      ...pairRuns(run, run),
    ]);
  });
});
