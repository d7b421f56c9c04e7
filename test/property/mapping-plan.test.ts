import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type BlockRun, HOLE } from '../../src/geometry/index.js';
import {
  buildPageTable,
  explainCompatibility,
  mapPeer,
  mapRanks,
  type PageTable,
  type PageTableSpec,
  planSlice,
  type RankInfo,
  rebasePageTable,
  type TransferPlan,
  validatePageTable,
} from '../../src/mapping/index.js';
import { sortSlotPairs } from '../../src/mapping/sort-slot-pairs.js';

interface Move {
  readonly source: number;
  readonly destination: number;
  readonly bytes: number;
}

/** Every piece of a plan in expansion order: group, fragment, pair, piece. */
function expand(plan: TransferPlan, from: PageTable, to: PageTable): Move[] {
  const moves: Move[] = [];
  for (const { fragments, slotPairs } of plan.groups) {
    for (const fragment of fragments) {
      const [source, destination] = [from.pools[fragment.srcPool], to.pools[fragment.dstPool]];
      if (source === undefined || destination === undefined) throw new Error('a fragment names no pool');
      for (let i = 0; i < slotPairs.length; i += 2) {
        for (let piece = 0; piece < fragment.count; piece++) {
          moves.push({
            source:
              source.base +
              (slotPairs[i] as number) * source.slotStride +
              fragment.srcOffset +
              piece * fragment.srcStride,
            destination:
              destination.base +
              (slotPairs[i + 1] as number) * destination.slotStride +
              fragment.dstOffset +
              piece * fragment.dstStride,
            bytes: fragment.bytes,
          });
        }
      }
    }
  }
  return moves;
}

/** Address -> what lies there: (group, ordinal, role, layer, byte), for the blocks of one side's runs. */
function meaning(table: PageTable, runs: readonly (BlockRun | null)[]): Map<number, string> {
  const bytes = new Map<number, string>();
  table.layerGroups.forEach((group, index) => {
    runs[index]?.slots.forEach((slot, offset) => {
      if (slot === HOLE) return;
      const ordinal = (runs[index]?.begin ?? 0) + offset;
      for (const view of group.views) {
        for (const entry of view.layers) {
          const pool = table.pools[entry.pool];
          if (pool === undefined) throw new Error('an entry names no pool');
          const at = pool.base + slot * pool.slotStride + entry.offset;
          for (let byte = 0; byte < entry.bytes; byte++) {
            bytes.set(at + byte, `${index} ${ordinal} ${view.role} ${entry.layer} ${byte}`);
          }
        }
      }
    });
  });
  return bytes;
}

const SLOTS = 6;

/** Every slot in order: neighbours everywhere, the first and the last slot of the pool among them. */
const wholePool = fc.constant<BlockRun>({ begin: 0, slots: Int32Array.from({ length: SLOTS }, (_, slot) => slot) });

/** Distinct slots with holes between them. */
const run = fc.oneof(
  wholePool,
  fc.constant(null),
  fc
    .record({
      begin: fc.nat({ max: 4 }),
      slots: fc.uniqueArray(fc.nat({ max: SLOTS - 1 }), { maxLength: SLOTS }),
      holes: fc.array(fc.boolean(), { minLength: SLOTS, maxLength: SLOTS }),
      ascending: fc.boolean(),
    })
    .map(({ begin, slots, holes, ascending }): BlockRun => {
      const ordered = ascending ? [...slots].sort((x, y) => x - y) : slots;
      return { begin, slots: Int32Array.from(ordered, (slot, index) => (holes[index] && !ascending ? HOLE : slot)) };
    }),
);

const layers = fc
  .uniqueArray(fc.nat({ max: 5 }), { minLength: 1, maxLength: 4 })
  .map((ids) => ids.sort((x, y) => x - y));

const shape = fc.record({
  kind: fc.constantFrom('attention' as const, 'latent' as const),
  blockLayout: fc.constantFrom('HND' as const, 'NHD' as const),
  headDim: fc.integer({ min: 1, max: 3 }),
  /** Pools without a gap between them, so that the last slot of one touches the first of the next. */
  packed: fc.boolean(),
  groups: fc.integer({ min: 1, max: 2 }),
});

