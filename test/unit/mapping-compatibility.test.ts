import { describe, expect, it } from 'vitest';
import {
  buildPageTable,
  explainCompatibility,
  type GroupSpec,
  type PageTableSpec,
  type RankInfo,
  withAux,
} from '../../src/mapping/index.js';

function group(over: Partial<GroupSpec> = {}): GroupSpec {
  return { kind: 'attention', windowSize: null, tokensPerBlock: 4, layers: [0, 1, 2, 3], slotCount: 64, ...over };
}

function info(over: Partial<RankInfo> = {}, pages: Partial<PageTableSpec> = {}): RankInfo {
  const { table } = buildPageTable({
    groups: [group()],
    kvHeads: 2,
    headDim: 8,
    dtype: 'bfloat16',
    poolLayout: 'per-layer',
    blockLayout: 'HND',
    ...pages,
  });
  return {
    packageVersion: '0.1.0',
    instanceName: 'instance',
    incarnation: 1n,
    rank: 0,
    tpSize: 1,
    tpRank: 0,
    ppSize: 1,
    ppRank: 0,
    cpSize: 1,
    cpRank: 0,
    dpSize: 1,
    dpRank: 0,
    attentionDp: false,
    layersPerStage: [4],
    endpoint: 'tcp://127.0.0.1:1',
    agent: 'host',
    agentMetadata: new Uint8Array(0),
    pageTable: table,
    ...over,
  };
}

function fields(a: RankInfo, b: RankInfo): string[] {
  return explainCompatibility(a, b).map(({ field }) => field);
}

