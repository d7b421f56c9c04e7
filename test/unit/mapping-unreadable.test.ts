import { describe, expect, it } from 'vitest';
import {
  buildPageTable,
  explainCompatibility,
  explainTopology,
  type Finding,
  type RankInfo,
  SINGLE_RANK,
  validatePageTable,
} from '../../src/mapping/index.js';

const { table } = buildPageTable({
  groups: [{ kind: 'attention', windowSize: null, tokensPerBlock: 4, layers: [0, 1], slotCount: 4 }],
  kvHeads: 1,
  headDim: 4,
  dtype: 'int8',
  poolLayout: 'per-block',
  blockLayout: 'HND',
});

function info(over: Readonly<Record<string, unknown>> = {}): RankInfo {
  return {
    ...SINGLE_RANK,
    packageVersion: '0.0.0',
    instanceName: 'one',
    incarnation: 1n,
    rank: 0,
    layersPerStage: [2],
    endpoint: 'tcp://127.0.0.1:1',
    rankEndpoints: ['tcp://127.0.0.1:1'],
    agent: 'host',
    agentMetadata: new Uint8Array(0),
    pageTable: table,
    ...over,
  };
}

function revoked(): unknown {
  const { proxy, revoke } = Proxy.revocable([], {});
  revoke();
  return proxy;
}

/** A rank info whose `field` throws. */
function throwing(field: string, thrown: () => unknown): RankInfo {
  return Object.defineProperty(info(), field, {
    get() {
      throw thrown();
    },
  });
}

const withMessage = (descriptor: PropertyDescriptor) => () =>
  Object.defineProperty(new Error('a'), 'message', descriptor);
const broken = {
  get() {
    throw new Error('no message');
  },
};
const unprintable = {
  value: {
    toString() {
      throw new Error('no text');
    },
  },
};

function nested(): unknown[] {
  let list: unknown[] = [];
  for (let depth = 0; depth < 100_000; depth++) list = [list];
  return [list];
}

describe('explainCompatibility of what cannot be read', () => {
  it.each<[string, () => RankInfo]>([
    ['a revoked proxy', () => revoked() as RankInfo],
    ['null', () => null as unknown as RankInfo],
    ['a revoked page table', () => info({ pageTable: revoked() })],
    ['revoked stages', () => info({ layersPerStage: revoked() })],
    ['a revoked size', () => info({ tpSize: revoked() })],
    ['a revoked agent', () => info({ agent: revoked() })],
    ['a thrown revoked proxy', () => throwing('tpSize', revoked)],
    ['a revoked proxy thrown by the page table', () => throwing('pageTable', revoked)],
    ['a thrown trap', () => throwing('tpSize', () => new Proxy({}, { getPrototypeOf: broken.get }))],
    ['an error without a readable message', () => throwing('tpSize', withMessage(broken))],
    ['an error with an unprintable message', () => throwing('tpSize', withMessage(unprintable))],
    ['an error whose message is a symbol', () => throwing('pageTable', withMessage({ value: Symbol('s') }))],
    ['a thrown string', () => throwing('tpSize', () => 'no')],
    ['an unprintable size', () => info({ tpSize: unprintable.value })],
    ['an object without a prototype', () => info({ tpSize: Object.create(null) })],
    ['a symbol', () => info({ agent: Symbol('s') })],
    ['deep stages', () => info({ layersPerStage: nested() })],
    ['stages of gaps only', () => info({ layersPerStage: new Array(1) })],
    ['pools of gaps only', () => info({ pageTable: { ...table, pools: new Array(1) } })],
  ])('%s is a finding on either side, made of strings', (_, make) => {
    for (const findings of [explainCompatibility(make(), info()), explainCompatibility(info(), make())]) {
      expect(findings.length).toBeGreaterThan(0);
      for (const finding of findings)
        for (const key of ['field', 'a', 'b', 'verdict', 'whichSideToChange'] satisfies (keyof Finding)[])
          expect(finding[key]).toBeTypeOf('string');
    }
    expect(() => explainTopology(make(), info())).not.toThrow();
  });

  it('lists that no instance can have are not walked', () => {
    const startUs = process.cpuUsage().user;
    for (const layersPerStage of [new Array(1e8), new Array(2e6).fill(1)])
      for (const sizes of [{}, { ppSize: 0 }]) {
        const [finding] = explainCompatibility(info({ layersPerStage, ...sizes }), info()).slice(-1);
        expect(finding?.field).toBe('layersPerStage');
        expect(finding?.a.length).toBeLessThan(210);
      }
    // Walking the first took 6 s.
    expect((process.cpuUsage().user - startUs) / 1e3).toBeLessThan(1_000);
  });

  it('a list with gaps is read as what it is', () => {
    const pools = [...table.pools];
    pools.length = 2;
    expect(() => validatePageTable({ ...table, pools })).toThrow(/pools\[1\] must be an object, got undefined/);
  });
});
