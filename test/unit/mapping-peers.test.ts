import { describe, expect, it } from 'vitest';
import { ArgumentError } from '../../src/errors.js';
import { peersOf, type RankPlace } from '../../src/mapping/index.js';

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
    [{}, { ppSize: 2 }, 0, /1 entries for 2 pipeline stages/],
    [{}, { layersPerStage: [0.5] }, 0, /non-negative integers/],
    [{}, { attentionDp: true, tpSize: 4, dpSize: 3 }, 0, /must divide tpSize 4/],
    [{}, { attentionDp: true, tpSize: 4, dpSize: 2 }, 2, /peerDpRank/],
  ] as [Partial<RankPlace>, Partial<RankPlace>, number, RegExp][])('refuses %j -> %j', (me, peer, dpRank, message) => {
    expect(() => peersOf(place(me), place(peer), dpRank)).toThrow(message);
    expect(() => peersOf(place(me), place(peer), dpRank)).toThrow(ArgumentError);
  });
});
