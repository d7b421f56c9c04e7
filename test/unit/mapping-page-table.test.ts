import { describe, expect, it } from 'vitest';
import { ArgumentError, KvTransceiverError, ProtocolError } from '../../src/errors.js';
import {
  buildPageTable,
  type GroupSpec,
  type PageTableSpec,
  rebasePageTable,
  type StateSpec,
  validatePageTable,
  validateRun,
  withAux,
} from '../../src/mapping/index.js';

function group(over: Partial<GroupSpec> = {}): GroupSpec {
  return { kind: 'attention', windowSize: null, tokensPerBlock: 4, layers: [0, 1], slotCount: 8, ...over };
}

function spec(over: Partial<PageTableSpec> = {}): PageTableSpec {
  return {
    groups: [group()],
    kvHeads: 2,
    headDim: 8,
    dtype: 'bfloat16',
    poolLayout: 'per-layer',
    blockLayout: 'HND',
    ...over,
  };
}

function stateOf(conv: Partial<StateSpec['conv']>): StateSpec {
  const sections = [{ channels: 2, unitChannels: 1 }];
  return { conv: { dtype: 'int8', width: 1, sections, ...conv }, ssm: { dtype: 'int8', heads: 1, headElements: 1 } };
}

// 2 heads x 8 elements x 4 tokens x 2 bytes.
const HALF = 128;

