import { describe, expect, it } from 'vitest';
import type { LayerGroup } from '../../../src/cache/kv-cache-manager.js';
import { CompatibilityError } from '../../../src/errors.js';
import { buildPageTable, flatRank, type RankInfo, SINGLE_RANK } from '../../../src/mapping/index.js';
import { instanceFinding } from '../../../src/session/instance-identity.js';
import type { RxSession } from '../../../src/session/rx-session.js';
import type { RxWriter } from '../../../src/session/rx-writer.js';
import { salvageableTokens } from '../../../src/session/salvage.js';
import { VerifiedPrefix } from '../../../src/session/verified-prefix.js';
import { chooseWriters } from '../../../src/session/writer-choice.js';
import { type Rank, type RankRequest, RankWorld } from '../../sim-lite/rank-world.js';
import { questionTo, speak } from './under-way.js';

function info(place: Partial<RankInfo>, tokensPerBlock = 4): RankInfo {
  const whole = { ...SINGLE_RANK, layersPerStage: [4], ...place };
  const ranks = whole.tpSize * whole.ppSize * whole.cpSize;
  const rankEndpoints = Array.from({ length: ranks }, (_, rank) => `tcp://10.0.0.${rank + 1}:9`);
  const rank = flatRank(whole);
  const { table } = buildPageTable({
    groups: [{ kind: 'attention', windowSize: null, tokensPerBlock, layers: [0, 1, 2, 3], slotCount: 8 }],
    kvHeads: 2,
    headDim: 4,
    dtype: 'bfloat16',
    poolLayout: 'per-layer',
    blockLayout: 'HND',
  });
  return {
    packageVersion: '0.0.0',
    instanceName: 'context',
    incarnation: BigInt(rank + 1),
    agent: 'sim',
    agentMetadata: new Uint8Array(0),
    endpoint: rankEndpoints[rank] ?? '',
    rankEndpoints,
    pageTable: table,
    ...whole,
    rank,
    ...(place.rankEndpoints === undefined ? {} : { rankEndpoints: place.rankEndpoints }),
  };
}

const shown = (groups: ReturnType<typeof chooseWriters>) =>
  groups.map(({ dpRank, writers }) => [
    dpRank,
    ...writers.map(({ rank, sendsAux }) => (sendsAux ? `${rank} aux` : rank)),
  ]);

describe('chooseWriters', () => {
  it('every overlapping rank, by what any rank says of its instance; the first one sends aux', () => {
    const context = { tpSize: 2, ppSize: 2, layersPerStage: [3, 1] };
    const groups = chooseWriters(info({}), info({ ...context, ppRank: 1, tpRank: 1 }), null);
    expect(shown(groups)).toEqual([[0, '0 aux', 1, 2, 3]]);
    expect(groups[0]?.writers.map(({ endpoint }) => endpoint)).toEqual([1, 2, 3, 4].map((n) => `tcp://10.0.0.${n}:9`));
    expect(shown(chooseWriters(info({ tpSize: 4, tpRank: 3 }), info(context), null))).toEqual([[0, '1 aux', 3]]);
  });

  it('attention DP: of an instance that says it has hundreds of groups, only a named one is asked', () => {
    const of = (dpSize: number): RankInfo => info({ tpSize: dpSize, dpSize, attentionDp: true });
    expect(chooseWriters(info({}), of(256), null)).toHaveLength(256);
    expect(() => chooseWriters(info({}), of(257), null)).toThrow(/has 257 DP groups.*ctxDpRank/);
    expect(() => chooseWriters(info({}), of(257), null)).toThrow(CompatibilityError);
    expect(shown(chooseWriters(info({}), of(5000), 4999))).toEqual([[4999, '4999 aux']]);
  });

  it('attention DP: the named group, or every one', () => {
    const context = info({ tpSize: 4, dpSize: 2, attentionDp: true });
    expect(shown(chooseWriters(info({}), context, 1))).toEqual([[1, '2 aux', 3]]);
    expect(shown(chooseWriters(info({}), context, null))).toEqual([
      [0, '0 aux', 1],
      [1, '2 aux', 3],
    ]);
    for (const group of [-1, 2, 0.5]) expect(() => chooseWriters(info({}), context, group)).toThrow(CompatibilityError);
  });

  it('a rank whose stage has no layer has nobody to ask', () => {
    const self = info({ ppSize: 2, ppRank: 1, layersPerStage: [4, 0] });
    expect(() => chooseWriters(self, info({}), null)).toThrow(/no rank of context shares/);
  });
});

