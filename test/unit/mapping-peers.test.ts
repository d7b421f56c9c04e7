import { describe, expect, it } from 'vitest';
import { ArgumentError } from '../../src/errors.js';
import { kvHeadShard, peersOf, type RankPlace } from '../../src/mapping/index.js';

function place(over: Partial<RankPlace> = {}): RankPlace {
  return {
    tpSize: 1,
    tpRank: 0,
    ppSize: 1,
    ppRank: 0,
    cpSize: 1,
    cpRank: 0,
    dpSize: 1,
    attentionDp: false,
    layersPerStage: [32],
    ...over,
  };
}

describe('peersOf', () => {
  it('identity', () => {
    const tp2 = { tpSize: 2, ppSize: 2, layersPerStage: [16, 16] };
    for (const ppRank of [0, 1]) {
      for (const tpRank of [0, 1])
        expect(peersOf(place({ ...tp2, tpRank, ppRank }), place(tp2), 0)).toEqual([ppRank * 2 + tpRank]);
    }
  });

  it('TP2 -> TP4: context 0 writes to generation 0 and 1, each generation rank has one writer', () => {
    const [context, generation] = [{ tpSize: 2 }, { tpSize: 4 }];
    expect(peersOf(place({ ...context, tpRank: 0 }), place(generation), 0)).toEqual([0, 1]);
    expect(peersOf(place({ ...context, tpRank: 1 }), place(generation), 0)).toEqual([2, 3]);
    expect([0, 1, 2, 3].map((tpRank) => peersOf(place({ ...generation, tpRank }), place(context), 0))).toEqual([
      [0],
      [0],
      [1],
      [1],
    ]);
  });

  it('TP4 -> TP2: generation 0 expects two reports', () => {
    expect(peersOf(place({ tpSize: 2, tpRank: 0 }), place({ tpSize: 4 }), 0)).toEqual([0, 1]);
    expect(peersOf(place({ tpSize: 2, tpRank: 1 }), place({ tpSize: 4 }), 0)).toEqual([2, 3]);
  });

  it('PP [16,16] -> PP [32]: two reports', () => {
    const stages = { ppSize: 2, layersPerStage: [16, 16] };
    expect(peersOf(place(), place(stages), 0)).toEqual([0, 1]);
    expect(peersOf(place({ ...stages, ppRank: 1 }), place(), 0)).toEqual([0]);
  });

  it('unequal splits meet where their layers do; an empty stage meets nobody', () => {
    const mine = { ppSize: 3, layersPerStage: [10, 0, 22] };
    const theirs = { ppSize: 2, tpSize: 2, layersPerStage: [12, 20] };
    expect(peersOf(place({ ...mine, ppRank: 0 }), place(theirs), 0)).toEqual([0, 1]);
    expect(peersOf(place({ ...mine, ppRank: 1 }), place(theirs), 0)).toEqual([]);
    expect(peersOf(place({ ...mine, ppRank: 2 }), place(theirs), 0)).toEqual([0, 1, 2, 3]);
  });

  it('attention DP: only the ranks of the DP group that holds the request', () => {
    const dp = { tpSize: 8, dpSize: 4, attentionDp: true };
    expect(peersOf(place({ tpSize: 2, tpRank: 1 }), place(dp), 3)).toEqual([7]);
    expect(peersOf(place(), place(dp), 2)).toEqual([4, 5]);
    // My own place inside my DP group counts, not my global tensor rank.
    expect(peersOf(place({ ...dp, tpRank: 5 }), place({ tpSize: 4 }), 0)).toEqual([2, 3]);
  });

  it('context parallel on one side; CP is the minor rank', () => {
    expect(peersOf(place({ tpSize: 2, tpRank: 1 }), place({ tpSize: 2, cpSize: 3 }), 0)).toEqual([3, 4, 5]);
    expect(peersOf(place({ cpSize: 3, cpRank: 2 }), place(), 0)).toEqual([0]);
  });

  it.each([
    [{ tpSize: 2 }, { tpSize: 3 }, 0, /one must divide/],
    [{ cpSize: 2 }, { cpSize: 2 }, 0, /context parallel on both sides/],
    [{}, { layersPerStage: [31] }, 0, /32 layers against 31/],
    [{ tpRank: 1 }, {}, 0, /me.tpRank/],
    [{ ppRank: -1 }, {}, 0, /me.ppRank/],
    [{}, { tpSize: 0 }, 0, /peer.tpSize/],
    [{}, { tpSize: 2 ** 40 }, 0, /peer has 1099511627776 ranks, at most 65536/],
    [{}, { ppSize: 2 }, 0, /1 entries for 2 pipeline stages/],
    [{}, { layersPerStage: [0.5] }, 0, /non-negative integers/],
    [{}, { attentionDp: true, tpSize: 4, dpSize: 3 }, 0, /must divide tpSize 4/],
    [{}, { attentionDp: true, tpSize: 4, dpSize: 2 }, 2, /peerDpRank/],
  ] as [Partial<RankPlace>, Partial<RankPlace>, number, RegExp][])('refuses %j -> %j', (me, peer, dpRank, message) => {
    expect(() => peersOf(place(me), place(peer), dpRank)).toThrow(message);
    expect(() => peersOf(place(me), place(peer), dpRank)).toThrow(ArgumentError);
  });
});

describe('kvHeadShard', () => {
  it('splits heads, or duplicates them where ranks outnumber them', () => {
    expect([0, 1].map((tpRank) => kvHeadShard(8, 2, tpRank))).toMatchObject([
      { headsPerRank: 4, firstHead: 0, numShards: 2, shardIndex: 0, numReplicas: 1 },
      { headsPerRank: 4, firstHead: 4, numShards: 2, shardIndex: 1, numReplicas: 1 },
    ]);
    expect([0, 1, 2, 3].map((tpRank) => kvHeadShard(2, 4, tpRank))).toEqual([
      { headsPerRank: 1, firstHead: 0, numShards: 2, shardIndex: 0, numReplicas: 2, replicaIndex: 0 },
      { headsPerRank: 1, firstHead: 0, numShards: 2, shardIndex: 0, numReplicas: 2, replicaIndex: 1 },
      { headsPerRank: 1, firstHead: 1, numShards: 2, shardIndex: 1, numReplicas: 2, replicaIndex: 0 },
      { headsPerRank: 1, firstHead: 1, numShards: 2, shardIndex: 1, numReplicas: 2, replicaIndex: 1 },
    ]);
  });

  it.each([
    [6, 4, 0, /kvHeads 6 and tpSize 4: one must divide the other/],
    [0, 4, 0, /kvHeads must be a positive integer, got 0/],
    [8, Number.NaN, 0, /tpSize must be a positive integer, got NaN/],
    [8, 2, 2, /tpRank must be an integer below 2, got 2/],
    [8, 2, -1, /tpRank/],
  ])('refuses %d heads on rank %d / %d', (kvHeads, tpSize, tpRank, message) => {
    expect(() => kvHeadShard(kvHeads, tpSize, tpRank)).toThrow(message);
    expect(() => kvHeadShard(kvHeads, tpSize, tpRank)).toThrow(ArgumentError);
  });
});
