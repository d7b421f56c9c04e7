import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createAgent } from '../../src/agent/native-agent.js';
import { NativePageCopier } from '../../src/agent/native-page-copier.js';
import type { Completion, Pool, TransferAgent } from '../../src/agent/transfer-agent.js';
import { chainBlockHashes, GrowingCacheManager, type LayerGroup, PoolPageMover } from '../../src/cache/index.js';
import { ArgumentError } from '../../src/errors.js';
import { buildPageTable, type PagePool, type PageTable, rebasePageTable } from '../../src/mapping/index.js';
import { until } from '../support/deadline.js';

const TPB = 4;
const GROUPS: readonly LayerGroup[] = [
  { kind: 'attention', windowSize: null, tokensPerBlock: TPB, layers: [0, 1], slotCount: 8, hostSlotCount: 8 },
];

/** Real pools of a host agent, the native copier, and a cache manager over both. */
describe('the host tier over a native host agent', () => {
  let agent: TransferAgent;
  let pool: Pool;
  let pageTable: PageTable;

  beforeAll(async () => {
    agent = await createAgent({ kind: 'host', name: 'tier' });
    const spec = { groups: GROUPS, kvHeads: 2, headDim: 64, dtype: 'bfloat16', poolLayout: 'per-layer' } as const;
    const built = buildPageTable({ ...spec, blockLayout: 'HND' });
    pool = await agent.allocatePool({ sizeBytes: built.sizeBytes });
    pageTable = rebasePageTable(built.table, pool.base);
  });

  afterAll(async () => {
    expect(await agent.close(2000)).toEqual({ drained: true, outstanding: 0 });
  });

  const page = ({ base, slotStride, slotBytes }: PagePool, slot: number): Uint8Array =>
    agent.readBytes(base + slot * slotStride, slotBytes);
  const paint = (slot: number, value: number): void => {
    for (const { base, slotStride, slotBytes } of pageTable.pools)
      agent.writeBytes(base + slot * slotStride, new Uint8Array(slotBytes).fill(value));
  };
  const pagesOf = (cache: GrowingCacheManager, id: number, blocks: number): number[][] =>
    [...cache.getBlockIdsRange(id, 0, 0, blocks).slots].map((slot) =>
      pageTable.pools.map((one) => {
        const bytes = page(one, slot);
        expect(new Set(bytes).size).toBe(1);
        return bytes[0] as number;
      }),
    );

  it('content that was pushed out comes back byte for byte, a part of a block by a copy', async () => {
    const mover = new PoolPageMover();
    const cache = new GrowingCacheManager({ tokensPerBlock: TPB, layerGroups: GROUPS, mover, partialReuse: true });
    await mover.open({ agent, copier: new NativePageCopier(), pageTable, layerGroups: GROUPS });
    const tokens = (first: number, length: number) => Uint32Array.from({ length }, (_, index) => first + index);
    const add = (id: number, prompt: Uint32Array): number => {
      const blockHashes = chainBlockHashes(prompt, TPB);
      const { prepopulatedLen } = cache.addRequest(id, { promptLen: prompt.length, blockHashes, tokens: prompt });
      expect(cache.ensureCapacity(id, prompt.length)).toBe(true);
      return prepopulatedLen;
    };
    const compute = async (id: number, prompt: Uint32Array, value: number): Promise<void> => {
      add(id, prompt);
      await cache.pagesReady(id)?.done;
      cache.getBlockIdsRange(id, 0, 0, prompt.length / TPB).slots.forEach((slot, index) => {
        paint(slot, value + index);
      });
      cache.markComputed(id, prompt.length);
      cache.freeRequest(id);
    };
    await compute(1, tokens(0, 24), 10);
    await compute(2, tokens(1000, 32), 50);
    expect(cache.stats()[0]?.offloaded).toBe(6);
    expect(add(3, tokens(0, 25))).toBe(24);
    const ready = cache.pagesReady(3);
    expect(ready?.event).not.toBeNull();
    await ready?.done;
    expect(pagesOf(cache, 3, 6)).toEqual([10, 11, 12, 13, 14, 15].map((value) => [value, value]));
    cache.freeRequest(3);
    const fork = tokens(0, 24);
    fork[22] = 7;
    expect(add(4, fork)).toBe(22);
    await cache.pagesReady(4)?.done;
    expect(pagesOf(cache, 4, 6).at(-1)).toEqual([15, 15]);
    cache.freeRequest(4);
    await cache.movesSettled();
  });

  it('content that is brought ahead is there byte for byte, whoever came between two portions', async () => {
    const mover = new PoolPageMover();
    const groups = [{ ...(GROUPS[0] as LayerGroup), hostSlotCount: 24 }];
    const cache = new GrowingCacheManager({ tokensPerBlock: TPB, layerGroups: groups, mover });
    await mover.open({ agent, copier: new NativePageCopier(), pageTable, layerGroups: groups });
    const prompt = (first: number, promptLen: number) => {
      const tokens = Uint32Array.from({ length: promptLen }, (_, index) => first + index);
      return { promptLen, blockHashes: chainBlockHashes(tokens, TPB), tokens };
    };
    const serve = async (id: number, first: number, blocks: number): Promise<void> => {
      const { prepopulatedLen } = cache.addRequest(id, prompt(first, blocks * TPB));
      expect(cache.ensureCapacity(id, blocks * TPB)).toBe(true);
      await cache.pagesReady(id)?.done;
      cache.getBlockIdsRange(id, 0, 0, blocks).slots.forEach((slot, index) => {
        if (index * TPB >= prepopulatedLen) paint(slot, (first + index) % 256);
      });
      cache.markComputed(id, blocks * TPB);
      cache.freeRequest(id);
    };
    await serve(1, 1000, 7);
    await serve(2, 2000, 8);
    const again = prompt(1000, 7 * TPB + 1);
    while (!cache.lookAhead(again, 2));
    const places = (): string => (cache.locatePrefix(again).places[0] ?? []).map((place) => place[0]).join('');
    expect(places()).toBe('ooooooo');
    expect(cache.fetchAhead(again, 3)).toBe(false);
    expect(places()).toBe('ooooddd');
    await serve(3, 3000, 3);
    expect(cache.fetchAhead(again, 3)).toBe(false);
    await serve(4, 2000, 2);
    expect(cache.fetchAhead(again, 3)).toBe(true);
    expect(cache.addRequest(5, again).prepopulatedLen).toBe(7 * TPB);
    await cache.pagesReady(5)?.done;
    expect(pagesOf(cache, 5, 7)).toEqual([0, 1, 2, 3, 4, 5, 6].map((index) => Array(2).fill((1000 + index) % 256)));
    cache.freeRequest(5);
    await cache.movesSettled();
  });

  it('a slice behind the event of its moves leaves when they are over, others before it', async () => {
    const moved = new Map<number, Completion>();
    agent.onCompletions((batch) => {
      for (const notice of batch) if (notice.kind === 'completion') moved.set(notice.submission, notice);
    });
    const ended = (...ids: readonly number[]): Promise<void> =>
      until(
        () => ids.every((id) => moved.has(id)),
        () => `of ${ids} ended ${[...moved.keys()]}`,
      );
    const target = await createAgent({ kind: 'host', name: 'tier-target' });
    const bytes = pageTable.pools[0]?.slotBytes as number;
    const there = await target.allocatePool({ sizeBytes: 8 * bytes });
    const peer = await agent.addPeer(await target.metadata(), 'target');
    const local = { ...pageTable, pools: [pageTable.pools[0] as PagePool] };
    const memory = { kind: 'host' } as const;
    const remotePool = { base: there.base, memory, slotBytes: bytes, slotStride: bytes, slotCount: 8 };
    const remote = { pools: [remotePool], layerGroups: [], aux: null };
    const whole = { srcPool: 0, srcOffset: 0, dstPool: 0, dstOffset: 0, bytes, count: 1, srcStride: 0, dstStride: 0 };
    const fragments = agent.prepareFragments(peer, local, remote, [whole]);
    const stuck = agent.createEvent();
    const slice = (id: number, slot: number, after: typeof stuck | null): void =>
      agent.submit({ id, peer, flow: id, after, groups: [{ fragments, slotPairs: Int32Array.of(slot, slot) }] });
    const mover = new PoolPageMover();
    await mover.open({ agent, copier: new NativePageCopier(), pageTable, layerGroups: GROUPS });
    paint(0, 77);
    mover.move([{ kind: 'offload', group: 0, slot: 0, hostSlot: 3 }]);
    const ready = mover.move([{ kind: 'onboard', group: 0, hostSlot: 3, slot: 5, tokenCount: TPB }]);
    slice(1, 1, stuck);
    slice(2, 5, ready.event);
    slice(3, 2, null);
    await ended(2, 3);
    expect([...moved.values()].map(({ status }) => status)).toEqual(['transferred', 'transferred']);
    expect(target.readBytes(there.base + 5 * bytes, bytes)).toEqual(new Uint8Array(bytes).fill(77));
    // The one whose event never comes is cancelled, and drained at once.
    agent.cancel(1);
    await ended(1);
    expect(moved.get(1)).toMatchObject({ status: 'cancelled', drained: true, postedAtMs: null });
    await agent.removePeer(peer);
    await target.close(2000);
  });

  it('refuses bytes outside the pools', async () => {
    const copier = new NativePageCopier();
    const stretches = [{ base: pool.base, sizeBytes: 4096 }];
    const one = { fromStretch: 0, fromOffset: 0, toStretch: 0, toOffset: 1024, bytes: 512 };
    await copier.copy(stretches, [one]);
    await expect(copier.copy(stretches, [{ ...one, toOffset: 3585 }])).rejects.toThrow(ArgumentError);
    await expect(copier.copy(stretches, [{ ...one, fromStretch: 1 }])).rejects.toThrow(/range 1, which is not there/);
    await expect(copier.copy([{ base: 4096, sizeBytes: 4096 }], [one])).rejects.toThrow(ArgumentError);
  });
});
