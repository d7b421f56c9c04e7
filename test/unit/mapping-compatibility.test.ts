import { describe, expect, it } from 'vitest';
import { CompatibilityError } from '../../src/errors.js';
import {
  buildPageTable,
  explainCompatibility,
  type GroupSpec,
  mapPeer,
  mapRanks,
  type PageTableSpec,
  type RankInfo,
  validatePageTable,
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
    rankEndpoints: ['tcp://127.0.0.1:1'],
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
    expect(fields(info(), info({}, { blockLayout: 'NHD' }))).toEqual([]);
    expect(fields(info(), info({}, { groups: [group({ tokensPerBlock: 8 })] }))).toEqual([]);
    expect(fields(info(), info({}, { groups: [group({ layers: [0, 1] }), group({ layers: [2, 3] })] }))).toEqual([]);
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
    [{ groups: [group({ windowSize: 512 })] }, ['layerGroups[0].windowSize']],
    [{ groups: [group({ kind: 'latent' })], latentDim: 16 }, ['layerGroups[0].kind']],
    [{ groups: [group({ layers: [0, 1, 2] })] }, ['layerGroups[0].key.layers', 'layerGroups[0].value.layers']],
    [{ groups: [group({ tokensPerBlock: 6 })] }, ['layerGroups[0].tokensPerBlock']],
    [{ groups: [group({ tokensPerBlock: 2048 })] }, ['layerGroups[0].tokensPerBlock']],
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

  it('refuses another way to pack aux slots, and says who is behind; a table that does not say packs them the first way', () => {
    const packed = (auxLayout?: number) => {
      const plain = info();
      const pageTable = withAux(plain.pageTable, { base: 1 << 20, slotBytes: 512, slotCount: 2 });
      const { auxLayout: ours, ...aux } = pageTable.aux as NonNullable<typeof pageTable.aux>;
      expect(ours).toBe(2);
      return {
        ...plain,
        pageTable: validatePageTable({ ...pageTable, aux: auxLayout === undefined ? aux : { ...aux, auxLayout } }),
      };
    };
    expect(fields(packed(2), packed(2))).toEqual([]);
    expect(fields(packed(), packed(1))).toEqual([]);
    expect(explainCompatibility(packed(2), packed())).toMatchObject([
      { field: 'aux.auxLayout', a: '2', b: '1', whichSideToChange: expect.stringMatching(/^b: /) },
    ]);
    expect(explainCompatibility(packed(2), packed(3))).toMatchObject([
      { field: 'aux.auxLayout', a: '2', b: '3', whichSideToChange: expect.stringMatching(/^a: /) },
    ]);
    expect(() => packed(0)).toThrow(/aux\.auxLayout/);
    expect(() => packed(1.5)).toThrow(/aux\.auxLayout/);
    expect(() => mapPeer(packed(2).pageTable, packed(1).pageTable)).toThrow(CompatibilityError);
  });

  it.each([
    [{ agent: 'nixl' }, ['agent']],
    [{ tpSize: 2 }, ['layerGroups[0].key.headsPerRank', 'layerGroups[0].value.headsPerRank']],
    [{ ppSize: 2, layersPerStage: [2, 2] }, ['layerGroups[0].layers']],
    [{ ppSize: 2 }, ['layersPerStage']],
    [{ layersPerStage: [3] }, ['layersPerStage']],
    [{ layersPerStage: [3.5] }, ['layersPerStage']],
    [{ layersPerStage: 4 as unknown as number[] }, ['layersPerStage']],
    [{ attentionDp: 1 as unknown as boolean }, ['attentionDp']],
    [{ attentionDp: true, dpSize: 2, tpSize: 4, tpRank: 3 }, ['dpRank']],
    [{ tpSize: 0 }, ['tpSize']],
    [{ tpSize: 2 ** 31 }, ['tpSize x ppSize x cpSize']],
    [{ tpSize: 300, cpSize: 300 }, ['tpSize x ppSize x cpSize']],
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

  it('ranks that share nothing are a mistake, and the finding says where both stand', () => {
    const tp = { tpSize: 2, layersPerStage: [4] };
    expect(fields(info({ ...tp, tpRank: 1 }), info({ ...tp, tpRank: 1 }))).toEqual([]);
    expect(explainCompatibility(info({ ...tp, tpRank: 0 }), info({ ...tp, tpRank: 1 }))).toEqual([
      {
        field: 'rank',
        a: 'rank 0: tp 0/2, pp 0/1, cp 0/1',
        b: 'rank 1: tp 1/2, pp 0/1, cp 0/1',
        verdict: 'refused: these two ranks share no layer, head or block',
        whichSideToChange: 'either: connect each rank to the ranks that peersOf names',
      },
    ]);
    const pp = { ppSize: 2, layersPerStage: [4, 4] };
    expect(fields(info({ ...pp, ppRank: 0 }), info({ ...pp, ppRank: 1 }))).toEqual(['rank']);
  });

  it('tensor parallel sizes may differ where the heads add up, also when more ranks than heads hold copies', () => {
    const tp = (tpSize: number, kvHeads: number, tpRank = 0) => info({ tpSize, tpRank }, { kvHeads });
    expect(fields(tp(2, 4), tp(4, 2))).toEqual([]);
    expect(fields(tp(4, 1), tp(2, 1))).toEqual([]);
    expect(fields(tp(8, 1, 7), tp(2, 2, 1))).toEqual([]);
    expect(fields(tp(8, 1, 7), tp(2, 2, 0))).toEqual(['rank']);
    expect(explainCompatibility(tp(4, 3), tp(2, 4))[0]).toMatchObject({
      field: 'layerGroups[0].key.headsPerRank',
      a: '3 x 4 ranks',
      b: '4 x 2 ranks',
      verdict: 'refused: the heads differ',
    });
    expect(fields(tp(3, 2), tp(2, 3))).toEqual(['tpSize']);
    const dp = { attentionDp: true, dpSize: 2, tpSize: 6 };
    expect(fields(info(dp), tp(2, 2))).toEqual(['tpSize / dpSize']);
  });

  it('pipeline splits may differ: only the layers of both stages count', () => {
    const stage = (layersPerStage: number[], ppRank: number, layers: number[]) =>
      info({ ppSize: layersPerStage.length, ppRank, layersPerStage }, { groups: [group({ layers })] });
    expect(fields(stage([3, 1], 0, [0, 1, 2]), stage([1, 3], 1, [1, 2, 3]))).toEqual([]);
    expect(fields(info(), stage([3, 1], 1, [3]))).toEqual([]);
    expect(fields(stage([3, 1], 1, [3]), stage([1, 3], 0, [0]))).toEqual(['rank']);
    const lacking = explainCompatibility(stage([3, 1], 0, [0, 2]), stage([1, 3], 1, [1, 2, 3]));
    expect(lacking.map(({ field, a, b }) => [field, a, b])).toEqual([
      ['layerGroups[0].key.layers', '2', '1-2'],
      ['layerGroups[0].value.layers', '2', '1-2'],
    ]);
    expect(explainCompatibility(stage([3, 1], 0, [0, 1, 2, 3]), info())).toEqual([
      {
        field: 'layerGroups[0].layers',
        a: '3',
        b: 'not compared',
        verdict: 'refused: pipeline stage 0 has the layers 0 to 2 (layersPerStage)',
        whichSideToChange: 'a',
      },
    ]);
  });

  it('a layer that two groups of one table hold is refused at the side that has it', () => {
    const apart = info({}, { groups: [group(), group({ layers: [4] })] }).pageTable;
    const layerGroups = apart.layerGroups.map(({ views, ...rest }) => ({
      ...rest,
      views: views.map((view) => ({
        ...view,
        layers: view.layers.map((entry) => ({ ...entry, layer: Math.min(3, entry.layer) })),
      })),
    }));
    const twice = info({ pageTable: { ...apart, layerGroups } });
    expect(explainCompatibility(info(), twice)).toEqual([
      {
        field: 'layerGroups[1].views',
        a: 'not compared',
        b: 'key of layer 3',
        verdict: 'refused: another group of the same page table holds that already',
        whichSideToChange: 'b',
      },
    ]);
    expect(() => mapRanks(twice, info())).toThrow(CompatibilityError);
  });

  it('context parallel on one side only', () => {
    expect(fields(info({ cpSize: 2, cpRank: 1 }), info())).toEqual([]);
    expect(fields(info({ cpSize: 2 }), info({ cpSize: 2 }))).toEqual(['cpSize']);
  });

  it('recurrent state: sections must be the same ones', () => {
    const state = (over: Partial<RankInfo>, channels: number[], heads: number, width = 3) =>
      info(over, {
        groups: [group({ kind: 'state' })],
        state: {
          conv: {
            dtype: 'bfloat16',
            width,
            sections: channels.map((count, index) => ({ channels: count, unitChannels: index === 0 ? 4 : 2 })),
          },
          ssm: { dtype: 'float32', heads, headElements: 8 },
        },
      });
    expect(fields(state({}, [16, 4], 8), state({ tpSize: 2 }, [8, 2], 4))).toEqual([]);
    // The second section has fewer units than ranks: two ranks hold the same one.
    expect(fields(state({}, [16, 4], 8), state({ tpSize: 4 }, [4, 2], 2))).toEqual([]);
    expect(fields(state({}, [16, 4], 8), state({}, [16, 4], 8, 4))).toEqual(['layerGroups[0].conv_state.headDim']);
    expect(fields(state({}, [16, 4], 8), state({}, [20], 8))).toEqual(['layerGroups[0].conv_state.sections']);
    expect(fields(state({}, [16, 4], 8), state({ tpSize: 2 }, [8, 2], 3))).toEqual([
      'layerGroups[0].ssm_state.sections',
    ]);
  });

  it('a head of a token that is no whole number of bytes is moved whole or not at all', () => {
    const odd = (tpSize: number, kvHeads: number) => info({ tpSize }, { dtype: 'float4_e2m1', headDim: 3, kvHeads });
    expect(fields(odd(1, 4), odd(1, 4))).toEqual([]);
    expect(fields(odd(1, 4), odd(2, 2))).toEqual(['layerGroups[0].key.bytes', 'layerGroups[0].value.bytes']);
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
      { groups: Array.from({ length: 256 }, (_, layer) => group({ layers: [layer], tokensPerBlock: 6 })) },
    );
    const other = info({}, { groups: Array.from({ length: 256 }, (_, layer) => group({ layers: [layer] })) });
    const findings = [...explainCompatibility(many, other), ...explainCompatibility(info(), info({ layersPerStage }))];
    expect(findings.length).toBe(65);
    for (const finding of findings) expect(finding.a.length + finding.b.length).toBeLessThan(500);
  });
});
