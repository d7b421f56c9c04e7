import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { GrowingCacheManager, ReservingCacheManager } from '../../src/cache/index.js';
import type { CoordinatorResult } from '../../src/coordinator/coordinator-request.js';
import { PIPELINED, prompt } from './executor/harness.js';
import { ServedPair, TPB } from './executor/served-pair.js';
import { SimMover } from './executor/sim-mover.js';

describe.each([
  ['GrowingCacheManager', GrowingCacheManager],
  ['ReservingCacheManager', ReservingCacheManager],
])('two servers over a %s that moves pages', (_name, Manager) => {
  it('any load on small pools: every reused, fetched, copied and received page holds the right bytes', async () => {
    const load = fc.record({
      chunkTokens: fc.integer({ min: 1, max: 20 }),
      slotCount: fc.integer({ min: 12, max: 24 }),
      hostSlotCount: fc.integer({ min: 24, max: 48 }),
      speculativeTokens: fc.nat({ max: 5 }),
      delayMs: fc.nat({ max: 30 }),
      schedule: fc.constantFrom('plain' as const, 'overlap' as const),
      scheduleStyle: fc.constantFrom('generation_first' as const, 'context_first' as const),
      requests: fc.array(
        fc.record({
          length: fc.integer({ min: 8, max: 36 }),
          fork: fc.integer({ min: 4, max: 36 }),
          family: fc.nat({ max: 3 }),
          atMs: fc.nat({ max: 900 }),
          cancelAfterMs: fc.option(fc.nat({ max: 120 }), { freq: 6 }),
        }),
        { minLength: 6, maxLength: 12, size: 'max' },
      ),
    });
    const moved = { offload: 0, onboard: 0, copy: 0 };
    await fc.assert(
      fc.asyncProperty(load, async ({ chunkTokens, slotCount, hostSlotCount, speculativeTokens, delayMs, ...rest }) => {
        const movers: SimMover[] = [];
        const pair = await ServedPair.create({
          limits: { chunkTokens },
          slotCount,
          schedule: rest.schedule,
          scheduleStyle: rest.scheduleStyle,
          createCache: (parts) => {
            const mover = new SimMover(parts, delayMs);
            movers.push(mover);
            const layerGroups = parts.layerGroups.map((group) => ({ ...group, hostSlotCount }));
            const { seed } = parts;
            return new Manager({
              tokensPerBlock: TPB,
              layerGroups,
              seed,
              mover,
              partialReuse: true,
              speculativeTokens,
            });
          },
        });
        const results: (CoordinatorResult | null)[] = rest.requests.map(() => null);
        rest.requests.forEach(({ length, fork, family, atMs, cancelAfterMs }, index) => {
          const promptTokens = prompt(length).map((token, position) =>
            position < fork ? token : token + 1000 * family,
          );
          pair.clock.setTimer(atMs, () => {
            const policy = rest.scheduleStyle === 'generation_first' ? { transferPolicy: PIPELINED } : {};
            const call = pair.coordinator.submit({ promptTokens, maxTokens: 3, ...policy });
            void call.result.then((result) => {
              results[index] = result;
            });
            if (cancelAfterMs !== null) pair.clock.setTimer(cancelAfterMs, () => call.cancel());
          });
        });
        await pair.run(() => results.every((result) => result !== null) && pair.coordinator.liveCount === 0);
        const left = { pinned: [0, 0], owned: [0, 0], held: 0, sessions: 0, freeAuxSlots: 8, live: 0 };
        await pair.run(() => JSON.stringify(pair.leftovers()) === JSON.stringify([left, left]), 30_000);
        rest.requests.forEach(({ cancelAfterMs }, index) => {
          const { outcome, error } = results[index] ?? {};
          if (cancelAfterMs === null) expect([outcome, error ?? null]).toEqual(['completed', null]);
        });
        expect(pair.wrongTokens).toBe(0);
        expect(pair.leftovers()).toEqual([left, left]);
        for (const { counts } of movers) {
          moved.offload += counts.offload;
          moved.onboard += counts.onboard;
          moved.copy += counts.copy;
        }
      }),
      { numRuns: 40 },
    );
    // The loads reach what they are there to test.
    for (const [kind, count] of Object.entries(moved)) expect(count, kind).toBeGreaterThan(2);
  }, 120_000);
});