describe('buildPageTable', () => {
  it('per-layer: one pool per layer, K then V, each pool on its own memory page', () => {
    const { table, sizeBytes } = buildPageTable(spec());
    expect(
      table.pools.map(({ base, slotBytes, slotStride, slotCount }) => [base, slotBytes, slotStride, slotCount]),
    ).toEqual([
      [0, 2 * HALF, 2 * HALF, 8],
      [4096, 2 * HALF, 2 * HALF, 8],
    ]);
    const [key, value] = table.layerGroups[0]?.views ?? [];
    expect(key).toEqual({
      role: 'key',
      dtype: 'bfloat16',
      layout: 'HND',
      headsPerRank: 2,
      headDim: 8,
      layers: [
        { layer: 0, pool: 0, offset: 0, bytes: HALF },
        { layer: 1, pool: 1, offset: 0, bytes: HALF },
      ],
    });
    expect(value?.role).toBe('value');
    expect(value?.layers).toEqual([
      { layer: 0, pool: 0, offset: HALF, bytes: HALF },
      { layer: 1, pool: 1, offset: HALF, bytes: HALF },
    ]);
    expect(sizeBytes).toBe(8192);
  });

  it('per-block: one pool per group, a slot holds all its layers', () => {
    const groups = [group(), group({ windowSize: 16, layers: [2, 5], slotCount: 40 })];
    const { table, sizeBytes } = buildPageTable(spec({ groups, poolLayout: 'per-block', blockLayout: 'NHD' }));
    expect(table.pools.map(({ base, slotBytes }) => [base, slotBytes])).toEqual([
      [0, 4 * HALF],
      [4096, 4 * HALF],
    ]);
    expect(table.layerGroups[1]?.views[1]?.layers).toEqual([
      { layer: 2, pool: 1, offset: HALF, bytes: HALF },
      { layer: 5, pool: 1, offset: 3 * HALF, bytes: HALF },
    ]);
    expect(table.layerGroups[1]).toMatchObject({ windowSize: 16, slotCount: 40, kind: 'attention', tokensPerBlock: 4 });
    expect(sizeBytes).toBe(4096 + 5 * 4096);
  });

  it('latent: one replicated vector per token', () => {
    const groups = [group({ kind: 'latent', layers: [0, 1, 2], tokensPerBlock: 64 })];
    const { table } = buildPageTable(spec({ groups, latentDim: 576, poolLayout: 'per-block' }));
    const [view] = table.layerGroups[0]?.views ?? [];
    expect(view).toMatchObject({ role: 'latent', layout: 'REPLICATED', headsPerRank: 1, headDim: 576 });
    expect(view?.layers[2]).toEqual({ layer: 2, pool: 0, offset: 2 * 73728, bytes: 73728 });
  });

  it('scales: one view for those of K and V, beside them in the slot', () => {
    const scale = { dtype: 'float8_e4m3', elementsPerScale: 4 };
    const { table } = buildPageTable(spec({ dtype: 'float4_e2m1', scale }));
    // 2 heads x 8 elements x 4 tokens: 32 bytes of K and of V, and a scale for each 4 elements.
    expect(table.layerGroups[0]?.views.map(({ role, headDim, layers }) => [role, headDim, layers[1]])).toEqual([
      ['key', 8, { layer: 1, pool: 1, offset: 0, bytes: 32 }],
      ['value', 8, { layer: 1, pool: 1, offset: 32, bytes: 32 }],
      ['scale', 2, { layer: 1, pool: 1, offset: 64, bytes: 2 * 2 * 2 * 4 }],
    ]);
  });

  it('latent with index keys, and state in sections', () => {
    const latent = buildPageTable(spec({ groups: [group({ kind: 'latent' })], latentDim: 576, indexDim: 128 }));
    expect(latent.table.layerGroups[0]?.views.map(({ role, layout }) => [role, layout])).toEqual([
      ['latent', 'REPLICATED'],
      ['index_k', 'REPLICATED'],
    ]);
    const state = {
      conv: {
        dtype: 'bfloat16',
        width: 3,
        sections: [
          { channels: 16, unitChannels: 4 },
          { channels: 2, unitChannels: 2 },
        ],
      },
      ssm: { dtype: 'float32', heads: 4, headElements: 64 * 128 },
    };
    const hybrid = buildPageTable(spec({ groups: [group({ kind: 'state', tokensPerBlock: 1 })], state })).table;
    expect(hybrid.layerGroups[0]?.views[0]).toMatchObject({
      role: 'conv_state',
      layout: 'SECTIONED',
      sections: [
        { bytes: 96, unitBytes: 24 },
        { bytes: 12, unitBytes: 12 },
      ],
    });
    expect(hybrid.layerGroups[0]?.views[1]).toMatchObject({ role: 'ssm_state', headsPerRank: 4 });
    expect(hybrid.pools[0]?.slotBytes).toBe(108 + 4 * 64 * 128 * 4);
  });

  it('has the page size of a real model: Llama 3.1 8B, 32 tokens, 128 KiB per token', () => {
    const layers = Array.from({ length: 32 }, (_, layer) => layer);
    const groups = [group({ layers, tokensPerBlock: 32, slotCount: 10 })];
    const { table, sizeBytes } = buildPageTable(spec({ groups, kvHeads: 8, headDim: 128, poolLayout: 'per-block' }));
    expect(table.pools[0]?.slotBytes).toBe(32 * 131072);
    expect(sizeBytes).toBe(10 * 32 * 131072);
  });

  it('keeps the memory kind', () => {
    const memory = { kind: 'device', deviceId: 3 } as const;
    expect(buildPageTable(spec({ memory })).table.pools[1]?.memory).toEqual(memory);
  });

  it.each([
    [{ groups: [] }, /groups/],
    [{ groups: [group({ layers: [] })] }, /groups\[0\].layers/],
    [{ groups: [group({ layers: [1, 0] })] }, /layers must ascend/],
    [{ groups: [group({ slotCount: 0 })] }, /slotCount/],
    [{ groups: [group({ tokensPerBlock: 0.5 })] }, /tokensPerBlock/],
    [{ groups: [group({ kind: 'state' })] }, /recurrent state/],
    [{ groups: [group({ kind: 'latent' })] }, /latentDim/],
    [{ groups: [group({ windowSize: -1 })] }, /windowSize/],
    [{ kvHeads: 0 }, /kvHeads/],
    [{ scale: { dtype: 'float8_e4m3', elementsPerScale: 3 } }, /headDim \/ scale.elementsPerScale/],
    [{ groups: [group({ kind: 'latent' })], latentDim: 8, indexDim: 0 }, /indexDim/],
    [{ groups: [group({ kind: 'state' })], state: stateOf({ sections: [] }) }, /state.conv.sections is empty/],
    [{ groups: [group({ kind: 'state' })], state: stateOf({ width: 0 }) }, /state.conv.width/],
    [
      { groups: [group({ kind: 'state' })], state: stateOf({ sections: [{ channels: 3, unitChannels: 2 }] }) },
      /sections\[0\].bytes is 3, no multiple of unitBytes 2/,
    ],
    [{ headDim: Number.NaN }, /headDim/],
    [{ headDim: 2 ** 52 }, /whole number of bytes/],
    [{ groups: [group({ slotCount: 2 ** 31 - 1 })], headDim: 2 ** 30 }, /beyond 2\^53/],
    [{ dtype: 'fp12' }, /dtype "fp12" is unknown/],
    [{ dtype: 'float4_e2m1', kvHeads: 1, headDim: 1, groups: [group({ tokensPerBlock: 1 })] }, /whole number of bytes/],
  ] as [Partial<PageTableSpec>, RegExp][])('refuses %j', (over, message) => {
    expect(() => buildPageTable(spec(over))).toThrow(message);
    expect(() => buildPageTable(spec(over))).toThrow(ArgumentError);
  });
});