describe('instanceFinding', () => {
  const of = (place: Partial<RankInfo>, tokensPerBlock?: number) => info({ tpSize: 2, ...place }, tokensPerBlock);

  it('ranks of one instance', () => {
    expect(instanceFinding(of({}), of({ tpRank: 1 }))).toBeNull();
  });

  it.each([
    [{ instanceName: 'other' }, 'instanceName'],
    [{ tpSize: 4 }, 'tpSize'],
    [{ layersPerStage: [5] }, 'layersPerStage'],
    [{ attentionDp: true, dpSize: 2 }, 'dpSize'],
    [{ agent: 'host' }, 'agent'],
    [{ rankEndpoints: ['tcp://10.0.0.1:9', 'tcp://10.0.0.3:9'] }, 'rankEndpoints'],
  ] as const)('%j: names %s', (place, field) => {
    expect(instanceFinding(of({}), of({ tpRank: 1, ...place }))?.field).toBe(field);
  });

  it('another block size', () => {
    expect(instanceFinding(of({}), of({ tpRank: 1 }, 8))).toMatchObject({ field: 'tokensPerBlock', a: '4', b: '8' });
  });
});

describe('VerifiedPrefix', () => {
  it('grows over slices in any order, twice, and stops at a gap', () => {
    const prefix = new VerifiedPrefix();
    const ends = (
      [
        [2, 4],
        [0, 1],
        [0, 1],
        [6, 9],
        [1, 2],
        [5, 6],
        [4, 4],
      ] as const
    ).map(([begin, end]) => {
      prefix.add(begin, end, end - begin);
      return prefix.endBlock;
    });
    expect(ends).toEqual([0, 1, 1, 1, 4, 4, 4]);
    prefix.add(4, 5, 1);
    expect([prefix.endBlock, prefix.bytes]).toEqual([9, 9]);
  });

  it('counts every block once: a slice that overlaps another is not believed', () => {
    const prefix = new VerifiedPrefix();
    for (const [begin, end] of [
      [0, 2],
      [1, 4],
      [0, 9],
    ] as const)
      prefix.add(begin, end, 100);
    expect([prefix.endBlock, prefix.bytes]).toEqual([2, 100]);
  });

  it('remembers a bounded number of slices that came too early', () => {
    const prefix = new VerifiedPrefix();
    for (let block = 1; block <= 100; block += 1) prefix.add(block, block + 1, 1);
    prefix.add(0, 1, 1);
    expect(prefix.endBlock).toBe(65);
  });
});

describe('salvageableTokens', () => {
  /** The plan moves 10 bytes a block. */
  const session = (verifiedEndBlock: number, prepopulatedLen = 0, writer: Partial<RxWriter> = {}) =>
    ({
      outcome: 'failed',
      expected: [
        {
          verifiedEndBlock,
          verifiedBytes: 10 * verifiedEndBlock,
          blockTokens: 4,
          outcome: null,
          reportedBytes: 0,
          ...writer,
        },
      ],
      request: { promptTokens: new Uint32Array(40), prepopulatedLen },
    }) as unknown as RxSession;
  const salvaged = (failed: RxSession, groups: readonly LayerGroup[]): number =>
    salvageableTokens(failed, groups, (_, endBlock) => 10 * endBlock);
  const group = { kind: 'attention', windowSize: null, tokensPerBlock: 4, layers: [0], slotCount: 16 } as const;

  it('full attention: what arrived, in whole blocks of the receiver', () => {
    expect(salvaged(session(3), [group])).toBe(12);
    expect(salvaged(session(3), [group, { ...group, tokensPerBlock: 8 }])).toBe(8);
    expect(salvaged(session(3, 12), [group])).toBe(0);
    expect(salvaged({ ...session(3), expected: [] } as unknown as RxSession, [group])).toBe(0);
  });

  it('a window: only when token k sees nothing that was left out', () => {
    // The end of the prompt looks at the blocks from 8 on: (40 - 8 + 1) / 4.
    const window = { ...group, windowSize: 8 };
    expect(salvaged(session(9), [group, window])).toBe(0);
    expect(salvaged(session(10), [group, window])).toBe(40);
    expect(salvaged(session(3), [group, { ...group, windowSize: 64 }])).toBe(12);
  });

  it('nothing from a writer whose slices moved other bytes than the plan, or more than its report admits', () => {
    expect(salvaged(session(3, 0, { verifiedBytes: 29 }), [group])).toBe(0);
    expect(salvaged(session(3, 0, { verifiedBytes: 31 }), [group])).toBe(0);
    expect(salvaged(session(3, 0, { outcome: 'FAILED', reportedBytes: 29 }), [group])).toBe(0);
    expect(salvaged(session(3, 0, { outcome: 'FAILED', reportedBytes: 30 }), [group])).toBe(12);
    expect(salvaged(session(3, 0, { blockTokens: null }), [group])).toBe(0);
  });

  it('recurrent state comes with the last slice', () => {
    expect(salvaged(session(9), [group, { ...group, kind: 'state' }])).toBe(0);
  });
});

