import { describe, expect, it } from 'vitest';
import { type CacheManagerOptions, GrowingCacheManager, ReservingCacheManager } from '../../../src/cache/index.js';
import type { PagedCacheManager } from '../../../src/cache/paged-cache-manager.js';
import type { CoordinatorResult } from '../../../src/coordinator/coordinator-request.js';
import { PIPELINED, prompt, SCHEDULES } from './harness.js';
import { ServedPair, TPB } from './served-pair.js';
import { SimMover } from './sim-mover.js';

const SLOTS = 24;
const NOTHING = { pinned: [0, 0], owned: [0, 0], held: 0, sessions: 0, freeAuxSlots: 8, live: 0 };

/** A pair whose context server keeps cold blocks in host memory. */
async function pairWithHost(
  schedule: (typeof SCHEDULES)[number],
  Manager: new (options: CacheManagerOptions) => PagedCacheManager,
) {
  const movers: SimMover[] = [];
  const pair = await ServedPair.create({
    schedule,
    slotCount: SLOTS,
    createCache: (parts) => {
      const mover = new SimMover(parts, 3);
      movers.push(mover);
      const layerGroups = parts.layerGroups.map((group) => ({ ...group, hostSlotCount: 64 }));
      return new Manager({ tokensPerBlock: TPB, layerGroups, seed: parts.seed, mover, partialReuse: true });
    },
  });
  const start = (
    promptTokens: Uint32Array,
    maxTokens = 2,
  ): { result: CoordinatorResult | null; cancel: () => void } => {
    const call = pair.coordinator.submit({ promptTokens, maxTokens, transferPolicy: PIPELINED });
    const state = { result: null as CoordinatorResult | null, cancel: () => call.cancel() };
    void call.result.then((result) => {
      state.result = result;
    });
    return state;
  };
  const serve = async (promptTokens: Uint32Array): Promise<CoordinatorResult> => {
    const state = start(promptTokens);
    await pair.run(() => state.result !== null && pair.coordinator.liveCount === 0);
    return state.result as CoordinatorResult;
  };
  return { pair, mover: movers[0] as SimMover, start, serve };
}

describe.each(SCHEDULES)('an early prefix from host memory, %s', (schedule) => {
  it('a device that hangs holds up the request that waits for it, and no other', async () => {
    const { pair, mover, start, serve } = await pairWithHost(schedule, ReservingCacheManager);
    await serve(prompt(32));
    // It reserves the whole pool, so that all content goes to the host, and is cancelled: most of the pool is free then.
    const filler = start(prompt(4 * SLOTS - 4, 10_000));
    await pair.run(() => mover.counts.offload > 0, 500);
    filler.cancel();
    await pair.run(() => JSON.stringify(pair.leftovers()) === JSON.stringify([NOTHING, NOTHING]), 500);
    const resume = mover.stall();
    const held = start(prompt(36));
    await pair.run(() => false, 60);
    const prefix = pair.context.agent.submitted.at(-1);
    expect(prefix?.after).toMatchObject({ state: 'pending' });
    const others = [start(prompt(20, 30_000)), start(prompt(8, 40_000))];
    await pair.run(() => others.every(({ result }) => result !== null), 2000);
    expect(others.map(({ result }) => result?.outcome)).toEqual(['completed', 'completed']);
    expect(prefix?.after).toMatchObject({ state: 'pending' });
    expect(held.result).toBeNull();
    const submitted = pair.context.agent.submitted.length;
    resume();
    await pair.run(() => held.result !== null, 5000);
    expect(held.result?.outcome).toBe('completed');
    expect(pair.prepopulated.at(-1)).toBe(32);
    // The prefix has left: the first prefill slice carries what comes after it.
    const [attention] = prefix?.groups ?? [];
    const sent = pair.context.agent.submitted.slice(submitted).flatMap(({ groups }) => groups);
    const later = sent.filter(({ fragments }) => fragments === attention?.fragments);
    expect(attention?.slotPairs).toHaveLength(2 * 8);
    expect(later.map(({ slotPairs }) => slotPairs.length)).toEqual([2]);
    await pair.run(() => JSON.stringify(pair.leftovers()) === JSON.stringify([NOTHING, NOTHING]), 5000);
    expect(pair.leftovers()).toEqual([NOTHING, NOTHING]);
    expect(pair.wrongTokens).toBe(0);
    expect(pair.checkedTokens).toBeGreaterThan(80);
  });

  it('cancelled while its prefix waits: both sides end at once, its pages are not handed on before the moves are over', async () => {
    const { pair, mover, start, serve } = await pairWithHost(schedule, GrowingCacheManager);
    await serve(prompt(32));
    await serve(prompt(4 * SLOTS - 4, 10_000));
    const resume = mover.stall();
    const held = start(prompt(36));
    await pair.run(() => false, 60);
    expect(pair.context.agent.submitted.at(-1)?.after).toMatchObject({ state: 'pending' });
    held.cancel();
    await pair.run(() => held.result !== null, 500);
    expect(held.result?.outcome).toBe('cancelled');
    await pair.run(() => JSON.stringify(pair.leftovers()) === JSON.stringify([NOTHING, NOTHING]), 500);
    expect(pair.leftovers()).toEqual([NOTHING, NOTHING]);
    // Whoever gets those pages next computes into them only when the late moves have landed.
    const next = start(prompt(60, 20_000));
    await pair.run(() => false, 100);
    expect(next.result).toBeNull();
    resume();
    await pair.run(() => next.result !== null, 5000);
    expect(next.result?.outcome).toBe('completed');
    expect(pair.wrongTokens).toBe(0);
    expect(pair.checkedTokens).toBeGreaterThan(60);
  });
});
