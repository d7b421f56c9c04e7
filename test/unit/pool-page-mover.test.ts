import { describe, expect, it } from 'vitest';
import type { ByteCopy, MemoryStretch, PageCopier } from '../../src/agent/page-copier.js';
import { GrowingCacheManager, type LayerGroup, type PageMove, PoolPageMover } from '../../src/cache/index.js';
import { ArgumentError, StateError, TransportError } from '../../src/errors.js';
import { buildPageTable, rebasePageTable } from '../../src/mapping/index.js';
import { FakeClock } from '../sim-lite/fake-clock.js';
import { SimFabric } from '../sim-lite/sim-agent.js';

const GROUPS: readonly LayerGroup[] = [
  { kind: 'attention', windowSize: null, tokensPerBlock: 4, layers: [0, 1], slotCount: 6, hostSlotCount: 3 },
  { kind: 'attention', windowSize: 8, tokensPerBlock: 4, layers: [2], slotCount: 5 },
];

interface Call {
  readonly stretches: readonly MemoryStretch[];
  readonly copies: readonly ByteCopy[];
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
}

/** Ends its copies when the test says so; a device would do the same. */
class ScriptedCopier implements PageCopier {
  readonly calls: Call[] = [];

  copy(stretches: readonly MemoryStretch[], copies: readonly ByteCopy[]): Promise<void> {
    return new Promise((resolve, reject) => {
      this.calls.push({ stretches, copies, resolve, reject });
    });
  }
}

async function opened(poolLayout: 'per-layer' | 'per-block' = 'per-layer') {
  const clock = new FakeClock();
  const agent = new SimFabric(clock).createAgent('engine');
  const spec = { groups: GROUPS, kvHeads: 1, headDim: 2, dtype: 'bfloat16', blockLayout: 'HND' } as const;
  const built = buildPageTable({ ...spec, poolLayout });
  const pool = await agent.allocatePool({ sizeBytes: built.sizeBytes });
  const pageTable = rebasePageTable(built.table, pool.base);
  const copier = new ScriptedCopier();
  const mover = new PoolPageMover();
  await mover.open({ agent, copier, pageTable, layerGroups: GROUPS });
  const settle = async (): Promise<void> => {
    for (let turn = 0; turn < 10; turn++) await Promise.resolve();
  };
  return { agent, copier, mover, pageTable, settle };
}

const onboard = (slot: number, hostSlot: number): PageMove => ({
  kind: 'onboard',
  group: 0,
  hostSlot,
  slot,
  tokenCount: 4,
});

describe('PoolPageMover', () => {
  it.each(['per-layer', 'per-block'] as const)('names whole pages of every pool of the group, %s', async (layout) => {
    const { copier, mover, pageTable, settle } = await opened(layout);
    mover.move([
      { kind: 'offload', group: 0, slot: 4, hostSlot: 2 },
      { kind: 'onboard', group: 0, hostSlot: 1, slot: 4, tokenCount: 2 },
      { kind: 'copy', group: 1, fromSlot: 3, toSlot: 0, tokenCount: 1 },
    ]);
    await settle();
    const [call] = copier.calls;
    const place = (stretch: number, offset: number): number => (call?.stretches[stretch]?.base ?? Number.NaN) + offset;
    const pools = [0, 1].map((group) => {
      const views = pageTable.layerGroups[group]?.views ?? [];
      const indexes = new Set(views.flatMap(({ layers }) => layers.map(({ pool }) => pool)));
      return [...indexes].map((index) => pageTable.pools[index] as (typeof pageTable.pools)[number]);
    });
    const [full = [], windowed = []] = pools;
    const [offloads, onboards, copies] = [
      call?.copies.slice(0, full.length),
      call?.copies.slice(full.length, 2 * full.length),
      call?.copies.slice(2 * full.length),
    ];
    full.forEach(({ base, slotStride, slotBytes }, index) => {
      const out = offloads?.[index] as ByteCopy;
      expect([place(out.fromStretch, out.fromOffset), out.bytes]).toEqual([base + 4 * slotStride, slotBytes]);
      const back = onboards?.[index] as ByteCopy;
      expect(place(back.toStretch, back.toOffset)).toBe(base + 4 * slotStride);
      // Host slots 2 and 1 of one tier lie one page apart.
      expect(place(out.toStretch, out.toOffset) - place(back.fromStretch, back.fromOffset)).toBe(slotBytes);
    });
    expect(copies?.map((one) => [place(one.fromStretch, one.fromOffset), place(one.toStretch, one.toOffset)])).toEqual(
      windowed.map(({ base, slotStride }) => [base + 3 * slotStride, base]),
    );
  });

  it('runs batches one after another; each has an event of its own', async () => {
    const { copier, mover, settle } = await opened();
    const first = mover.move([onboard(0, 0)]);
    const second = mover.move([onboard(1, 1)]);
    await settle();
    expect(copier.calls).toHaveLength(1);
    expect([first.event, second.event]).toMatchObject([{ state: 'pending' }, { state: 'pending' }]);
    copier.calls[0]?.resolve();
    await first.done;
    expect([first.event, second.event]).toMatchObject([{ state: 'signalled' }, { state: 'pending' }]);
    await settle();
    copier.calls[1]?.resolve();
    await second.done;
    expect(second.event).toMatchObject({ state: 'signalled' });
  });

  it('a batch that fails takes those with it that were handed over before, and none after', async () => {
    const { copier, mover, settle } = await opened();
    const batches = [mover.move([onboard(0, 0)]), mover.move([onboard(1, 1)])];
    await settle();
    const error = new TransportError('the device failed', { drained: true });
    copier.calls[0]?.reject(error);
    const ends = await Promise.allSettled(batches.map(({ done }) => done));
    expect(ends).toEqual([
      { status: 'rejected', reason: error },
      { status: 'rejected', reason: error },
    ]);
    expect(batches.map(({ event }) => event)).toMatchObject([
      { state: 'failed', message: 'the device failed' },
      { state: 'failed', message: 'the device failed' },
    ]);
    expect(copier.calls).toHaveLength(1);
    const later = mover.move([onboard(2, 2)]);
    await settle();
    copier.calls[1]?.resolve();
    await later.done;
    expect(later.event).toMatchObject({ state: 'signalled' });
  });

  it('refuses moves before it is open: the cache manager counts them as failed', async () => {
    const mover = new PoolPageMover();
    expect(() => mover.move([onboard(0, 0)])).toThrow(StateError);
    const cache = new GrowingCacheManager({ tokensPerBlock: 4, layerGroups: GROUPS, mover });
    cache.addRequest(1, { promptLen: 24, blockHashes: ['a', 'b', 'c', 'd', 'e', 'f'] });
    expect(cache.ensureCapacity(1, 8)).toBe(true);
  });

  it('refuses to open twice, and for pools that are not the groups’', async () => {
    const { mover, agent, copier, pageTable } = await opened();
    await expect(mover.open({ agent, copier, pageTable, layerGroups: GROUPS })).rejects.toThrow(StateError);
    const other = new PoolPageMover();
    const fewer = GROUPS.slice(1);
    await expect(other.open({ agent, copier, pageTable, layerGroups: fewer })).rejects.toThrow(ArgumentError);
    const larger = GROUPS.map((group) => ({ ...group, slotCount: 9 }));
    await expect(other.open({ agent, copier, pageTable, layerGroups: larger })).rejects.toThrow(/has 9 slots.*has 6/);
  });
});