describe('rebasePageTable and withAux', () => {
  it('move every pool and add one for aux', () => {
    const { table } = buildPageTable(spec());
    const rebased = rebasePageTable(table, 0x7f00_0000_0000);
    expect(rebased.pools.map(({ base }) => base)).toEqual([0x7f00_0000_0000, 0x7f00_0000_1000]);
    const full = withAux(rebased, { base: 4096, slotBytes: 512, slotCount: 16 });
    expect(full.pools[2]).toEqual({
      base: 4096,
      memory: { kind: 'host' },
      slotBytes: 512,
      slotStride: 512,
      slotCount: 16,
    });
    expect(full.aux?.views[0]?.layers).toEqual([{ layer: 0, pool: 2, offset: 0, bytes: 512 }]);
    expect(full.layerGroups).toEqual(table.layerGroups);
    expect(() => withAux(full, { base: 0, slotBytes: 512, slotCount: 16 })).toThrow(/already has an aux buffer/);
    expect(() => withAux(table, { base: 0, slotBytes: 0, slotCount: 16 })).toThrow(ArgumentError);
    expect(() => rebasePageTable(table, -1)).toThrow(/pools\[0\].base/);
    expect(() => rebasePageTable(table, 2 ** 53 - 1)).toThrow(ArgumentError);
  });
});

/** A copy of a valid table with one value replaced. */
function broken(path: (string | number)[], value: unknown): unknown {
  const { table } = buildPageTable(spec());
  const copy = JSON.parse(JSON.stringify(withAux(table, { base: 1 << 20, slotBytes: 64, slotCount: 2 })));
  const last = path.at(-1) as string;
  const parent = path.slice(0, -1).reduce((node, key) => node[key], copy);
  parent[last] = value;
  return copy;
}

