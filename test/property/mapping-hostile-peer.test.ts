import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { buildPageTable, explainCompatibility, type RankInfo, SINGLE_RANK } from '../../src/mapping/index.js';

const { table } = buildPageTable({
  groups: [
    { kind: 'attention', windowSize: 16, sinkTokens: 4, tokensPerBlock: 4, layers: [0, 1], slotCount: 8 },
    { kind: 'state', windowSize: null, tokensPerBlock: 1, layers: [2], slotCount: 2 },
  ],
  kvHeads: 2,
  headDim: 4,
  dtype: 'float16',
  poolLayout: 'per-block',
  blockLayout: 'HND',
  state: {
    conv: { dtype: 'float16', width: 2, sections: [{ channels: 2, unitChannels: 1 }] },
    ssm: { dtype: 'float16', heads: 2, headElements: 2 },
  },
});
const info: RankInfo = {
  ...SINGLE_RANK,
  packageVersion: '0.0.0',
  instanceName: 'own',
  incarnation: 1n,
  rank: 0,
  layersPerStage: [3],
  endpoint: 'tcp://127.0.0.1:1',
  rankEndpoints: ['tcp://127.0.0.1:1'],
  agent: 'host',
  agentMetadata: new Uint8Array(2),
  pageTable: table,
};

type Path = readonly (string | number)[];

function pathsOf(value: unknown, path: Path = []): Path[] {
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value)) return [path];
  return [path, ...Object.entries(value).flatMap(([key, inner]) => pathsOf(inner, [...path, key]))];
}

/** `value` with `part` in place of what lies at `path`. */
function replaced(value: unknown, [key, ...rest]: Path, part: unknown): unknown {
  if (key === undefined || typeof value !== 'object' || value === null) return part;
  const copy: Record<string | number, unknown> = Array.isArray(value)
    ? ([...value] as unknown as Record<number, unknown>)
    : { ...value };
  copy[key] = replaced(copy[key], rest, part);
  return copy;
}

function endless(): unknown {
  const cycle: Record<string, unknown> = {};
  for (const key of ['pageTable', 'layersPerStage', 'pools', 'views', 'layers']) cycle[key] = cycle;
  return cycle;
}

let deep: unknown = [];
for (let depth = 0; depth < 20_000; depth++) deep = [deep];
const list: unknown[] = [];
list.push(list);

const junk = fc.oneof(
  fc.anything({
    withNullPrototype: true,
    withBigInt: true,
    withTypedArray: true,
    withMap: true,
    withSparseArray: true,
  }),
  fc.constantFrom<unknown>(-1, 0, -0, Number.NaN, 2 ** 53, 2 ** 31, 1e308, 1n, '', 'x'.repeat(1e5), null, undefined),
  fc.constantFrom<unknown>(Object.create(null), [Object.create(null)], Symbol('none'), endless(), list, deep),
  fc.constant(new Array(100_000).fill(0)),
  fc.nat({ max: 70_000 }),
);

function check(a: unknown, b: unknown): void {
  const findings = explainCompatibility(a as RankInfo, b as RankInfo);
  const texts: unknown[] = findings.flatMap((finding) => Object.values(finding));
  expect(texts.filter((text) => typeof text !== 'string' || text.length > 600)).toEqual([]);
  expect(findings.length).toBeLessThanOrEqual(64);
}

describe('explainCompatibility', () => {
  it('never throws and stays short, whatever a peer sent', { timeout: 120_000 }, () => {
    const paths = pathsOf(info);
    const place = fc.constantFrom(...paths);
    fc.assert(
      fc.property(place, junk, fc.option(fc.tuple(place, junk)), (path, part, other) => {
        const once = replaced(info, path, part);
        const peer = other === null ? once : replaced(once, ...other);
        check(info, peer);
        check(peer, info);
        check(peer, peer);
      }),
      { numRuns: 400 },
    );
    for (const path of paths)
      for (const part of [endless(), list, Object.create(null), Symbol('none')])
        check(info, replaced(info, path, part));
  });

  it('a rank that publishes itself unchanged is compatible', () => {
    expect(explainCompatibility(info, { ...info, instanceName: 'peer' })).toEqual([]);
  });
});
