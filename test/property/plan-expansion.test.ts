import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type ExpandedRun, expandPlan } from '../../src/agent/expand-plan.js';
import { ArgumentError } from '../../src/errors.js';
import { type BlockRun, HOLE } from '../../src/geometry/index.js';
import {
  buildPageTable,
  type GroupSpec,
  kvHeadShard,
  mapPeer,
  type PageTable,
  planSlice,
  type RankPlaceInDp,
  rebasePageTable,
  SINGLE_RANK,
  type TransferPlan,
} from '../../src/mapping/index.js';

/** The native expansion against a naive one, over plans of every shape that mapping makes. */

const SLOTS = 7;
const SOURCE_BASE = 1 << 20;
const DESTINATION_BASE = 1 << 30;

/** Piece by piece in the order the plan states: group, fragment, pair, piece. */
function expand(plan: TransferPlan, from: PageTable, to: PageTable): ExpandedRun[] {
  const pieces: ExpandedRun[] = [];
  for (const { fragments, slotPairs } of plan.groups) {
    for (const { srcPool, srcOffset, dstPool, dstOffset, bytes, count, srcStride, dstStride } of fragments) {
      const [source, destination] = [from.pools[srcPool], to.pools[dstPool]];
      if (source === undefined || destination === undefined) throw new Error('a fragment names no pool');
      for (let i = 0; i < slotPairs.length; i += 2) {
        for (let piece = 0; piece < count; piece++) {
          pieces.push({
            source: source.base + (slotPairs[i] as number) * source.slotStride + srcOffset + piece * srcStride,
            destination:
              destination.base + (slotPairs[i + 1] as number) * destination.slotStride + dstOffset + piece * dstStride,
            bytes,
          });
        }
      }
    }
  }
  return pieces;
}

/** "source byte > destination byte" of every byte moved, sorted: a multiset. */
function byteMoves(runs: readonly ExpandedRun[]): string[] {
  const moves: string[] = [];
  for (const { source, destination, bytes } of runs)
    for (let byte = 0; byte < bytes; byte++) moves.push(`${source + byte} > ${destination + byte}`);
  return moves.sort();
}

function joined(pieces: readonly ExpandedRun[]): ExpandedRun[] {
  const runs: ExpandedRun[] = [];
  for (const piece of pieces) {
    const last = runs.at(-1);
    const touches =
      last !== undefined &&
      last.source + last.bytes === piece.source &&
      last.destination + last.bytes === piece.destination;
    if (touches) runs[runs.length - 1] = { ...last, bytes: last.bytes + piece.bytes };
    else runs.push(piece);
  }
  return runs;
}

/** Destination bytes that a plan may touch: what the entries of its groups cover in the slots that the receiver named. */
function allowedBytes(table: PageTable, runs: readonly (BlockRun | null)[]): Set<number> {
  const allowed = new Set<number>();
  table.layerGroups.forEach(({ views }, index) => {
    for (const { pool: at, offset, bytes } of views.flatMap(({ layers }) => layers)) {
      const pool = table.pools[at];
      if (pool === undefined) throw new Error('an entry names no pool');
      for (const slot of runs[index]?.slots ?? []) {
        if (slot === HOLE) continue;
        for (let byte = 0; byte < bytes; byte++) allowed.add(pool.base + slot * pool.slotStride + offset + byte);
      }
    }
  });
  return allowed;
}

const run = fc.oneof(
  fc.constant<BlockRun>({ begin: 0, slots: Int32Array.from({ length: SLOTS }, (_, slot) => slot) }),
  fc.constant(null),
  fc
    .record({
      begin: fc.nat({ max: 5 }),
      slots: fc.uniqueArray(fc.integer({ min: 0, max: SLOTS - 1 }), { maxLength: SLOTS }),
      ascending: fc.boolean(),
      hole: fc.nat({ max: SLOTS }),
    })
    .map(({ begin, slots, ascending, hole }): BlockRun => {
      const ordered = ascending ? [...slots].sort((x, y) => x - y) : slots;
      return { begin, slots: Int32Array.from(ordered, (slot, index) => (index === hole ? HOLE : slot)) };
    }),
);

