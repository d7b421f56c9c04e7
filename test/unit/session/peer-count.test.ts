import { describe, expect, it } from 'vitest';
import { buildPageTable, type RankInfo, SINGLE_RANK } from '../../../src/mapping/index.js';
import { severalPeersFinding } from '../../../src/session/peer-count.js';

function rank(kvHeads: number, place: Partial<RankInfo>): RankInfo {
  const { table } = buildPageTable({
    groups: [{ kind: 'attention', windowSize: null, tokensPerBlock: 4, layers: [0, 1], slotCount: 8 }],
    kvHeads,
    headDim: 4,
    dtype: 'bfloat16',
    poolLayout: 'per-layer',
    blockLayout: 'HND',
  });
  return {
    packageVersion: '0.0.0',
    instanceName: 'x',
    incarnation: 1n,
    rank: 0,
    ...SINGLE_RANK,
    layersPerStage: [2],
    endpoint: 'tcp://127.0.0.1:1',
    agent: 'sim',
    agentMetadata: new Uint8Array(0),
    pageTable: table,
    ...place,
  };
}

describe('severalPeersFinding', () => {
  it('lets one rank talk to one rank, also where both are one of several', () => {
    expect(severalPeersFinding(rank(8, {}), rank(8, {}))).toBeNull();
    expect(severalPeersFinding(rank(4, { tpSize: 2, tpRank: 1 }), rank(4, { tpSize: 2, tpRank: 1 }))).toBeNull();
  });

  it('refuses a split over several ranks of either side, naming what to change', () => {
    const [one, half] = [rank(8, {}), rank(4, { tpSize: 2, tpRank: 0 })];
    expect(severalPeersFinding(one, half)?.verdict).toContain('1 writers and 2 receivers');
    expect(severalPeersFinding(half, one)).toMatchObject({
      field: 'peers',
      a: 'TP 2, PP 1, CP 1',
      b: 'TP 1, PP 1, CP 1',
    });
    expect(severalPeersFinding(half, one)?.whichSideToChange).toContain('tpSize');
  });
});
