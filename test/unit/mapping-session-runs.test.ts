import { describe, expect, it } from 'vitest';
import type { LayerGroup } from '../../src/cache/kv-cache-manager.js';
import { InternalError } from '../../src/errors.js';
import { HOLE } from '../../src/geometry/index.js';
import {
  buildPageTable,
  expectedBytes,
  mapPeer,
  mapRanks,
  planSlice,
  type RankInfo,
  SINGLE_RANK,
  validatePageTable,
  validateRun,
  withAux,
} from '../../src/mapping/index.js';
import { destinationRuns } from '../../src/session/destination-runs.js';
import { linkPeer } from '../../src/session/peer-link.js';
import { sourceRuns } from '../../src/session/slice-source.js';
import { pageTableFields, readPageTable } from '../../src/wire/page-table-codec.js';
import { FakeClock } from '../sim-lite/fake-clock.js';
import { SimFabric } from '../sim-lite/sim-agent.js';
import { TableCache } from '../sim-lite/table-cache.js';
import { makeRequest } from '../sim-lite/transfer-pair.js';

const GROUPS: readonly LayerGroup[] = [
  { kind: 'attention', windowSize: null, tokensPerBlock: 4, layers: [0], slotCount: 32 },
  { kind: 'attention', windowSize: 8, tokensPerBlock: 4, layers: [1], slotCount: 32 },
  { kind: 'state', windowSize: null, tokensPerBlock: 1, layers: [2], slotCount: 32 },
];

const STATE = {
  conv: { dtype: 'int8', width: 3, sections: [{ channels: 4, unitChannels: 2 }] },
  ssm: { dtype: 'int8', heads: 2, headElements: 6 },
};

function pagesOf(tokensPerBlock: number) {
  return buildPageTable({
    groups: GROUPS.map((group) => ({ ...group, tokensPerBlock: group.kind === 'state' ? 1 : tokensPerBlock })),
    kvHeads: 1,
    headDim: 4,
    dtype: 'int8',
    poolLayout: 'per-layer',
    blockLayout: 'HND',
    state: STATE,
  });
}

/** 24 prompt tokens: 6 blocks, the last 4 of which the window may still see. */
const request = { ...makeRequest(1, 'generation'), promptTokens: new Uint32Array(24) };
const whole = { beginBlock: 0, endBlock: 6, isLast: true };

function cacheWith(slots: readonly number[]): TableCache {
  const cache = new TableCache(GROUPS, 4);
  cache.place(1, slots);
  return cache;
}

const shown = (runs: readonly ({ begin: number; slots: Int32Array; stride?: number } | null)[]) =>
  runs.map((run) => run && [run.begin, [...run.slots], run.stride ?? 1]);