const side = fc.record({
  tp: fc.record({ size: fc.constantFrom(1, 2, 4), rank: fc.nat({ max: 3 }) }),
  cp: fc.record({ size: fc.constantFrom(1, 1, 1, 2, 3), rank: fc.nat({ max: 2 }) }),
  dpRank: fc.nat({ max: 3 }),
  tokensPerBlock: fc.constantFrom(2, 4, 8),
  blockLayout: fc.constantFrom('HND' as const, 'NHD' as const),
  poolLayout: fc.constantFrom('per-layer' as const, 'per-block' as const),
  /** Pools and slots with nothing between them, or with a gap after each slot. */
  packed: fc.boolean(),
  slotGap: fc.constantFrom(0, 0, 16),
  runs: fc.tuple(run, run),
});

const model = fc.record({
  kind: fc.constantFrom('attention' as const, 'latent' as const),
  kvHeads: fc.constantFrom(1, 2, 4),
  headDim: fc.integer({ min: 1, max: 3 }),
  scaled: fc.boolean(),
  second: fc.constantFrom('none' as const, 'window' as const, 'state' as const),
});

type Value<T> = T extends fc.Arbitrary<infer U> ? U : never;

function rankOf(what: Value<typeof model>, where: Value<typeof side>, base: number) {
  const place: RankPlaceInDp = {
    ...SINGLE_RANK,
    layersPerStage: [4],
    tpSize: where.tp.size,
    tpRank: where.tp.rank % where.tp.size,
    cpSize: where.cp.size,
    cpRank: where.cp.rank % where.cp.size,
    dpSize: 4,
    dpRank: where.dpRank,
  };
  const split = (units: number) => kvHeadShard(units, place.tpSize, place.tpRank).headsPerRank;
  const group = (kind: GroupSpec['kind'], layers: number[], windowSize: number | null = null): GroupSpec => ({
    kind,
    windowSize,
    tokensPerBlock: kind === 'state' ? 1 : where.tokensPerBlock,
    layers,
    slotCount: SLOTS,
  });
  const second = { none: [], window: [group(what.kind, [1, 3], 6)], state: [group('state', [1, 3])] }[what.second];
  const { table } = buildPageTable({
    groups: [group(what.kind, [0, 2]), ...second],
    kvHeads: split(what.kvHeads),
    headDim: what.headDim,
    latentDim: what.headDim + 1,
    indexDim: 2,
    ...(what.scaled ? { scale: { dtype: 'uint8', elementsPerScale: what.headDim } } : {}),
    dtype: 'int8',
    poolLayout: where.poolLayout,
    blockLayout: where.blockLayout,
    state: {
      conv: {
        dtype: 'int8',
        width: 3,
        sections: [
          { channels: split(4) * 2, unitChannels: 2 },
          { channels: split(2), unitChannels: 1 },
        ],
      },
      ssm: { dtype: 'int8', heads: split(4), headElements: 5 },
    },
  });
  let next = base;
  const pools = rebasePageTable(table, base).pools.map((pool) => {
    const slotStride = pool.slotStride + where.slotGap;
    const placed = { ...pool, slotStride, base: where.packed ? next : pool.base * 2 };
    next = placed.base + slotStride * pool.slotCount;
    return placed;
  });
  return { place, table: { ...table, pools }, runs: where.runs.slice(0, table.layerGroups.length) };
}

/** A state group has one slot; a context parallel rank has only its own ordinals. */
function runsOf({ place, table, runs }: ReturnType<typeof rankOf>): (BlockRun | null)[] {
  return table.layerGroups.map(({ kind }, index) => {
    const of = runs[index] ?? null;
    if (of === null) return null;
    if (kind === 'state') return { begin: 0, slots: of.slots.slice(0, 1) };
    return { begin: of.begin * place.cpSize + place.cpRank, slots: of.slots };
  });
}