const side = fc.record({
  poolLayout: fc.constantFrom('per-layer' as const, 'per-block' as const),
  layers: fc.array(layers, { minLength: 2, maxLength: 2 }),
  runs: fc.array(run, { minLength: 2, maxLength: 2 }),
});

type Arbitrated<T> = T extends fc.Arbitrary<infer U> ? U : never;

function pagesOf(what: Arbitrated<typeof shape>, where: Arbitrated<typeof side>, base: number): PageTable {
  const spec: PageTableSpec = {
    groups: Array.from({ length: what.groups }, (_, index) => ({
      kind: what.kind,
      windowSize: null,
      tokensPerBlock: 2,
      // Two groups never hold the same layer.
      layers: (where.layers[index] ?? []).map((layer) => 2 * layer + index),
      slotCount: SLOTS,
    })),
    kvHeads: 2,
    headDim: what.headDim,
    latentDim: what.headDim * 3,
    dtype: 'int8',
    poolLayout: where.poolLayout,
    blockLayout: what.blockLayout,
  };
  const table = rebasePageTable(buildPageTable(spec).table, base);
  if (!what.packed) return table;
  let next = base;
  const pools = table.pools.map((pool) => {
    const packed = { ...pool, base: next };
    next += pool.slotStride * pool.slotCount;
    return packed;
  });
  return { ...table, pools };
}

describe('planSlice', () => {
  it('moves every shared byte of every paired block once to its own place, and counts exactly', () => {
    fc.assert(
      fc.property(shape, side, side, (what, source, destination) => {
        const [from, to] = [pagesOf(what, source, 1 << 20), pagesOf(what, destination, 1 << 24)];
        const [sourceRuns, destinationRuns] = [
          source.runs.slice(0, what.groups),
          destination.runs.slice(0, what.groups),
        ];
        const plan = planSlice(mapPeer(from, to), sourceRuns, destinationRuns);
        const moves = expand(plan, from, to);

        const [there, here] = [meaning(to, destinationRuns), meaning(from, sourceRuns)];
        const wanted = new Set(here.values());
        const expected = [...there].filter(([, byte]) => wanted.has(byte));
        const written = new Map<number, string | undefined>();
        for (const move of moves) {
          for (let byte = 0; byte < move.bytes; byte++) {
            expect(written.has(move.destination + byte)).toBe(false);
            written.set(move.destination + byte, here.get(move.source + byte));
          }
        }
        expect(new Map([...written].sort(([x], [y]) => x - y))).toEqual(new Map(expected.sort(([x], [y]) => x - y)));

        let joined = 0;
        moves.forEach((move, index) => {
          const last = moves[index - 1];
          if (last === undefined) return;
          if (last.source + last.bytes === move.source && last.destination + last.bytes === move.destination) joined++;
        });
        const bytes = moves.reduce((total, move) => total + move.bytes, 0);
        const coalescedDescriptors = moves.length - joined;
        expect(plan.stats).toEqual({
          pairs: plan.groups.reduce((total, { slotPairs }) => total + slotPairs.length / 2, 0),
          fragments: plan.groups.reduce((total, { fragments }) => total + fragments.length, 0),
          bytes,
          descriptors: moves.length,
          coalescedDescriptors,
          averageDescriptorBytes: moves.length === 0 ? 0 : bytes / coalescedDescriptors,
        });
      }),
      { numRuns: 400 },
    );
  });
});

describe('sortSlotPairs', () => {
  const slot = fc.oneof(fc.nat({ max: 40 }), fc.nat({ max: 70_000 }), fc.nat({ max: 0x7fffffff }));

  it('sorts by source slot, then destination slot, and leaves its input alone', () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(slot, slot), { maxLength: 60 }), (pairs) => {
        const input = Int32Array.from(pairs.flat());
        const before = [...input];
        const sorted = sortSlotPairs(input);
        expect([...sorted]).toEqual([...pairs].sort(([a, b], [c, d]) => a - c || b - d).flat());
        expect([...input]).toEqual(before);
      }),
      { numRuns: 1000 },
    );
  });
});