describe('validatePageTable', () => {
  it('returns an equal table, of its known fields only', () => {
    const { table } = buildPageTable(spec());
    expect(validatePageTable(table)).toEqual(table);
    const extra = { ...table, extra: 1, pools: table.pools.map((pool) => ({ ...pool, extra: 1 })) };
    expect(validatePageTable(extra)).toEqual(table);
    expect(validatePageTable(broken(['aux'], null))).toMatchObject({ aux: null });
  });

  const view = ['layerGroups', 0, 'views', 0] as const;
  const entry = [...view, 'layers', 1] as const;
  it.each([
    [['pools'], 7, 'pools'],
    [['pools', 0], null, 'pools[0]'],
    [['pools', 0, 'base'], -1, 'pools[0].base'],
    [['pools', 0, 'base'], 2 ** 53, 'pools[0].base'],
    [['pools', 0, 'base'], 2 ** 53 - 8, 'pools[0]'],
    [['pools', 0, 'base'], '0', 'pools[0].base'],
    [['pools', 0, 'memory'], 'host', 'pools[0].memory'],
    [['pools', 0, 'memory', 'kind'], 'disk', 'pools[0].memory.kind'],
    [['pools', 0, 'memory'], { kind: 'device', deviceId: -1 }, 'pools[0].memory.deviceId'],
    [['pools', 0, 'slotBytes'], 0, 'pools[0].slotBytes'],
    [['pools', 0, 'slotBytes'], 1.5, 'pools[0].slotBytes'],
    [['pools', 0, 'slotBytes'], 129, 'layerGroups[0].views[1].layers[0]'],
    [['pools', 0, 'slotStride'], 255, 'pools[0].slotStride'],
    [['pools', 0, 'slotStride'], 2 ** 52, 'pools[0]'],
    [['pools', 0, 'slotCount'], 0, 'pools[0].slotCount'],
    [['pools', 0, 'slotCount'], 7, 'layerGroups[0].views[0].layers[0].pool'],
    [['layerGroups'], {}, 'layerGroups'],
    [['layerGroups'], new Array(257).fill(null), 'layerGroups'],
    [['pools'], new Array(65537).fill(null), 'pools'],
    [['layerGroups', 0, 'kind'], 'aux', 'layerGroups[0].kind'],
    [['layerGroups', 0, 'windowSize'], 0, 'layerGroups[0].windowSize'],
    [['layerGroups', 0, 'windowSize'], undefined, 'layerGroups[0].windowSize'],
    [['layerGroups', 0, 'tokensPerBlock'], 0, 'layerGroups[0].tokensPerBlock'],
    [['layerGroups', 0, 'tokensPerBlock'], 5, 'layerGroups[0].views[0].layers[0].bytes'],
    [['layerGroups', 0, 'slotCount'], Number.NaN, 'layerGroups[0].slotCount'],
    [['layerGroups', 0, 'views'], [], 'layerGroups[0].views'],
    [['layerGroups', 0, 'views'], new Array(65).fill(null), 'layerGroups[0].views'],
    [[...view, 'role'], 'keys', 'layerGroups[0].views[0].role'],
    [[...view, 'role'], 'value', 'layerGroups[0].views[1]'],
    [[...view, 'dtype'], '', 'layerGroups[0].views[0].dtype'],
    [[...view, 'dtype'], 'x'.repeat(65), 'layerGroups[0].views[0].dtype'],
    [[...view, 'layout'], 'DHN', 'layerGroups[0].views[0].layout'],
    [[...view, 'headsPerRank'], 0, 'layerGroups[0].views[0].headsPerRank'],
    [[...view, 'headDim'], -8, 'layerGroups[0].views[0].headDim'],
    [[...view, 'headDim'], 16, 'layerGroups[0].views[0].layers[0].bytes'],
    [[...view, 'sections'], [{ bytes: 128, unitBytes: 64 }], 'layerGroups[0].views[0].sections'],
    [[...view, 'layers'], [], 'layerGroups[0].views[0].layers'],
    [[...view, 'layers'], new Array(65537).fill(null), 'layerGroups[0].views[0].layers'],
    [[...entry, 'layer'], 0, 'layerGroups[0].views[0].layers[1].layer'],
    [[...entry, 'pool'], 3, 'layerGroups[0].views[0].layers[1].pool'],
    [[...entry, 'pool'], 2, 'layerGroups[0].views[0].layers[1]'],
    [[...entry, 'pool'], -1, 'layerGroups[0].views[0].layers[1].pool'],
    [[...entry, 'offset'], 129, 'layerGroups[0].views[0].layers[1]'],
    [[...entry, 'offset'], 2 ** 53 - 1, 'layerGroups[0].views[0].layers[1]'],
    [[...entry, 'offset'], 1, 'layerGroups[0].views[1]'],
    [[...entry, 'bytes'], 0, 'layerGroups[0].views[0].layers[1].bytes'],
    [[...entry, 'bytes'], 64, 'layerGroups[0].views[0].layers[1].bytes'],
    [['aux', 'kind'], 'attention', 'aux.kind'],
    [['aux', 'windowSize'], 4, 'aux.windowSize'],
  ] as [(string | number)[], unknown, string][])('refuses %j = %j', (path, value, field) => {
    const table = broken(path, value);
    const failure = (origin: 'own' | 'peer'): KvTransceiverError => {
      try {
        validatePageTable(table, origin);
      } catch (error) {
        return error as KvTransceiverError;
      }
      throw new Error('was accepted');
    };
    expect(failure('peer')).toBeInstanceOf(ProtocolError);
    expect(failure('peer').details['field']).toBe(field);
    expect(failure('peer').message).toContain(field);
    expect(failure('own')).toBeInstanceOf(ArgumentError);
  });

  it.each([null, undefined, 7, 'table', [], () => 0])('refuses %s as a table', (table) => {
    expect(() => validatePageTable(table)).toThrow(KvTransceiverError);
  });

  it('sections fill their entry; scales may be there twice, of K and of V', () => {
    const view = { dtype: 'int8', headsPerRank: 1, headDim: 1 };
    const table = (views: object[], kind = 'state') => ({
      pools: [{ base: 0, memory: { kind: 'host' }, slotBytes: 100, slotStride: 100, slotCount: 1 }],
      layerGroups: [{ kind, windowSize: null, tokensPerBlock: 1, slotCount: 1, views }],
      aux: null,
    });
    const conv = (sections: unknown) => [
      {
        ...view,
        role: 'conv_state',
        layout: 'SECTIONED',
        sections,
        layers: [{ layer: 0, pool: 0, offset: 0, bytes: 12 }],
      },
    ];
    const good = [
      { bytes: 8, unitBytes: 4 },
      { bytes: 4, unitBytes: 4 },
    ];
    expect(validatePageTable(table(conv(good))).layerGroups[0]?.views[0]?.sections).toEqual(good);
    for (const [sections, message] of [
      [[], /sections is empty/],
      [good.slice(1), /layers\[0\].bytes is 12, but its sections give 4/],
      [[{ bytes: 12, unitBytes: 5 }], /sections\[0\].bytes is 12, no multiple of unitBytes 5/],
      [[{ bytes: 12, unitBytes: 0 }], /sections\[0\].unitBytes/],
      [[{ bytes: 12 }], /sections\[0\].unitBytes/],
      [new Array(65).fill(good[0]), /at most 64/],
      [7, /sections must be a list/],
    ] as const) {
      expect(() => validatePageTable(table(conv(sections)))).toThrow(message);
    }
    const scales = (count: number) =>
      Array.from({ length: count }, (_, index) => ({
        ...view,
        role: 'scale',
        layout: 'HND',
        layers: [{ layer: 0, pool: 0, offset: index, bytes: 1 }],
      }));
    expect(validatePageTable(table(scales(2), 'attention')).layerGroups[0]?.views.length).toBe(2);
    expect(() => validatePageTable(table(scales(3), 'attention'))).toThrow(/role scale of layer 0 once too often/);
  });

  it('caps the layers of all views together', () => {
    const layers = Array.from({ length: 40_000 }, (_, layer) => ({ layer, pool: 0, offset: layer, bytes: 1 }));
    const view = { role: 'kv', dtype: 'opaque', layout: 'REPLICATED', headsPerRank: 1, headDim: 1 };
    const shifted = layers.map((entry) => ({ ...entry, offset: entry.offset + 40_000 }));
    const table = (second: unknown[]) => ({
      pools: [{ base: 0, memory: { kind: 'host' }, slotBytes: 80_000, slotStride: 80_000, slotCount: 1 }],
      layerGroups: [
        {
          kind: 'attention',
          windowSize: null,
          tokensPerBlock: 1,
          slotCount: 1,
          views: [
            { ...view, layers },
            { ...view, role: 'scale', layers: second },
          ],
        },
      ],
      aux: null,
    });
    expect(validatePageTable(table(shifted.slice(0, 25_536))).layerGroups.length).toBe(1);
    expect(() => validatePageTable(table(shifted))).toThrow(/has 40000 entries, at most 25536/);
  });
});

describe('validateRun', () => {
  const pages = buildPageTable(spec()).table.layerGroups[0];
  if (pages === undefined) throw new Error('no group');
  const check = (begin: number, slots: number[]) => () =>
    validateRun({ begin, slots: Int32Array.from(slots) }, pages, 6, 'runs[0]');

  it('accepts slots of the pool and holes', () => {
    expect(check(2, [7, -1, 0, -1])).not.toThrow();
    expect(check(6, [])).not.toThrow();
  });

  it('refuses a slot outside, twice, or past the prompt', () => {
    expect(check(0, [8])).toThrow(/runs\[0\] names slot 8, the group has 8/);
    expect(check(0, [-2])).toThrow(ProtocolError);
    expect(check(0, [3, -1, 3])).toThrow(/slot 3 for two blocks/);
    expect(check(5, [1, 2])).toThrow(/ends at block 7, the prompt has 6/);
    expect(check(-1, [1])).toThrow(/begins at -1/);
    expect(check(Number.NaN, [])).toThrow(/begins at NaN/);
  });
});
