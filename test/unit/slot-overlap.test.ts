import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ProtocolError } from '../../src/errors.js';
import {
  buildPageTable,
  explainCompatibility,
  type GroupSpec,
  type PagePool,
  type PageTable,
  type RankInfo,
  SINGLE_RANK,
  validatePageTable,
  withAux,
} from '../../src/mapping/index.js';
import { findSlotOverlap } from '../../src/mapping/slot-overlap.js';

const group = (layers: readonly number[]): GroupSpec => ({
  kind: 'attention',
  windowSize: null,
  tokensPerBlock: 4,
  layers,
  slotCount: 8,
});
const tableOf = (...groups: GroupSpec[]): PageTable =>
  buildPageTable({
    groups,
    kvHeads: 1,
    headDim: 4,
    dtype: 'int8',
    poolLayout: 'per-block',
    blockLayout: 'HND',
  }).table;
// K and V of one layer and block: 16 bytes each.
const HALF = 16;
const HOST = { kind: 'host' } as const;

/** One view per entry, each in a pool of its own. */
interface Piece {
  readonly pool: Omit<PagePool, 'memory'>;
  readonly offset: number;
  readonly bytes: number;
}

function tableFrom(pieces: readonly Piece[]): PageTable {
  return {
    pools: pieces.map(({ pool }) => ({ ...pool, memory: HOST })),
    layerGroups: pieces.map(({ offset, bytes, pool }, index) => ({
      kind: 'attention',
      windowSize: null,
      tokensPerBlock: 1,
      slotCount: pool.slotCount,
      views: [
        {
          role: 'key',
          dtype: 'custom',
          layout: 'HND',
          headsPerRank: 1,
          headDim: 1,
          layers: [{ layer: index, pool: index, offset, bytes }],
        },
      ],
    })),
    aux: null,
  };
}