const planned = fc
  .tuple(model, side, side)
  .filter(([, source, destination]) => source.cp.size === 1 || destination.cp.size === 1)
  .map(([what, source, destination]) => {
    const [from, to] = [rankOf(what, source, SOURCE_BASE), rankOf(what, destination, DESTINATION_BASE)];
    const mapping = mapPeer(from.table, to.table, { source: from.place, destination: to.place });
    return { from, to, plan: planSlice(mapping, runsOf(from), runsOf(to)) };
  });

describe('plan expansion', () => {
  it('native and naive move the same bytes, each destination byte once and inside its slot; the counts are exact', {
    timeout: 120_000,
  }, () => {
    let moving = 0;
    let strided = 0;
    fc.assert(
      fc.property(
        planned,
        fc.record({ maxRuns: fc.integer({ min: 1, max: 9 }), maxBytes: fc.integer({ min: 1, max: 99 }) }),
        ({ from, to, plan }, batch) => {
          const pieces = expand(plan, from.table, to.table);
          const expected = byteMoves(pieces);
          const native = expandPlan(from.table, to.table, plan);
          expect(byteMoves(native)).toEqual(expected);
          expect(byteMoves(expandPlan(from.table, to.table, plan, batch))).toEqual(expected);

          const allowed = allowedBytes(to.table, runsOf(to));
          const written = new Set<number>();
          for (const { destination, bytes } of native) {
            for (let byte = destination; byte < destination + bytes; byte++) {
              expect(written.has(byte)).toBe(false);
              expect(allowed.has(byte)).toBe(true);
              written.add(byte);
            }
          }

          const coalesced = joined(pieces);
          expect(native).toEqual(coalesced);
          expect(plan.stats).toEqual({
            pairs: plan.groups.reduce((total, { slotPairs }) => total + slotPairs.length / 2, 0),
            fragments: plan.groups.reduce((total, { fragments }) => total + fragments.length, 0),
            bytes: written.size,
            descriptors: pieces.length,
            coalescedDescriptors: coalesced.length,
            averageDescriptorBytes: coalesced.length === 0 ? 0 : written.size / coalesced.length,
          });
          if (pieces.length > 0) moving++;
          if (plan.groups.some(({ fragments }) => fragments.some(({ count }) => count > 1))) strided++;
        },
      ),
      { numRuns: 1500 },
    );
    // Otherwise this test would prove little.
    expect(moving).toBeGreaterThan(200);
    expect(strided).toBeGreaterThan(40);
  });

  it('the native side refuses what leaves a slot or a pool', () => {
    const place: RankPlaceInDp = { ...SINGLE_RANK, layersPerStage: [1] };
    const { table } = buildPageTable({
      groups: [{ kind: 'attention', windowSize: null, tokensPerBlock: 4, layers: [0], slotCount: SLOTS }],
      kvHeads: 1,
      headDim: 4,
      dtype: 'int8',
      poolLayout: 'per-layer',
      blockLayout: 'HND',
    });
    const mapping = mapPeer(table, table, { source: place, destination: place });
    const plan = planSlice(mapping, [{ begin: 0, slots: Int32Array.of(1) }], [{ begin: 0, slots: Int32Array.of(2) }]);
    const [group] = plan.groups;
    const [fragment] = group?.fragments ?? [];
    if (group === undefined || fragment === undefined) throw new Error('nothing planned');
    const changed = (fragments: object, slotPairs = group.slotPairs) => ({
      ...plan,
      groups: [{ ...group, fragments: [{ ...fragment, ...fragments }], slotPairs }],
    });
    expect(expandPlan(table, table, plan)).toEqual([{ source: 32, destination: 64, bytes: 32 }]);
    expect(() => expandPlan(table, table, changed({ bytes: 33 }))).toThrow(/leave the slot/);
    expect(() => expandPlan(table, table, changed({ dstPool: 1 }))).toThrow(/dstPool is 1/);
    expect(() => expandPlan(table, table, changed({}, Int32Array.of(1, SLOTS)))).toThrow(ArgumentError);
    expect(() => expandPlan(table, table, plan, { maxRuns: 0 })).toThrow(ArgumentError);
  });
});