describe('who may be a receiver', () => {
  it('a rank that asks twice with another ticket, and one of another instance, are refused; the request goes on', async () => {
    const world = new RankWorld();
    const context = await world.instance('context');
    const generation = await world.instance('generation', { tpSize: 2 });
    const [other] = (await world.instance('other')) as [Rank];
    const sent = world.place(context, 'context');
    const endpoint = context[0]?.transceiver.endpoint ?? '';
    const received = world.place(generation, 'generation', { endpoint });
    const [foreign] = world.place([other], 'generation', { endpoint }) as [RankRequest];
    const [first, second] = received as [RankRequest, RankRequest];
    world.ask([first]);
    await world.run(50);
    expect(sent[0]?.rank.transceiver.receiverReady(sent[0].request)).toBe(false);
    const twice = { ...questionTo(world, context[0] as Rank), ticket: 0x7777n };
    speak(world, first.rank, context[0] as Rank, twice);
    world.ask([foreign]);
    await world.run(50);
    const answer = world.network.log.find(({ message }) => 'ticket' in message && message.ticket === twice.ticket);
    expect(answer?.message).toMatchObject({ outcome: 'REFUSED', errorCode: 'ERR_KVT_SESSION_RETIRED', drained: true });
    expect(answer?.message).toMatchObject({ message: expect.stringContaining('cancel the earlier attempt first') });
    const refused = foreign.rank.settled.find((settled) => settled.request === foreign.request)?.error;
    expect(refused).toMatchObject({ details: { remoteCode: 'ERR_KVT_COMPATIBILITY' } });
    expect(refused?.message).toContain('another instance');
    world.ask([second]);
    await world.run(50);
    world.chunk(sent, 0, 16);
    await world.run(50);
    for (const placed of received) {
      expect(placed.rank.settled.at(-1)).toMatchObject({ outcome: 'completed' });
      expect(world.wrongWords(placed)).toBe(0);
    }
    expect(world.leftovers()).toEqual([]);
  });

  it('a rank of another DP group of the same instance is refused', async () => {
    const world = new RankWorld();
    const context = await world.instance('context');
    const generation = await world.instance('generation', { tpSize: 4, dpSize: 2 });
    const sent = world.place(context, 'context');
    const endpoint = context[0]?.transceiver.endpoint ?? '';
    const received = world.place(generation, 'generation', { endpoint });
    world.chunk(sent, 0, 8);
    world.ask(received.slice(0, 1));
    await world.run(50);
    world.ask(received.slice(2, 3));
    await world.run(50);
    expect(received[2]?.rank.settled[0]?.error?.message).toContain('has no part of what generation rank 0');
    expect(received[0]?.rank.settled).toEqual([]);
  });

  it('one rank cancels before the context request exists: its siblings hear it', async () => {
    const world = new RankWorld();
    const context = await world.instance('context');
    const generation = await world.instance('generation', { tpSize: 2 });
    const sent = world.place(context, 'context');
    const received = world.place(generation, 'generation', { endpoint: context[0]?.transceiver.endpoint ?? '' });
    world.ask(received);
    await world.run(50);
    const [first] = received as [RankRequest];
    first.rank.transceiver.cancelRequest(first.request, 'client left');
    await world.run(50);
    expect(received.map(({ rank }) => rank.settled.map(({ outcome }) => outcome))).toEqual([
      ['cancelled'],
      ['cancelled'],
    ]);
    expect(sent[0]?.rank.transceiver.receiverReady(sent[0].request)).toBe(false);
    await world.run(20);
    expect(context[0]?.settled).toMatchObject([{ outcome: 'cancelled' }]);
    expect(world.leftovers()).toEqual([]);
  });
});
