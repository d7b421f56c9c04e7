import { describe, expect, it } from 'vitest';
import type { LayerGroup } from '../../src/cache/kv-cache-manager.js';
import { ArgumentError, InternalError, ProtocolError } from '../../src/errors.js';
import { type BlockRun, HOLE, joinRuns, pairRuns, pairSubBlocks, runEnd } from '../../src/geometry/index.js';
import { buildPageTable, expectedBytes, mapPeer, planSlice, validateRun } from '../../src/mapping/index.js';
import { repeatedSlot } from '../../src/mapping/repeated-slot.js';
import { destinationRuns } from '../../src/session/destination-runs.js';
import { planningFailure } from '../../src/session/planning-failure.js';
import { sourceRuns } from '../../src/session/slice-source.js';
import { TableCache } from '../sim-lite/table-cache.js';
import { makeRequest, TransferPair } from '../sim-lite/transfer-pair.js';

const GROUP: LayerGroup = { kind: 'attention', windowSize: null, tokensPerBlock: 4, layers: [0], slotCount: 8 };
const tableOf = (tokensPerBlock: number, group: LayerGroup = GROUP) =>
  buildPageTable({
    groups: [{ ...group, tokensPerBlock }],
    kvHeads: 1,
    headDim: 4,
    dtype: 'int8',
    poolLayout: 'per-layer',
    blockLayout: 'HND',
  }).table;
const run = (begin: number, ...slots: number[]): BlockRun => ({ begin, slots: Int32Array.from(slots) });
/** Runs whose slots are no Int32Array, as a caller without types can make them. */
const LISTS: readonly (readonly [string, unknown])[] = [
  ['a wrapped slot', [2 ** 33 + 1]],
  ['a fraction', [1.5]],
  ['NaN', Float64Array.of(Number.NaN)],
  ['a Float64Array', Float64Array.of(2 ** 32 + 1)],
  ['a list-like without a length', { length: Number.NaN }],
  ['null', null],
  ['nothing', undefined],
];

describe('slots that are no Int32Array', () => {
  it.each(LISTS)('%s: refused by everything that takes a run', (_, slots) => {
    const bad = { begin: 0, slots: slots as Int32Array };
    const good = run(0, 1);
    for (const call of [
      () => runEnd(bad),
      () => joinRuns(bad, run(1, 2)),
      () => joinRuns(good, { ...bad, begin: 1 }),
      () => pairRuns(bad, good),
      () => pairRuns(good, bad),
      () => pairSubBlocks(bad, 4, good, 1),
      () => pairSubBlocks(good, 1, bad, 4),
    ]) {
      expect(call).toThrow(RangeError);
      expect(call).toThrow(/slots must be an Int32Array, got/);
    }
    const mapping = mapPeer(tableOf(4), tableOf(4));
    for (const call of [
      () => planSlice(mapping, [bad], [good]),
      () => planSlice(mapping, [good], [bad]),
      () => expectedBytes(mapping, [bad], 4),
    ]) {
      expect(call).toThrow(ArgumentError);
      expect(call).toThrow(/layer group 0: (source|destination) run: slots must be an Int32Array, got/);
    }
    const [group] = tableOf(4).layerGroups;
    if (group === undefined) throw new Error('no group');
    expect(() => validateRun(bad, group, 4, 'the run')).toThrow(ProtocolError);
  });

  it('an expected byte count is never made of fewer runs than there are groups', () => {
    const mapping = mapPeer(tableOf(4), tableOf(4));
    expect(() => expectedBytes(mapping, [], 4)).toThrow(/0 destination runs for 1 layer groups/);
    expect(() => expectedBytes(mapping, null as unknown as [], 4)).toThrow(/destination runs must be a list, got null/);
    expect(() => expectedBytes(mapping, [run(0, 1)], Number.NaN)).toThrow(RangeError);
    expect(() => planSlice(mapping, [run(0, 1)], [run(0, 1)], 'bogus' as 'ordinal')).toThrow(/order must be/);
  });
});