const rankFields = fc.record({
  kind: fc.constantFrom('attention' as const, 'attention' as const, 'latent' as const),
  tp: fc.constantFrom([1, 0], [2, 1], [4, 1], [3, 0]),
  cp: fc.constantFrom([1, 0], [1, 0], [2, 1]),
  stage: fc.constantFrom([[3], 0], [[3], 0], [[1, 2], 1], [[2, 1], 0]) as fc.Arbitrary<[number[], number]>,
  tokensPerBlock: fc.constantFrom(4, 4, 8, 6, 2048),
  windowSize: fc.constantFrom(null, null, 16),
  wrongHeads: fc.constantFrom(false, false, false, true),
  headDim: fc.constantFrom(8, 8, 3),
  dtype: fc.constantFrom('bfloat16', 'bfloat16', 'float4_e2m1'),
  blockLayout: fc.constantFrom('HND' as const, 'NHD' as const),
  scaled: fc.boolean(),
  stateHeads: fc.constantFrom(0, 0, 2, 4),
});

function rankInfoOf(of: Arbitrated<typeof rankFields>): RankInfo {
  const [layersPerStage, ppRank] = of.stage;
  const first = ppRank === 0 ? 0 : (layersPerStage[0] ?? 0);
  const layers = Array.from({ length: layersPerStage[ppRank] ?? 0 }, (_, index) => first + index);
  const shared = { layers, slotCount: 4 };
  const { table } = buildPageTable({
    groups: [
      { ...shared, kind: of.kind, windowSize: of.windowSize, tokensPerBlock: of.tokensPerBlock },
      ...(of.stateHeads === 0
        ? []
        : [{ ...shared, kind: 'state' as const, windowSize: null, tokensPerBlock: of.tokensPerBlock }]),
    ],
    // Four heads in all; now and then a number that does not fit.
    kvHeads: of.wrongHeads || 4 % (of.tp[0] as number) !== 0 ? 3 : 4 / (of.tp[0] as number),
    headDim: of.headDim,
    latentDim: of.headDim * 4,
    dtype: of.dtype,
    ...(of.scaled ? { scale: { dtype: 'uint8', elementsPerScale: of.headDim } } : {}),
    poolLayout: 'per-block',
    blockLayout: of.blockLayout,
    state: {
      conv: { dtype: 'int8', width: 2, sections: [{ channels: of.stateHeads || 1, unitChannels: 1 }] },
      ssm: { dtype: 'int8', heads: of.stateHeads || 1, headElements: 5 },
    },
  });
  return {
    packageVersion: '0.1.0',
    instanceName: 'instance',
    incarnation: 1n,
    rank: 0,
    tpSize: of.tp[0] as number,
    tpRank: of.tp[1] as number,
    ppSize: layersPerStage.length,
    ppRank,
    cpSize: of.cp[0] as number,
    cpRank: of.cp[1] as number,
    dpSize: 1,
    dpRank: 0,
    attentionDp: false,
    layersPerStage,
    endpoint: 'tcp://127.0.0.1:1',
    rankEndpoints: ['tcp://127.0.0.1:1'],
    agent: 'host',
    agentMetadata: new Uint8Array(0),
    pageTable: table,
  };
}

const rankInfo = rankFields.map(rankInfoOf);

/** Two ranks that differ in few fields, so that they fit now and then. */
const rankPair = fc
  .tuple(rankFields, rankFields, fc.array(fc.nat({ max: 11 }), { maxLength: 4 }))
  .map(([fields, others, changes]) => {
    const changed = Object.entries(others).filter((_, index) => changes.includes(index));
    return [rankInfoOf(fields), rankInfoOf({ ...fields, ...Object.fromEntries(changed) })] as const;
  });

describe('explainCompatibility', () => {
  it('what it does not refuse can be mapped in both directions; what cannot be mapped it refuses', () => {
    let [fitting, refused] = [0, 0];
    fc.assert(
      fc.property(rankPair, ([a, b]) => {
        const findings = explainCompatibility(a, b);
        expect(
          explainCompatibility(b, a)
            .map(({ field }) => field)
            .sort(),
        ).toEqual(findings.map(({ field }) => field).sort());
        for (const finding of findings) {
          expect(finding.verdict).toMatch(/^refused: ./);
          expect(finding.whichSideToChange).toMatch(/^(a$|b$|either: .)/);
        }
        if (findings.length > 0) {
          refused++;
          return;
        }
        fitting++;
        for (const [from, to] of [
          [a, b],
          [b, a],
        ] as const) {
          for (const { fragments } of mapRanks(from, to).groups) {
            for (const { srcPool, srcOffset, dstPool, dstOffset, bytes, count, srcStride, dstStride } of fragments) {
              expect(srcOffset + (count - 1) * srcStride + bytes).toBeLessThanOrEqual(
                from.pageTable.pools[srcPool]?.slotBytes ?? 0,
              );
              expect(dstOffset + (count - 1) * dstStride + bytes).toBeLessThanOrEqual(
                to.pageTable.pools[dstPool]?.slotBytes ?? 0,
              );
            }
          }
        }
      }),
      { numRuns: 2000 },
    );
    expect(fitting).toBeGreaterThan(200);
    expect(refused).toBeGreaterThan(50);
  });
});

