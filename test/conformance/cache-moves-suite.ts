import { describe, expect, it } from 'vitest';
import type { PageMover } from '../../src/cache/index.js';
import { TransportError } from '../../src/errors.js';
import { type CreateManager, compute, group, movingManager, prompt, serve, slotsOf, TPB } from './cache-fixture.js';
import { settledPromises } from './cache-memory.js';

/** What every cache manager owes its users that moves pages: host memory and parts of blocks. */
export function describePageMoves(name: string, create: CreateManager): void {
  describe(`${name} that moves pages`, () => {
    describe('host memory', () => {
      const GROUPS = [group(4, { hostSlotCount: 4 })];

      it('keeps what the device must give up, and says where it is', async () => {
        const { cache, memory } = movingManager(create, GROUPS);
        cache.addRequest(1, prompt(16));
        compute(cache, 1, 16);
        const slots = slotsOf(cache, 1, 0, 4);
        cache.freeRequest(1);
        cache.addRequest(2, prompt(8, 1000));
        cache.ensureCapacity(2, 8);
        // The deepest blocks go first, into the slots that request 2 is given.
        expect(memory.handed).toEqual([
          [
            { kind: 'offload', group: 0, slot: slots[3], hostSlot: 0 },
            { kind: 'offload', group: 0, slot: slots[2], hostSlot: 1 },
          ],
        ]);
        expect(slotsOf(cache, 2, 0, 2)).toEqual([slots[3], slots[2]]);
        expect(cache.stats()).toEqual([{ slotCount: 4, free: 0, reusable: 2, pinned: 0, offloaded: 2 }]);
        expect(cache.locatePrefix(prompt(17))).toEqual({
          // The other two wait on the host: the device has no slots to fetch them into.
          prepopulatedLen: 8,
          places: [['device', 'device', 'offloaded', 'offloaded']],
        });
        // Not to be written before they are saved.
        const ready = cache.pagesReady(2);
        expect(ready).not.toBeNull();
        await memory.runAll();
        await ready?.done;
        expect(cache.pagesReady(2)).toBeNull();
      });

      it('gives it back by a move into a fresh slot, which is read only when the move is over', async () => {
        const { cache, memory } = movingManager(create, [group(6, { hostSlotCount: 6 })]);
        serve(cache, 1, prompt(16));
        serve(cache, 2, prompt(24, 1000));
        await memory.runAll();
        expect(cache.locatePrefix(prompt(17)).places).toEqual([new Array(4).fill('offloaded')]);
        memory.handed.length = 0;
        expect(cache.addRequest(3, prompt(17))).toEqual({ prepopulatedLen: 16 });
        const slots = slotsOf(cache, 3, 0, 4);
        const [moves = []] = memory.handed;
        const onboards = moves.filter((move) => move.kind === 'onboard');
        expect(onboards.map((move) => move.slot)).toEqual(slots);
        expect(onboards.every((move) => move.tokenCount === TPB)).toBe(true);
        expect(new Set(onboards.map((move) => move.hostSlot)).size).toBe(4);
        // Each slot is saved before it is overwritten.
        for (const { slot } of onboards) {
          const saved = moves.findIndex((move) => move.kind === 'offload' && move.slot === slot);
          const fetched = moves.findIndex((move) => move.kind === 'onboard' && move.slot === slot);
          expect(saved).toBeLessThan(fetched);
        }
        // Somebody else who wants the same waits for the same move.
        cache.addRequest(4, prompt(17));
        expect(slotsOf(cache, 4, 0, 4)).toEqual(slots);
        const done = [cache.pagesReady(3), cache.pagesReady(4)].flatMap((ready) => ready?.done ?? []);
        expect(done.length).toBe(2);
        await memory.runAll();
        await Promise.all(done);
        expect([cache.pagesReady(3), cache.pagesReady(4)]).toEqual([null, null]);
      });

      it('saves once: content that came back and goes again costs no move', async () => {
        const { cache, memory } = movingManager(create, [group(4, { hostSlotCount: 8 })]);
        serve(cache, 1, prompt(16));
        serve(cache, 2, prompt(16, 1000));
        cache.addRequest(3, prompt(16));
        compute(cache, 3, 16);
        await memory.runAll();
        cache.freeRequest(3);
        memory.handed.length = 0;
        serve(cache, 4, prompt(12, 1000));
        expect(memory.handed.flat().filter((move) => move.kind === 'offload')).toEqual([]);
      });

      it('drops the longest unused when it is full', () => {
        const { cache, memory } = movingManager(create, [group(2, { hostSlotCount: 2 })]);
        memory.immediate = true;
        for (const [index, base] of [0, 1000, 2000].entries()) serve(cache, index, prompt(8, base));
        expect(cache.stats()[0]?.offloaded).toBe(2);
        expect(cache.locatePrefix(prompt(9)).places).toEqual([['absent', 'absent']]);
        expect(cache.locatePrefix(prompt(9, 1000)).places).toEqual([['offloaded', 'offloaded']]);
        expect(cache.locatePrefix(prompt(9, 2000)).places).toEqual([['device', 'device']]);
      });

      it('shortens a hit for which the device has no slots', async () => {
        const { cache, memory } = movingManager(create, [group(6, { hostSlotCount: 8 })]);
        serve(cache, 1, prompt(16));
        cache.addRequest(2, prompt(16, 1000));
        compute(cache, 2, 16);
        await memory.runAll();
        cache.addRequest(9, prompt(4, 5000));
        compute(cache, 9, 4);
        await memory.runAll();
        expect(cache.stats()[0]).toMatchObject({ free: 0, reusable: 1 });
        expect(cache.addRequest(3, prompt(17))).toEqual({ prepopulatedLen: 4 });
      });

      it('a slot that is handed on while its move is pending makes the next owner wait, too', async () => {
        const { cache, memory } = movingManager(create, GROUPS);
        serve(cache, 1, prompt(16));
        cache.addRequest(2, prompt(8, 1000));
        cache.ensureCapacity(2, 8);
        cache.freeRequest(2);
        cache.addRequest(3, prompt(8, 2000));
        cache.ensureCapacity(3, 8);
        expect(memory.handed.length).toBe(1);
        expect(cache.pagesReady(3)).not.toBeNull();
        await memory.runAll();
        expect(cache.pagesReady(3)).toBeNull();
      });

      it('a mover that is done at once leaves nothing to wait for', () => {
        const { cache, memory } = movingManager(create, GROUPS);
        memory.immediate = true;
        serve(cache, 1, prompt(16));
        cache.addRequest(2, prompt(8, 1000));
        cache.ensureCapacity(2, 8);
        expect(memory.handed.length).toBe(1);
        expect(cache.pagesReady(2)).toBeNull();
      });

      it('hands the mover’s event on', async () => {
        const event = { handle: 7, signal: () => {}, fail: () => {} };
        const mover: PageMover = { move: () => ({ event, done: new Promise(() => {}) }) };
        const cache = create({ tokensPerBlock: TPB, layerGroups: GROUPS, mover });
        serve(cache, 1, prompt(16));
        cache.addRequest(2, prompt(8, 1000));
        cache.ensureCapacity(2, 8);
        expect(cache.pagesReady(2)?.event).toBe(event);
      });
    });

    describe('moves that fail', () => {
      const GROUPS = [group(4, { hostSlotCount: 8 })];

      it('to save: the content is gone, the new owner is not concerned', async () => {
        const { cache, memory } = movingManager(create, GROUPS);
        serve(cache, 1, prompt(16));
        cache.addRequest(2, prompt(16, 1000));
        cache.ensureCapacity(2, 16);
        const done = cache.pagesReady(2)?.done;
        await memory.failAll('no memory');
        await done;
        expect(cache.pagesReady(2)).toBeNull();
        expect(cache.stats()[0]?.offloaded).toBe(0);
        expect(cache.locatePrefix(prompt(17)).places).toEqual([new Array(4).fill('absent')]);
      });

      it('to bring back: whoever took the content fails, and nobody finds it', async () => {
        const { cache, memory } = movingManager(create, GROUPS);
        serve(cache, 1, prompt(16));
        serve(cache, 2, prompt(16, 1000));
        await memory.runAll();
        cache.addRequest(3, prompt(16));
        cache.addRequest(4, prompt(13));
        compute(cache, 3, 16);
        const done = cache.pagesReady(4)?.done;
        await memory.failAll('link down');
        await expect(done).rejects.toThrow(TransportError);
        for (const request of [3, 4]) {
          expect(() => cache.pagesReady(request)).toThrow(/moving cached pages failed: link down/);
        }
        // The host still has what it gave; the device keeps neither that nor what was computed on top.
        expect(cache.locatePrefix(prompt(16)).places[0]?.slice(0, 3)).toEqual(new Array(3).fill('offloaded'));
        compute(cache, 3, 16);
        cache.freeRequest(3);
        cache.freeRequest(4);
        expect(cache.locatePrefix(prompt(16)).places[0]).not.toContain('device');
        const { free = 0, reusable = 0, pinned } = cache.stats()[0] ?? {};
        expect({ idle: free + reusable, pinned }).toEqual({ idle: 4, pinned: 0 });
      });

      it('a later batch is not over before an earlier one, whatever the mover says first', async () => {
        const settle: (() => void)[] = [];
        const mover: PageMover = {
          move: () => {
            const done = new Promise<void>((resolve) => {
              settle.push(resolve);
            });
            return { event: null, done };
          },
        };
        const cache = create({ tokensPerBlock: TPB, layerGroups: GROUPS, mover });
        serve(cache, 1, prompt(16));
        serve(cache, 2, prompt(16, 1000));
        cache.addRequest(3, prompt(16));
        settle[1]?.();
        await settledPromises();
        expect(cache.pagesReady(3)).not.toBeNull();
        settle[0]?.();
        await settledPromises();
        expect(cache.pagesReady(3)).toBeNull();
      });

      it('take with them what was handed over before the failure was known', async () => {
        const settle: { resolve: () => void; reject: (error: Error) => void }[] = [];
        const mover: PageMover = {
          move: () => {
            const done = new Promise<void>((resolve, reject) => {
              settle.push({ resolve, reject });
            });
            return { event: null, done };
          },
        };
        const cache = create({ tokensPerBlock: TPB, layerGroups: GROUPS, mover });
        serve(cache, 1, prompt(16));
        serve(cache, 2, prompt(16, 1000));
        cache.addRequest(3, prompt(16));
        expect(settle.length).toBe(2);
        settle[0]?.reject(new Error('first'));
        await settledPromises();
        expect(cache.pagesReady(3)).not.toBeNull();
        settle[1]?.resolve();
        await settledPromises();
        expect(() => cache.pagesReady(3)).toThrow(/first/);
      });

      it('a mover that throws has failed', async () => {
        const mover: PageMover = {
          move: () => {
            throw new Error('closed');
          },
        };
        const cache = create({ tokensPerBlock: TPB, layerGroups: GROUPS, mover });
        serve(cache, 1, prompt(16));
        cache.addRequest(2, prompt(16, 1000));
        expect(cache.ensureCapacity(2, 16)).toBe(true);
        await cache.movesSettled();
        expect(cache.pagesReady(2)).toBeNull();
        expect(cache.stats()[0]?.offloaded).toBe(0);
      });

      it('content computed while a move was pending is published later, and only if the move went well', async () => {
        const { cache, memory } = movingManager(create, GROUPS);
        serve(cache, 1, prompt(16));
        cache.addRequest(2, prompt(16, 1000));
        cache.ensureCapacity(2, 16);
        cache.markComputed(2, 16);
        expect(cache.locatePrefix(prompt(17, 1000)).places[0]).not.toContain('device');
        await memory.runAll();
        cache.freeRequest(2);
        expect(cache.locatePrefix(prompt(17, 1000)).places[0]).toEqual(new Array(4).fill('device'));
      });
    });

    describe('parts of blocks', () => {
      const partial = (groups = [group(16)]) => movingManager(create, groups, { partialReuse: true });

      it('are copied into a block of the request’s own; the cached one is left alone', async () => {
        const { cache, memory } = partial();
        cache.addRequest(1, prompt(16));
        compute(cache, 1, 16);
        const cached = slotsOf(cache, 1, 0, 4);
        cache.freeRequest(1);
        expect(cache.addRequest(2, prompt(20, 0, [900, 901, 902, 903, 904, 905]))).toEqual({ prepopulatedLen: 14 });
        const slots = slotsOf(cache, 2, 0, 4);
        expect(slots.slice(0, 3)).toEqual(cached.slice(0, 3));
        expect(cached).not.toContain(slots[3]);
        expect(memory.handed).toEqual([
          [{ kind: 'copy', group: 0, fromSlot: cached[3], toSlot: slots[3], tokenCount: 2 }],
        ]);
        expect(cache.pagesReady(2)).not.toBeNull();
        await memory.runAll();
        compute(cache, 2, 20);
        expect(cache.locatePrefix(prompt(17)).prepopulatedLen).toBe(16);
        expect(cache.addRequest(3, prompt(24, 0, [900, 901, 902, 903, 904, 905, 1, 1, 1, 1]))).toMatchObject({
          prepopulatedLen: 20,
        });
        expect(slotsOf(cache, 3, 3, 4)).toEqual([slots[3]]);
      });

      it('of a prompt that is cached whole leave one token to compute', () => {
        const { cache } = partial();
        serve(cache, 1, prompt(16));
        expect(cache.addRequest(2, prompt(16))).toEqual({ prepopulatedLen: 15 });
      });

      it('the longest wins, also in the first block', () => {
        const { cache, memory } = partial();
        memory.immediate = true;
        serve(cache, 1, prompt(4, 0, [7, 7, 7]));
        serve(cache, 2, prompt(4, 0, [7]));
        serve(cache, 3, prompt(4, 0, [8, 8]));
        expect(cache.locatePrefix(prompt(8)).prepopulatedLen).toBe(3);
        expect(cache.locatePrefix(prompt(8, 0, [8, 9, 9, 9, 9, 9])).prepopulatedLen).toBe(3);
        expect(cache.locatePrefix(prompt(8, 0, [7, 9, 9, 9, 9, 9, 9])).prepopulatedLen).toBe(2);
        expect(cache.locatePrefix(prompt(8, 5000)).prepopulatedLen).toBe(0);
      });

      it('come from the host as well, without a second copy on the device', async () => {
        const { cache, memory } = partial([group(4, { hostSlotCount: 8 })]);
        serve(cache, 1, prompt(16));
        serve(cache, 2, prompt(16, 1000));
        await memory.runAll();
        memory.handed.length = 0;
        expect(cache.addRequest(3, prompt(4, 0, [9]))).toEqual({ prepopulatedLen: 3 });
        const [slot] = slotsOf(cache, 3, 0, 1);
        const onboards = memory.handed.flat().filter((move) => move.kind === 'onboard');
        expect(onboards).toMatchObject([{ slot, tokenCount: 3 }]);
        expect(cache.locatePrefix(prompt(5)).places).toEqual([['offloaded']]);
      });

      it('and blocks from the host leave it free to give them up afterwards', async () => {
        const { cache, memory } = movingManager(create, [group(2, { hostSlotCount: 1 })], { partialReuse: true });
        memory.immediate = true;
        for (const [request, tail] of [[], [9]].entries()) {
          serve(cache, 10 * request + 1, prompt(4));
          serve(cache, 10 * request + 2, prompt(8, 1000));
          expect(cache.locatePrefix(prompt(5)).places).toEqual([['offloaded']]);
          // Once the whole block, once a part of it.
          serve(cache, 10 * request + 3, prompt(tail.length === 0 ? 5 : 4, 0, tail));
          serve(cache, 10 * request + 4, prompt(8, 2000 + request));
          serve(cache, 10 * request + 5, prompt(8, 3000 + request));
          expect(cache.locatePrefix(prompt(9, 2000 + request)).places).toEqual([['offloaded', 'absent']]);
        }
      });

      it('are compared with what was published, whatever became of the prompt', () => {
        const { cache } = partial();
        const content = prompt(4);
        serve(cache, 1, content);
        content.tokens?.fill(7);
        expect(cache.locatePrefix(prompt(8, 0, [9, 9, 9, 9, 9])).prepopulatedLen).toBe(3);
      });

      it('are not taken across different roots, nor without tokens, nor for a prompt that is received', () => {
        const { cache } = partial();
        serve(cache, 1, prompt(4));
        const { tokens: _, ...bare } = prompt(8, 0, [9, 9, 9, 9, 9]);
        expect(cache.locatePrefix(prompt(8, 0, [9, 9, 9, 9, 9])).prepopulatedLen).toBe(3);
        expect(cache.locatePrefix(bare).prepopulatedLen).toBe(0);
        expect(cache.locatePrefix(prompt(8, 0, [9, 9, 9, 9, 9], 'lora')).prepopulatedLen).toBe(0);
        expect(cache.locatePrefix({ ...prompt(8, 0, [9, 9, 9, 9, 9]), firstToken: 8 }).prepopulatedLen).toBe(0);
        serve(cache, 2, prompt(4, 0, [], 'lora'));
        expect(cache.locatePrefix(prompt(8, 0, [9, 9, 9, 9, 9], 'lora')).prepopulatedLen).toBe(3);
      });

      it('need the block in every group, and a free slot beside the source', () => {
        const { cache } = partial([group(4), group(8, { windowSize: 8 })]);
        serve(cache, 1, prompt(16));
        // Both copies would need a fifth slot of group 0.
        expect(cache.addRequest(2, prompt(16))).toEqual({ prepopulatedLen: 12 });
      });

      it('a source stays as it is until it was copied, whoever gets its slot', async () => {
        const { cache, memory } = partial([group(5)]);
        serve(cache, 1, prompt(8));
        cache.addRequest(2, prompt(6, 0, [9]));
        const [copy] = memory.handed.flat();
        expect(copy).toMatchObject({ kind: 'copy', tokenCount: 1 });
        cache.addRequest(3, prompt(12, 3000));
        expect(cache.ensureCapacity(3, 12)).toBe(true);
        expect(slotsOf(cache, 3, 0, 3)).toContain(copy?.kind === 'copy' ? copy.fromSlot : -1);
        expect(cache.pagesReady(3)).not.toBeNull();
        await memory.runAll();
        expect(cache.pagesReady(3)).toBeNull();
      });
    });
  });
}