describe('runs of a request', () => {
  it('state is one slot: always for the receiver, with the last slice for the sender', () => {
    const cache = cacheWith([10, 11, 12, 13, 14, 15]);
    expect(shown(destinationRuns(cache, { ...request, prepopulatedLen: 8 }))).toEqual([
      [2, [12, 13, 14, 15], 1],
      [4, [14, 15], 1],
      [0, [10], 1],
    ]);
    expect(shown(sourceRuns(cache, request, { beginBlock: 1, endBlock: 5, isLast: false }))).toEqual([
      [1, [11, 12, 13, 14], 1],
      [4, [14], 1],
      null,
    ]);
    expect(shown(sourceRuns(cache, request, { beginBlock: 6, endBlock: 6, isLast: true }))).toEqual([
      null,
      null,
      [0, [10], 1],
    ]);
  });

  it('a context parallel rank names its own blocks by their ordinals in the prompt', () => {
    const place = { cpSize: 4, cpRank: 1 };
    // Its blocks 0 and 1 are the ordinals 1 and 5.
    const cache = cacheWith([10, 11]);
    expect(shown(destinationRuns(cache, request, place))).toEqual([
      [1, [10, 11], 4],
      [5, [11], 4],
      [0, [10], 1],
    ]);
    expect(shown(destinationRuns(cache, { ...request, prepopulatedLen: 20 }, place)).slice(0, 1)).toEqual([
      [5, [11], 4],
    ]);
    expect(shown(destinationRuns(cache, { ...request, prepopulatedLen: 20 }, { cpSize: 4, cpRank: 0 }))[0]).toEqual([
      6,
      [],
      1,
    ]);
    expect(shown(sourceRuns(cache, request, { ...whole, beginBlock: 2 }, place))).toEqual([
      [5, [11], 4],
      [5, [11], 4],
      [0, [10], 1],
    ]);
    expect(shown(sourceRuns(cache, request, { beginBlock: 2, endBlock: 5, isLast: false }, place))).toEqual([
      null,
      null,
      null,
    ]);
  });

  it('a cache manager that answers too little is caught', () => {
    const short = cacheWith([10, 11, 12, 13, 14, 15]);
    short.getBlockIdsRange = (_request, _group, begin, end) => ({
      begin: begin + 1,
      slots: new Int32Array(end - begin - 1),
    });
    expect(() => sourceRuns(short, request, whole)).toThrow(InternalError);
  });

  it.each<[string, number, readonly number[], number?]>([
    ['more in front', 0, [9, 10, 11, 12, 13, 14]],
    ['more behind', 1, [10, 11, 12, 13, 14]],
    ['less behind', 1, [10, 11, 12]],
    ['nothing', 5, []],
    ['a hole', 1, [10, HOLE, 12, 13]],
    ['a stride', 1, [10, 11, 12, 13], 2],
    ['no number', Number.NaN, [10, 11, 12, 13]],
  ])('a cache manager that answers with %s is caught, on both sides', (_, begin, slots, stride) => {
    const [full] = GROUPS as [LayerGroup];
    const cache = new TableCache([full], 4);
    cache.getBlockIdsRange = () => ({
      begin,
      slots: Int32Array.from(slots),
      ...(stride === undefined ? {} : { stride }),
    });
    const thrown = /cache manager: group 0 gave .* for \[1, 5\) of request 1/;
    expect(() => sourceRuns(cache, request, { beginBlock: 1, endBlock: 5, isLast: false })).toThrow(thrown);
    const asked = { ...request, promptTokens: new Uint32Array(20), prepopulatedLen: 4 };
    expect(() => destinationRuns(cache, asked)).toThrow(thrown);
  });

  it('a window that is short is the sender’s to send short; a receiver would never get what it lacks', () => {
    const [, windowed] = GROUPS as [LayerGroup, LayerGroup];
    const cache = new TableCache([windowed], 4);
    cache.getBlockIdsRange = () => ({ begin: 5, slots: Int32Array.of(15) });
    expect(shown(sourceRuns(cache, request, whole))).toEqual([[5, [15], 1]]);
    expect(() => destinationRuns(cache, request)).toThrow(/gave blocks \[5, 6\) for \[4, 6\)/);
  });

  it('sink blocks go with the slice they lie in, and are asked for apart from the window', () => {
    const [, windowed] = GROUPS as [LayerGroup, LayerGroup];
    const cache = new TableCache([{ ...windowed, sinkTokens: 6 }], 4);
    cache.place(1, [10, 11, 12, 13, 14, 15]);
    const asked: number[][] = [];
    const answer = cache.getBlockIdsRange.bind(cache);
    cache.getBlockIdsRange = (id, index, begin, end) => {
      asked.push([begin, end]);
      return answer(id, index, begin, end);
    };
    const sent = (beginBlock: number, endBlock: number, place = { cpSize: 1, cpRank: 0 }) =>
      shown(sourceRuns(cache, request, { beginBlock, endBlock, isLast: false }, place))[0];
    expect(sent(0, 6)).toEqual([0, [10, 11, HOLE, HOLE, 14, 15], 1]);
    expect(asked.splice(0)).toEqual([
      [0, 2],
      [4, 6],
    ]);
    expect(sent(0, 1)).toEqual([0, [10], 1]);
    expect(sent(1, 5)).toEqual([1, [11, HOLE, HOLE, 14], 1]);
    expect(sent(2, 4)).toBeNull();
    expect(asked.splice(0)).toEqual([
      [0, 1],
      [1, 2],
      [4, 5],
    ]);
    // Rank 1 of 2 owns the ordinals 1, 3, 5 and counts them 0, 1, 2.
    expect(sent(0, 6, { cpSize: 2, cpRank: 1 })).toEqual([1, [10, HOLE, 12], 2]);
    expect(shown(destinationRuns(cache, request))).toEqual([[0, [10, 11, HOLE, HOLE, 14, 15], 1]]);
    // A block that is cached in part only is received whole.
    expect(shown(destinationRuns(cache, { ...request, prepopulatedLen: 3 }))[0]?.[0]).toBe(0);
    // Its cached prefix is not received again, sinks included.
    expect(shown(destinationRuns(cache, { ...request, prepopulatedLen: 4 }))).toEqual([
      [1, [11, HOLE, HOLE, 14, 15], 1],
    ]);
    expect(shown(destinationRuns(cache, { ...request, prepopulatedLen: 8 }))).toEqual([[4, [14, 15], 1]]);
  });

  it('a sink block that a cache manager lacks is caught on both sides', () => {
    const [, windowed] = GROUPS as [LayerGroup, LayerGroup];
    const cache = new TableCache([{ ...windowed, sinkTokens: 6 }], 4);
    cache.getBlockIdsRange = (_request, _group, _begin, end) => ({ begin: end, slots: new Int32Array(0) });
    expect(() => sourceRuns(cache, request, whole)).toThrow(/gave blocks \[2, 2\) for \[0, 2\)/);
    expect(() => destinationRuns(cache, request)).toThrow(InternalError);
  });

  it('the sink tokens of two servers must be the same, and travel', () => {
    const spec = (sinkTokens: number) =>
      buildPageTable({
        groups: [{ ...(GROUPS[1] as LayerGroup), sinkTokens }],
        kvHeads: 1,
        headDim: 4,
        dtype: 'int8',
        poolLayout: 'per-layer',
        blockLayout: 'HND',
      }).table;
    const table = spec(6);
    expect(table.layerGroups[0]?.sinkTokens).toBe(6);
    expect(readPageTable(pageTableFields(table))).toEqual(table);
    expect(spec(0).layerGroups[0]).not.toHaveProperty('sinkTokens');
    expect(() => mapPeer(table, spec(4))).toThrow(
      /layerGroups\[0\]\.sinkTokens: refused: the sink tokens differ \(6 and 4\)/,
    );
    const [group] = table.layerGroups;
    const full = { ...table, layerGroups: [{ ...group, windowSize: null }] };
    expect(() => validatePageTable(full)).toThrow(/layerGroups\[0\]\.sinkTokens must be an integer from 0 to 0, got 6/);
    for (const value of [-1, 0.5, Number.NaN, 2 ** 31, '6'])
      expect(() => validatePageTable({ ...table, layerGroups: [{ ...group, sinkTokens: value }] })).toThrow(
        /sinkTokens/,
      );
    // 24 tokens: the sinks are the blocks 0 and 1, the window 4 and 5; K and V of 16 bytes each.
    const runs = [{ begin: 0, slots: Int32Array.of(0, 1, 2, 3, 4, 5) }];
    expect(expectedBytes(mapPeer(table, table), runs, 24)).toBe(4 * 32);
  });

  it('what a context parallel receiver asks for is checked against the blocks it owns', () => {
    const [group, , state] = pagesOf(4).table.layerGroups;
    if (group === undefined || state === undefined) throw new Error('no group');
    const place = { cpSize: 4, cpRank: 1 };
    const check = (begin: number, slots: number[], of = group) =>
      validateRun({ begin, slots: Int32Array.from(slots) }, of, 6, 'the run', place);
    expect(() => check(1, [3, 4])).not.toThrow();
    expect(() => check(6, [])).not.toThrow();
    expect(() => check(1, [3, 4, 5])).toThrow(/ends at block 10, the prompt has 6/);
    expect(() => check(2, [3])).toThrow(/begins at block 2, which context parallel rank 1 of 4 does not own/);
    expect(() => check(0, [3], state)).not.toThrow();
    expect(() => check(0, [3, 4], state)).toThrow(/ends at block 2, the state is one slot/);
  });
});