describe('untrusted input', () => {
  it('a rank info with one value replaced is mapped, or refused with a finding', () => {
    const value = fc.oneof(
      fc.anything(),
      fc.integer(),
      fc.double(),
      fc.constantFrom(2 ** 53, 2 ** 40, 65536, -1, 0, 1, 2, 3),
    );
    fc.assert(
      fc.property(rankInfo, fc.nat(), value, (info, choice, replacement) => {
        const copy = structuredClone(info) as unknown as Record<string, unknown>;
        const places: [Record<string, unknown>, string][] = [];
        const walk = (node: Record<string, unknown>): void => {
          for (const [key, child] of Object.entries(node)) {
            places.push([node, key]);
            if (typeof child === 'object' && child !== null) walk(child as Record<string, unknown>);
          }
        };
        walk(copy);
        const [node, key] = places[choice % places.length] as [Record<string, unknown>, string];
        node[key] = replacement;
        const peer = copy as unknown as RankInfo;
        if (explainCompatibility(peer, info).length > 0) return;
        expect(mapRanks(info, peer).groups.length + mapRanks(peer, info).groups.length).toBeGreaterThan(0);
      }),
      { numRuns: 2000 },
    );
  });

  it('explainCompatibility never throws, and finds fault with anything that is no rank info', () => {
    fc.assert(
      fc.property(fc.anything(), fc.anything(), (a, b) => {
        expect(explainCompatibility(a as RankInfo, b as RankInfo).length).toBeGreaterThan(0);
      }),
      { numRuns: 1000 },
    );
  });

  it('a table with one value replaced is accepted whole or refused with a typed error', () => {
    const { table } = buildPageTable({
      groups: [{ kind: 'attention', windowSize: 8, tokensPerBlock: 2, layers: [0, 1], slotCount: 4 }],
      kvHeads: 2,
      headDim: 2,
      dtype: 'int8',
      poolLayout: 'per-block',
      blockLayout: 'HND',
    });
    const paths: (string | number)[][] = [];
    const walk = (node: unknown, path: (string | number)[]): void => {
      if (path.length > 0) paths.push(path);
      if (typeof node !== 'object' || node === null) return;
      for (const [key, child] of Object.entries(node)) walk(child, [...path, key]);
    };
    walk(table, []);
    const value = fc.oneof(fc.anything(), fc.integer(), fc.double(), fc.constantFrom(2 ** 53, 2 ** 52, -1, 0, 1, 2, 3));
    fc.assert(
      fc.property(fc.constantFrom(...paths), value, (path, replacement) => {
        const copy = JSON.parse(JSON.stringify(table));
        const parent = path.slice(0, -1).reduce((node, key) => node[key], copy);
        parent[path.at(-1) as string] = replacement;
        let checked: PageTable;
        try {
          checked = validatePageTable(copy);
        } catch (error) {
          expect((error as { code?: string }).code).toBe('ERR_KVT_PROTOCOL');
          return;
        }
        // What was accepted addresses only bytes inside its pools.
        for (const group of checked.layerGroups) {
          for (const { layers: entries } of group.views) {
            for (const entry of entries) {
              const pool = checked.pools[entry.pool];
              if (pool === undefined) throw new Error('an entry names no pool');
              const end = pool.base + (group.slotCount - 1) * pool.slotStride + entry.offset + entry.bytes;
              expect(Number.isSafeInteger(end)).toBe(true);
              expect(end).toBeLessThanOrEqual(pool.base + pool.slotCount * pool.slotStride);
            }
          }
        }
      }),
      { numRuns: 3000 },
    );
  });
});