describe('explainCompatibility', () => {
  it('identical ranks, another pool layout, another pool size, another instance: compatible', () => {
    expect(explainCompatibility(info(), info({ instanceName: 'other', incarnation: 2n, rank: 3 }))).toEqual([]);
    expect(fields(info(), info({}, { poolLayout: 'per-block' }))).toEqual([]);
    expect(fields(info(), info({}, { groups: [group({ slotCount: 3 })] }))).toEqual([]);
    const device = { kind: 'device', deviceId: 1 } as const;
    expect(fields(info(), info({}, { memory: device }))).toEqual([]);
  });

  it('says field, both values, verdict and which side to change', () => {
    expect(explainCompatibility(info(), info({}, { dtype: 'float8_e4m3' }))).toEqual([
      {
        field: 'layerGroups[0].key.dtype',
        a: 'bfloat16',
        b: 'float8_e4m3',
        verdict: 'refused: no converter between dtypes',
        whichSideToChange: 'either: set the same KV cache dtype',
      },
      {
        field: 'layerGroups[0].value.dtype',
        a: 'bfloat16',
        b: 'float8_e4m3',
        verdict: 'refused: no converter between dtypes',
        whichSideToChange: 'either: set the same KV cache dtype',
      },
    ]);
  });

  it.each([
    [{ headDim: 16 }, ['layerGroups[0].key.headDim', 'layerGroups[0].value.headDim']],
    [{ kvHeads: 1 }, ['layerGroups[0].key.headsPerRank', 'layerGroups[0].value.headsPerRank']],
    [{ blockLayout: 'NHD' }, ['layerGroups[0].key.layout', 'layerGroups[0].value.layout']],
    [{ groups: [group({ windowSize: 512 })] }, ['layerGroups[0].windowSize']],
    [{ groups: [group({ kind: 'latent' })], latentDim: 16 }, ['layerGroups[0].kind']],
    [{ groups: [group({ layers: [0, 1, 2] })] }, ['layerGroups[0].key.layers', 'layerGroups[0].value.layers']],
    [{ groups: [group({ layers: [0, 1] }), group({ layers: [2, 3] })] }, ['layerGroups']],
    [
      { groups: [group({ tokensPerBlock: 8 })] },
      ['layerGroups[0].tokensPerBlock', 'layerGroups[0].key.bytes', 'layerGroups[0].value.bytes'],
    ],
  ] as [Partial<PageTableSpec>, string[]][])('page table %j', (pages, expected) => {
    expect(fields(info(), info({}, pages))).toEqual(expected);
    expect(fields(info({}, pages), info())).toEqual(expected);
  });

  it('calls MLA by its name and lists layers shortly', () => {
    const mla = info({}, { groups: [group({ kind: 'latent' })], latentDim: 16 });
    expect(explainCompatibility(info(), mla)[0]).toMatchObject({
      a: 'attention',
      b: 'latent',
      verdict: 'refused: MLA against a cache that is not MLA',
    });
    const some = info({}, { groups: [group({ layers: [0, 1, 2, 5] })] });
    expect(explainCompatibility(info(), some)[0]).toMatchObject({ a: '0-3', b: '0-2, 5' });
  });

  it('compares aux slots where both have some', () => {
    const withSlots = (slotBytes: number) => {
      const plain = info();
      return { ...plain, pageTable: withAux(plain.pageTable, { base: 1 << 20, slotBytes, slotCount: 2 }) };
    };
    expect(fields(withSlots(512), withSlots(512))).toEqual([]);
    expect(fields(withSlots(512), info())).toEqual([]);
    expect(fields(withSlots(512), withSlots(256))).toEqual(['aux.aux.headDim']);
  });

  it.each([
    [{ agent: 'nixl' }, ['agent']],
    [{ tpSize: 2 }, ['tpSize']],
    [{ ppSize: 2, layersPerStage: [2, 2] }, ['ppSize']],
    [{ cpSize: 2 }, ['cpSize']],
    [{ layersPerStage: [3] }, ['layersPerStage']],
    [{ attentionDp: true, dpSize: 2, tpSize: 4, tpRank: 3 }, ['tpSize / dpSize']],
    [{ tpSize: 0 }, ['tpSize']],
    [{ tpRank: 1 }, ['tpRank']],
    [{ ppRank: -1 }, ['ppRank']],
    [{ dpSize: Number.NaN }, ['dpSize']],
    [{ attentionDp: true, dpSize: 2, tpSize: 3 }, ['dpSize']],
  ] as [Partial<RankInfo>, string[]][])('topology %j', (over, expected) => {
    expect(fields(info(), info(over))).toEqual(expected);
    expect(fields(info(over), info())).toEqual(expected);
    for (const finding of explainCompatibility(info(), info(over))) {
      expect(finding.verdict).toMatch(/^refused: /);
      expect(finding.whichSideToChange).toMatch(/^(a|b|either)/);
    }
  });

  it('ranks pair one to one', () => {
    const tp = { tpSize: 2, layersPerStage: [4] };
    expect(fields(info({ ...tp, tpRank: 1 }), info({ ...tp, tpRank: 1 }))).toEqual([]);
    expect(fields(info({ ...tp, tpRank: 0 }), info({ ...tp, tpRank: 1 }))).toEqual(['tpRank']);
    const pp = { ppSize: 2, layersPerStage: [4, 4] };
    expect(fields(info({ ...pp, ppRank: 0 }), info({ ...pp, ppRank: 1 }))).toEqual(['ppRank']);
  });

  it('DP ranks may differ: each holds every head', () => {
    const dp = { attentionDp: true, dpSize: 4, tpSize: 4 };
    expect(fields(info({ ...dp, tpRank: 1, dpRank: 1 }), info({ ...dp, tpRank: 3, dpRank: 3 }))).toEqual([]);
    expect(fields(info(), info({ ...dp, tpRank: 3, dpRank: 3 }))).toEqual([]);
  });

  it('an invalid page table is a finding that names the field and the side', () => {
    const bad = info({ pageTable: { ...info().pageTable, pools: [] } });
    const [finding] = explainCompatibility(info(), bad);
    expect(finding).toMatchObject({ field: 'pageTable', a: 'not compared', whichSideToChange: 'b' });
    expect(finding?.b).toContain('layerGroups[0].views[0].layers[0].pool');
    expect(explainCompatibility(bad, info())[0]).toMatchObject({ b: 'not compared', whichSideToChange: 'a' });
  });

  it('stays short whatever a peer sends', () => {
    const layersPerStage = new Array<number>(50_000).fill(1);
    const many = info(
      {},
      { groups: Array.from({ length: 256 }, (_, layer) => group({ layers: [layer], tokensPerBlock: 8 })) },
    );
    const other = info({}, { groups: Array.from({ length: 256 }, (_, layer) => group({ layers: [layer] })) });
    const findings = [...explainCompatibility(many, other), ...explainCompatibility(info(), info({ layersPerStage }))];
    expect(findings.length).toBe(65);
    for (const finding of findings) expect(finding.a.length + finding.b.length).toBeLessThan(500);
  });
});