describe('linkPeer', () => {
  it('binds every part of every group, so that a plan of unequal blocks reaches the right bytes', async () => {
    const fabric = new SimFabric(new FakeClock());
    const rank = async (name: string, tokensPerBlock: number) => {
      const agent = fabric.createAgent(name);
      const { table, sizeBytes } = pagesOf(tokensPerBlock);
      const pool = await agent.allocatePool({ sizeBytes });
      const pageTable = withAux(
        { ...table, pools: table.pools.map((of) => ({ ...of, base: of.base + pool.base })) },
        { base: (await agent.allocatePool({ sizeBytes: 64 })).base, slotBytes: 16, slotCount: 4 },
      );
      const info: RankInfo = {
        ...SINGLE_RANK,
        packageVersion: '0.0.0',
        instanceName: name,
        incarnation: 1n,
        rank: 0,
        layersPerStage: [3],
        endpoint: 'tcp://127.0.0.1:1',
        rankEndpoints: ['tcp://127.0.0.1:1'],
        agent: 'sim',
        agentMetadata: await agent.metadata(),
        pageTable,
      };
      return { agent, info };
    };
    const [from, to] = [await rank('small', 4), await rank('large', 8)];
    const link = await linkPeer(from.agent, from.info, to.info);
    expect(link.mapping.groups.map(({ group, part }) => [group, part])).toEqual([
      [0, 0],
      [0, 1],
      [1, 0],
      [1, 1],
      [2, 0],
    ]);
    const key = from.info.pageTable.pools[0];
    const target = to.info.pageTable.pools[0];
    if (key === undefined || target === undefined) throw new Error('no pool');
    // K of block o in slot 9 - o: 16 bytes that say which.
    for (let o = 0; o < 6; o++)
      from.agent.writeBytes(key.base + (9 - o) * key.slotStride, new Uint8Array(16).fill(o + 1));
    const runs = [
      { begin: 0, slots: Int32Array.of(7, 3, 5) },
      { begin: 3, slots: new Int32Array(0) },
      { begin: 0, slots: Int32Array.of(1) },
    ];
    const source = [{ begin: 1, slots: Int32Array.of(8, 7, 6, 5, 4) }, null, { begin: 0, slots: Int32Array.of(2) }];
    const plan = planSlice(link.mapping, source, runs);
    from.agent.onCompletions(() => {});
    from.agent.submit({ id: 1, peer: link.handle, flow: 1, groups: link.submissionGroups(plan), after: null });
    from.agent.run();
    const blocks = [7, 3, 5].map((slot) => {
      const bytes = to.agent.readBytes(target.base + slot * target.slotStride, 32);
      return [bytes[0], bytes[15], bytes[16], bytes[31]];
    });
    expect(blocks).toEqual([
      [0, 0, 2, 2],
      [3, 3, 4, 4],
      [5, 5, 6, 6],
    ]);
    expect(expectedBytes(link.mapping, runs, 24)).toBe(plan.stats.bytes + 32);
    const other = mapRanks(from.info, to.info);
    expect(() => link.submissionGroups(planSlice(other, source, runs))).toThrow(InternalError);
  });
});

it('sections survive the wire', () => {
  const { table } = pagesOf(4);
  expect(table.layerGroups[2]?.views[0]?.sections).toEqual([{ bytes: 12, unitBytes: 6 }]);
  expect(readPageTable(pageTableFields(table))).toEqual(table);
});