describe('views over the same bytes', () => {
  const one = tableOf(group([0, 1]));
  const two = tableOf(group([0]), group([1]));

  it('two pools at one address: refused, naming both views', () => {
    const [pool] = one.pools as [PagePool];
    const [{ views, ...rest }] = one.layerGroups as [PageTable['layerGroups'][0]];
    const aliased = (base: number, memory: PagePool['memory'] = HOST): PageTable => ({
      ...one,
      pools: [pool, { ...pool, base, memory }],
      layerGroups: [
        {
          ...rest,
          views: views.map((view) =>
            view.role === 'key'
              ? view
              : { ...view, layers: view.layers.map((entry) => ({ ...entry, pool: 1, offset: entry.offset - HALF })) },
          ),
        },
      ],
    });
    const message = /layerGroups\[0\]\.views\[1\] layer \d overlaps layer \d of layerGroups\[0\]\.views\[0\]/;
    for (const base of [pool.base, pool.base + 1, pool.base + 2 * HALF])
      expect(() => validatePageTable(aliased(base)), String(base)).toThrow(message);
    expect(() => validatePageTable(aliased(0))).toThrow(ProtocolError);
    // K and V that take turns, and the same numbers on another device.
    expect(validatePageTable(aliased(pool.base + HALF)).pools).toHaveLength(2);
    expect(validatePageTable(aliased(pool.base, { kind: 'device', deviceId: 0 })).pools).toHaveLength(2);
  });

  it('two groups at one offset of one pool are refused, at offsets that do not meet they share it', () => {
    const shared = (slotBytes: number, offset: number): PageTable => {
      const [pool] = two.pools as [PagePool];
      const [first, second] = two.layerGroups as [PageTable['layerGroups'][0], PageTable['layerGroups'][0]];
      const moved = second.views.map((view) => ({
        ...view,
        layers: view.layers.map((entry) => ({ ...entry, pool: 0, offset: entry.offset + offset })),
      }));
      return {
        ...two,
        pools: [{ ...pool, slotBytes, slotStride: slotBytes }],
        layerGroups: [first, { ...second, views: moved }],
      };
    };
    expect(() => validatePageTable(shared(2 * HALF, 0))).toThrow(
      /layerGroups\[1\]\.views\[0\] layer 1 overlaps layer 0 of layerGroups\[0\]\.views\[0\]/,
    );
    expect(validatePageTable(shared(4 * HALF, 2 * HALF)).layerGroups).toHaveLength(2);
    const info = (pageTable: PageTable): RankInfo => ({
      ...SINGLE_RANK,
      packageVersion: '0.0.0',
      instanceName: 'one',
      incarnation: 1n,
      rank: 0,
      layersPerStage: [2],
      endpoint: 'tcp://127.0.0.1:1',
      rankEndpoints: ['tcp://127.0.0.1:1'],
      agent: 'host',
      agentMetadata: new Uint8Array(),
      pageTable,
    });
    expect(explainCompatibility(info(two), info(shared(2 * HALF, 0)))).toMatchObject([
      { field: 'pageTable', b: expect.stringContaining('overlaps layer 0'), whichSideToChange: 'b' },
    ]);
  });

  it('aux inside the pages is refused', () => {
    expect(() => withAux(one, { base: (one.pools[0] as PagePool).base + 100, slotBytes: 8, slotCount: 1 })).toThrow(
      /aux\.views\[0\] layer 0 has slots every 8 bytes among those, every 64 bytes, of layer \d of layerGroups\[0\]/,
    );
  });

  it('finds what a byte map finds, wherever pools of one stride lie', () => {
    const piece = fc
      .record({
        base: fc.nat(60),
        slotStride: fc.constant(12),
        slotBytes: fc.integer({ min: 1, max: 12 }),
        slotCount: fc.integer({ min: 1, max: 4 }),
      })
      .chain((pool) =>
        fc
          .tuple(fc.nat(pool.slotBytes - 1), fc.integer({ min: 1, max: pool.slotBytes }))
          .map(([offset, bytes]): Piece => ({ pool, offset, bytes: Math.min(bytes, pool.slotBytes - offset) })),
      );
    let overlapping = 0;
    let apart = 0;
    fc.assert(
      fc.property(fc.array(piece, { minLength: 2, maxLength: 6 }), fc.constantFrom(0, 2 ** 52), (pieces, far) => {
        const taken = new Set<number>();
        let expected = false;
        for (const { pool, offset, bytes } of pieces)
          for (let slot = 0; slot < pool.slotCount; slot++)
            for (let i = 0; i < bytes; i++) {
              const address = pool.base + slot * pool.slotStride + offset + i;
              expected ||= taken.has(address);
              taken.add(address);
            }
        if (expected) overlapping++;
        else apart++;
        const table = tableFrom(pieces.map((of) => ({ ...of, pool: { ...of.pool, base: of.pool.base + far } })));
        expect(findSlotOverlap(table) !== null).toBe(expected);
      }),
      { numRuns: 1500, seed: 4 },
    );
    expect(Math.min(overlapping, apart)).toBeGreaterThan(100);
  });

  it('pools of different strides lie apart; the one that reaches furthest is not always the last', () => {
    const pool = (base: number, slotStride: number, slotCount: number): Piece => ({
      pool: { base, slotStride, slotCount, slotBytes: 4 },
      offset: 0,
      bytes: 4,
    });
    expect(findSlotOverlap(tableFrom([pool(0, 8, 4), pool(28, 12, 4), pool(100, 8, 4)]))).toBeNull();
    expect(findSlotOverlap(tableFrom([pool(0, 8, 4), pool(4, 12, 1)]))?.field).toBe('layerGroups[1].views[0]');
    // Stride 8 reaches to 84, the pool of stride 12 that came between ends at 98, 8 again begins at 90.
    expect(findSlotOverlap(tableFrom([pool(0, 8, 2), pool(50, 12, 5), pool(90, 8, 2)]))?.rule).toMatch(
      /slots every 8 bytes among those, every 12 bytes/,
    );
  });

  it('is cheap for the largest tables: every layer of one slot, or in pools that take turns', () => {
    const layers = Array.from({ length: 32_768 }, (_, layer) => layer);
    const perBlock = tableOf({ ...group(layers), slotCount: 4 });
    const turns = tableFrom(
      layers.map((layer) => ({
        pool: { base: 8 * (32_767 - layer), slotStride: 8 * 32_768, slotCount: 4, slotBytes: 8 },
        offset: 0,
        bytes: 8,
      })),
    );
    for (const table of [perBlock, turns]) {
      const startUs = process.cpuUsage().user;
      expect(findSlotOverlap(table)).toBeNull();
      // Measured at 40 ms; all pairs would take minutes.
      expect((process.cpuUsage().user - startUs) / 1e3).toBeLessThan(2_000);
    }
  });
});