describe('one destination slot for two blocks', () => {
  it.each<[string, number, number, BlockRun, BlockRun]>([
    ['equal blocks', 4, 4, run(0, 1, 2, 3), run(0, 3, 5, 3)],
    ['smaller blocks there', 8, 4, run(0, 1, 2), run(0, 0, 3, 4, 3)],
    // Each of the two is met by another part of its block only.
    ['larger blocks there', 4, 8, run(1, 1, 2), run(0, 3, 3)],
  ])('%s: no plan and no byte count', (_, from, to, source, destination) => {
    const mapping = mapPeer(tableOf(from), tableOf(to));
    for (const order of ['source_slot', 'ordinal'] as const)
      expect(() => planSlice(mapping, [source], [destination], order)).toThrow(
        /layer group 0: destination run names slot 3 for two blocks/,
      );
    expect(() => expectedBytes(mapping, [destination], 16)).toThrow(ArgumentError);
  });

  it('only what the slice meets is looked at, and one source slot may go to two places', () => {
    const mapping = mapPeer(tableOf(4), tableOf(4));
    const plan = planSlice(mapping, [run(1, 2, 2)], [run(0, 3, 5, 6, 3)]);
    expect([...(plan.groups[0]?.slotPairs ?? [])]).toEqual([2, 5, 2, 6]);
    // A larger block is met by several smaller ones, once.
    const joined = planSlice(mapPeer(tableOf(4), tableOf(8)), [run(0, 1, 2)], [run(0, 3)]);
    expect(joined.groups.map(({ slotPairs }) => [...slotPairs])).toEqual([
      [1, 3],
      [2, 3],
    ]);
  });

  it('is found whatever the slots are, and forgotten by the next call', () => {
    const cases: readonly (readonly [number[], number])[] = [
      [[], HOLE],
      [[HOLE, HOLE, 0], HOLE],
      [[31, 32, 63, 64, 31], 31],
      [[0x7fffffff, 3, 0x7fffffff], 0x7fffffff],
      [[0x7ffffffe, 0x7fffffff], HOLE],
      [[5, 5], 5],
      // Alike in all but the bits above those of one part.
      [[7, 2 ** 23 + 7, 2 ** 24 + 7, 2 ** 30 + 7, HOLE, HOLE], HOLE],
      [[7, 2 ** 23 + 7, HOLE, 2 ** 30 + 7, 2 ** 23 + 7], 2 ** 23 + 7],
      [[2 ** 23 - 1, 2 ** 23, 2 ** 23 - 1], 2 ** 23 - 1],
      [[0, 2 ** 30, 0], 0],
    ];
    for (const [slots, expected] of [...cases, ...cases])
      expect(repeatedSlot(Int32Array.from(slots)), String(slots)).toBe(expected);
    expect(repeatedSlot(Int32Array.of(4, 7, 8, 7, 4), 1, 3)).toBe(HOLE);
    expect(repeatedSlot(Int32Array.of(4, 7, 2 ** 29, 7, 4), 1, 3)).toBe(HOLE);
    expect(repeatedSlot(Int32Array.of(4, 7, 2 ** 29, 7, 4), 1, 4)).toBe(7);
  });

  it('costs a slot no more when a peer chose it large', () => {
    const count = 2 ** 19;
    const cpuMs = (slotOf: (i: number) => number): number => {
      const slots = Int32Array.from({ length: count }, (_, i) => slotOf(i));
      const runs = Array.from({ length: 5 }, () => {
        const before = process.cpuUsage();
        expect(repeatedSlot(slots)).toBe(HOLE);
        const { user, system } = process.cpuUsage(before);
        return (user + system) / 1000;
      });
      return Math.min(...runs);
    };
    // Spread over every part, in an order that meets none of them twice in a row. A set of them took 100 ms and more.
    const large = cpuMs((i) => (i % 256) * 2 ** 23 + ((i * 1021) % 2 ** 23));
    const small = cpuMs((i) => i * 15);
    expect(large, `${small} ms for small ones`).toBeLessThan(small * 10 + 40);
  });
});

describe('a cache manager of the user’s own', () => {
  it.each<[string, unknown, RegExp]>([
    ['a negative slot', run(0, 1, -5, 2, 3), /slot -5 of 8 for block 1/],
    ['a slot past its pool', run(0, 1, 2, 3, 8), /slot 8 of 8 for block 3/],
    ['a plain list', { begin: 0, slots: [1, 2, 3, 4] }, /no Int32Array \(a list\)/],
    ['fractions', { begin: 0, slots: Float64Array.of(1.5, 2, 3, 4) }, /no Int32Array \(another typed array\)/],
    ['no slots', { begin: 0 }, /no Int32Array \(undefined\)/],
    ['null', null, /null instead of a run/],
    ['nothing', undefined, /undefined instead of a run/],
    ['a fractional begin', { begin: 0.5, slots: Int32Array.of(1, 2, 3, 4) }, /begins at 0.5/],
  ])('that answers with %s is caught on both sides', (_, answer, message) => {
    const cache = new TableCache([GROUP], 4);
    cache.getBlockIdsRange = () => answer as BlockRun;
    for (const call of [
      () => sourceRuns(cache, makeRequest(1, 'context'), { beginBlock: 0, endBlock: 4, isLast: true }),
      () => destinationRuns(cache, makeRequest(1, 'generation')),
    ]) {
      expect(call).toThrow(InternalError);
      expect(call).toThrow(/cache manager: group 0 gave .* for \[0, 4\) of request 1/);
      expect(call).toThrow(message);
    }
  });

  it('fails the request that it names one slot twice for, and the next one is served', async () => {
    const pair = await TransferPair.create();
    const { context, generation } = pair;
    const endpoint = context.transceiver.endpoint;
    generation.cache.place(1, [3, 3, 4, 5]);
    generation.transceiver.requestAndReceiveAsync(makeRequest(1, 'generation', { endpoint }));
    await pair.run(500);
    const [failed] = generation.settled;
    expect(failed).toMatchObject({ request: { id: 1 }, outcome: 'failed' });
    expect(failed?.error?.message).toMatch(/names slot 3 for two blocks/);
    expect(generation.cache.pins.size).toBe(0);

    generation.cache.place(2, [3, 6, 4, 5]);
    context.cache.place(9, [1, 2, 3, 4]);
    pair.fill(context, [1, 2, 3, 4]);
    const rid = 1n << 42n;
    generation.transceiver.requestAndReceiveAsync(makeRequest(2, 'generation', { endpoint, rid }));
    context.transceiver.respondAndSendAsync({ ...makeRequest(9, 'context', { rid }), chunkEnd: 16 }, { after: null });
    await pair.run(500);
    expect(pair.page(generation, 0, 6)).toEqual(pair.page(context, 0, 2));
  });

  it('a refusal of planning fails its request; a bug is not hidden', () => {
    const typed = new ArgumentError('slot 9');
    expect(planningFailure(typed, 'request 1')).toBe(typed);
    const converted = planningFailure(new RangeError('begin is -1'), 'request 1');
    expect(converted).toBeInstanceOf(InternalError);
    expect(converted.message).toBe('request 1: begin is -1');
    const bug = new TypeError('x of undefined');
    expect(() => planningFailure(bug, 'request 1')).toThrow(bug);
  });
});
