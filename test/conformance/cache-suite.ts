import { describe, expect, it } from 'vitest';
import type { LayerGroup, PagedCacheManager } from '../../src/cache/index.js';
import { ArgumentError, RequestTooLargeError, StateError } from '../../src/errors.js';
import { sourceRange } from '../../src/geometry/source-range.js';
import { staleBlockEnd } from '../../src/geometry/stale-block-end.js';
import {
  type CreateManager,
  compute,
  group,
  movingManager,
  plainManager,
  prompt,
  serve,
  slotsOf,
  TPB,
} from './cache-fixture.js';
import { CacheMemory } from './cache-memory.js';

const STATE: LayerGroup = { kind: 'state', windowSize: null, tokensPerBlock: 1, layers: [9], slotCount: 2 };

/** What every cache manager with windows, reuse and pins owes its users. */
export function describeCacheManager(name: string, create: CreateManager): void {
  describe(name, () => {
    describe('ranges', () => {
      it('cover exactly what was asked, in a full group', () => {
        const cache = plainManager(create, group(32));
        cache.addRequest(1, prompt(64));
        for (let end = 16; end <= 64; end += 16) compute(cache, 1, end);
        const all = cache.getBlockIdsRange(1, 0, 0, 16);
        expect(all.begin).toBe(0);
        expect(new Set(all.slots).size).toBe(16);
        for (let begin = 0; begin <= 16; begin++) {
          for (let end = begin; end <= 16; end++) {
            const run = cache.getBlockIdsRange(1, 0, begin, end);
            expect(run).toEqual({ begin, slots: all.slots.slice(begin, end) });
            // Not a view of something that grows with the prompt.
            expect(run.slots.buffer.byteLength).toBe((end - begin) * 4);
          }
        }
      });

      it('of a windowed group hold the final window, end where they were asked to, and are the caller’s to keep', () => {
        const cache = plainManager(create, group(16), group(16, { windowSize: 16 }));
        cache.addRequest(1, prompt(64));
        for (let end = 8; end <= 64; end += 8) compute(cache, 1, end);
        const run = cache.getBlockIdsRange(1, 1, 0, 16);
        expect(run.begin).toBeLessThanOrEqual(staleBlockEnd(64, 16, TPB));
        expect(run.begin + run.slots.length).toBe(16);
        run.slots.fill(99);
        expect(cache.getBlockIdsRange(1, 1, 0, 16).slots).not.toContain(99);
      });

      it.each([-1, 0.5, Number.NaN, 2 ** 53, Infinity])('refuse the bound %s', (value) => {
        const cache = plainManager(create, group(8));
        cache.addRequest(1, prompt(16));
        cache.ensureCapacity(1, 16);
        expect(() => cache.getBlockIdsRange(1, 0, value, 4)).toThrow(RangeError);
        expect(() => cache.getBlockIdsRange(1, 0, 0, value)).toThrow(RangeError);
        expect(() => cache.getBlockIdsRange(1, value, 0, 1)).toThrow(RangeError);
        expect(() => cache.ensureCapacity(1, value)).toThrow(RangeError);
        expect(() => cache.markComputed(1, value)).toThrow(RangeError);
      });

      it('refuse reversed bounds, blocks that do not exist, and strangers', () => {
        const cache = plainManager(create, group(8));
        cache.addRequest(1, prompt(16));
        expect(() => cache.getBlockIdsRange(1, 0, 0, 1)).toThrow(/end 1 is beyond the 0 blocks/);
        cache.ensureCapacity(1, 16);
        expect(() => cache.getBlockIdsRange(1, 0, 2, 1)).toThrow(/end 1 is below begin 2/);
        expect(() => cache.getBlockIdsRange(1, 0, 0, 5)).toThrow(/end 5 is beyond the 4 blocks/);
        expect(() => cache.getBlockIdsRange(1, 1, 0, 1)).toThrow(/group 1 is not one of the 1/);
        expect(() => cache.getBlockIdsRange(2, 0, 0, 1)).toThrow(ArgumentError);
        expect(slotsOf(cache, 1, 2, 2)).toEqual([]);
      });
    });

    describe('a long prompt in portions', () => {
      it('takes its blocks so, of which nobody sees any before they were asked for', () => {
        const cache = plainManager(create, group(20), group(20, { windowSize: 16, sinkTokens: 6 }));
        const content = { ...prompt(64), firstToken: 64 };
        cache.addRequest(1, content);
        const taken = () => cache.stats().map(({ slotCount, free }) => slotCount - free);
        expect(cache.growAhead(1, 3, 64, 64)).toBe(false);
        expect(taken()).toEqual([3, 3]);
        expect(cache.growAhead(1, 3, 64, 64)).toBe(false);
        expect(taken()).toEqual([6, 6]);
        expect(() => cache.getBlockIdsRange(1, 0, 0, 1)).toThrow(RangeError);
        while (!cache.growAhead(1, 3, 64, 64));
        expect(taken()).toEqual([16, 6]);
        expect(cache.ensureCapacity(1, 64, 64)).toBe(true);
        expect(taken()).toEqual([16, 6]);
        expect(new Set(slotsOf(cache, 1, 0, 16)).size).toBe(16);
        expect(slotsOf(cache, 1, 0, 2, 1).length).toBe(2);
        expect(cache.getBlockIdsRange(1, 1, 0, 16).begin).toBe(12);
        cache.freeRequest(1);
        expect(taken()).toEqual([0, 0]);
      });

      it('takes none when not all can be had, and gives back what it took of a request that ends', () => {
        const cache = plainManager(create, group(20));
        cache.addRequest(1, { ...prompt(40), firstToken: 40 });
        expect(cache.growAhead(1, 4, 40, 40)).toBe(false);
        cache.addRequest(2, { ...prompt(68, 1000), firstToken: 68 });
        expect(cache.growAhead(2, 4, 68, 68)).toBe(true);
        expect(cache.ensureCapacity(2, 68, 68)).toBe(false);
        expect(cache.stats()[0]?.free).toBe(16);
        cache.freeRequest(1);
        expect(cache.stats()[0]?.free).toBe(20);
        expect(cache.ensureCapacity(2, 68, 68)).toBe(true);
        expect(() => cache.growAhead(2, 4, 40, 50)).toThrow(RangeError);
        expect(() => cache.growAhead(3, 4, 40)).toThrow(ArgumentError);
      });

      it.each([0, -1, 1.5, Number.NaN, Infinity])('refuses portions of %s blocks', (blocks) => {
        const cache = plainManager(create, group(20));
        cache.addRequest(1, prompt(16));
        expect(() => cache.lookAhead(prompt(16), blocks)).toThrow(ArgumentError);
        expect(() => cache.fetchAhead(prompt(16), blocks)).toThrow(ArgumentError);
        expect(() => cache.growAhead(1, blocks, 16)).toThrow(ArgumentError);
      });

      it('is found so as in one go, without what was evicted since it was looked for', () => {
        const found = (ahead: boolean, evicted: number) => {
          const cache = plainManager(create, group(20), group(20, { windowSize: 16 }));
          serve(cache, 1, prompt(64));
          cache.addRequest(2, prompt((4 + evicted) * TPB, 5000));
          const content = prompt(80);
          let portions = 0;
          if (ahead)
            do portions += 1;
            while (!cache.lookAhead(content, 3));
          expect(portions > 5).toBe(ahead);
          // The blocks of the first prompt go from its end.
          expect(cache.ensureCapacity(2, (4 + evicted) * TPB)).toBe(true);
          const { prepopulatedLen } = cache.addRequest(3, content);
          const runs = [0, 1].map((index) => cache.getBlockIdsRange(3, index, 0, prepopulatedLen / TPB));
          return { prepopulatedLen, runs };
        };
        const lengths = [0, 1, 5, 16].map((evicted) => {
          expect(found(true, evicted)).toEqual(found(false, evicted));
          return found(true, evicted).prepopulatedLen;
        });
        expect([lengths[0], lengths[3]]).toEqual([64, 0]);
      });
    });

    describe('sink tokens', () => {
      /** Sinks [0, 2), then a gap, then the window from block 12 on. */
      function withGap(): { cache: PagedCacheManager; sinks: number[]; window: number[] } {
        const cache = plainManager(create, group(12, { windowSize: 16, sinkTokens: 6 }));
        cache.addRequest(1, { ...prompt(64), firstToken: 64 });
        expect(cache.ensureCapacity(1, 64, 64)).toBe(true);
        return { cache, sinks: slotsOf(cache, 1, 0, 2), window: slotsOf(cache, 1, 12, 16) };
      }

      it('stay, and a range over the gap starts behind it', () => {
        const { cache, sinks, window } = withGap();
        expect(sinks.length).toBe(2);
        expect(window.length).toBe(4);
        expect(new Set([...sinks, ...window]).size).toBe(6);
        expect(cache.stats()[0]?.free).toBe(6);
        const run = (begin: number, end: number) => cache.getBlockIdsRange(1, 0, begin, end);
        expect(run(0, 16)).toEqual({ begin: 12, slots: Int32Array.from(window) });
        expect(run(1, 14)).toEqual({ begin: 12, slots: Int32Array.from(window.slice(0, 2)) });
        expect(run(0, 2)).toEqual({ begin: 0, slots: Int32Array.from(sinks) });
        expect(run(1, 2)).toEqual({ begin: 1, slots: Int32Array.of(sinks[1] as number) });
        expect(run(0, 3)).toEqual({ begin: 3, slots: new Int32Array(0) });
        expect(run(5, 9)).toEqual({ begin: 9, slots: new Int32Array(0) });
        expect(run(0, 12)).toEqual({ begin: 12, slots: new Int32Array(0) });
        expect(run(13, 15)).toEqual({ begin: 13, slots: Int32Array.from(window.slice(1, 3)) });
      });

      it('join the window in one run as long as there is no gap', () => {
        const cache = plainManager(create, group(12, { windowSize: 16, sinkTokens: 6 }));
        cache.addRequest(1, prompt(32));
        compute(cache, 1, 20);
        const run = cache.getBlockIdsRange(1, 0, 0, 5);
        expect(run.begin).toBe(0);
        expect(run.slots.length).toBe(5);
        expect(cache.getBlockIdsRange(1, 0, 1, 3).slots).toEqual(run.slots.slice(1, 3));
      });

      it('that a transfer fills whole are content; one it may fill in part is not', () => {
        const places = (sinkTokens: number, senderTokensPerBlock?: number) => {
          const layerGroups = [group(16, { windowSize: 15, sinkTokens })];
          const sender = senderTokensPerBlock === undefined ? {} : { senderTokensPerBlock };
          const cache = create({ tokensPerBlock: TPB, layerGroups, ...sender });
          cache.addRequest(1, { ...prompt(64), firstToken: 64 });
          expect(cache.ensureCapacity(1, 64, 64)).toBe(true);
          cache.markComputed(1, 64);
          cache.freeRequest(1);
          const [found = []] = cache.locatePrefix(prompt(64)).places;
          return found.flatMap((place, ordinal) => (place === 'device' ? [ordinal] : []));
        };
        // Positions from 50 on are in the window, so block 12 (48..51) may come in part; so may block 1 with 6 sink tokens.
        expect(places(6)).toEqual([0, 13, 14, 15]);
        expect(places(6, 2)).toEqual([0, 13, 14, 15]);
        expect(places(6, TPB)).toEqual([0, 1, 12, 13, 14, 15]);
        expect(places(6, 64)).toEqual([0, 1, 12, 13, 14, 15]);
        expect(places(8)).toEqual([0, 1, 13, 14, 15]);
        // Sinks that reach the window leave nothing out.
        expect(places(50).length).toBe(16);
      });

      it('are pinned wherever a transfer’s window begins', () => {
        const { cache, sinks } = withGap();
        cache.pin(1, [staleBlockEnd(64, 16, TPB)]);
        cache.freeRequest(1);
        expect(cache.stats()[0]).toMatchObject({ pinned: sinks.length + 4 });
        cache.unpin(1);
        const grown = plainManager(create, group(12, { windowSize: 16, sinkTokens: 6 }));
        grown.addRequest(1, prompt(32));
        compute(grown, 1, 4);
        grown.pin(1, [5]);
        expect(grown.ensureCapacity(1, 32)).toBe(true);
        expect(grown.stats()[0]?.pinned).toBe(sinks.length + 3);
      });

      it('are part of what a hit needs', () => {
        const cache = plainManager(create, group(9, { windowSize: 8, sinkTokens: 4 }), group(20));
        serve(cache, 1, prompt(32));
        expect(cache.locatePrefix(prompt(33)).prepopulatedLen).toBe(32);
        cache.addRequest(2, prompt(33));
        const sink = slotsOf(cache, 2, 0, 1);
        expect(cache.getBlockIdsRange(2, 0, 0, 8).begin).toBeGreaterThan(0);
        cache.freeRequest(2);
        // A hit uses its blocks, so the others go first; when all but one have gone, the sink is still needed.
        cache.addRequest(3, prompt(32, 1000));
        expect(sink.length).toBe(1);
        expect(cache.locatePrefix(prompt(33)).places[0]?.[0]).toBe('device');
      });
    });

    describe('recurrent state', () => {
      it('is one slot per request, there from the first block on', () => {
        const cache = plainManager(create, group(16), STATE);
        cache.addRequest(1, prompt(32));
        expect(() => cache.getBlockIdsRange(1, 1, 0, 1)).toThrow(RangeError);
        for (let end = 8; end <= 32; end += 8) {
          compute(cache, 1, end);
          expect(slotsOf(cache, 1, 0, 1, 1).length).toBe(1);
        }
        expect(() => cache.getBlockIdsRange(1, 1, 0, 2)).toThrow(RangeError);
        expect(cache.stats()[1]).toEqual({ slotCount: 2, free: 1, reusable: 0, pinned: 0 });
        cache.pin(1);
        cache.freeRequest(1);
        expect(cache.stats()[1]).toEqual({ slotCount: 2, free: 1, reusable: 0, pinned: 1 });
        cache.unpin(1);
        expect(cache.stats()[1]).toEqual({ slotCount: 2, free: 2, reusable: 0, pinned: 0 });
      });

      it('cannot be resumed from: nothing is reused and nothing is kept', () => {
        const cache = plainManager(create, group(16), STATE);
        serve(cache, 1, prompt(16));
        expect(cache.stats()[0]).toEqual({ slotCount: 16, free: 16, reusable: 0, pinned: 0 });
        expect(cache.addRequest(2, prompt(16))).toEqual({ prepopulatedLen: 0 });
      });

      it('runs out like blocks do', () => {
        const cache = plainManager(create, group(16), STATE);
        for (const request of [1, 2, 3]) cache.addRequest(request, prompt(8));
        expect(cache.ensureCapacity(1, 8)).toBe(true);
        expect(cache.ensureCapacity(2, 8)).toBe(true);
        expect(cache.ensureCapacity(3, 8)).toBe(false);
        cache.freeRequest(1);
        expect(cache.ensureCapacity(3, 8)).toBe(true);
      });
    });

    describe('reuse', () => {
      it('shares the slots that hold the content and leaves one token to compute', () => {
        const cache = plainManager(create, group(16));
        cache.addRequest(1, prompt(16));
        compute(cache, 1, 16);
        const slots = slotsOf(cache, 1, 0, 4);
        expect(cache.addRequest(2, prompt(16))).toEqual({ prepopulatedLen: 12 });
        expect(slotsOf(cache, 2, 0, 3)).toEqual(slots.slice(0, 3));
        compute(cache, 2, 16);
        expect(slots).not.toContain(slotsOf(cache, 2, 3, 4)[0]);
        cache.freeRequest(1);
        cache.freeRequest(2);
        expect(cache.stats()).toEqual([{ slotCount: 16, free: 12, reusable: 4, pinned: 0 }]);
      });

      it('never finds what is not computed, however much is reserved', () => {
        const cache = plainManager(create, group(16));
        cache.addRequest(1, prompt(32));
        compute(cache, 1, 6);
        cache.ensureCapacity(1, 32);
        expect(cache.locatePrefix(prompt(32))).toEqual({
          prepopulatedLen: 4,
          places: [['device', ...new Array(7).fill('absent')]],
        });
      });

      it('evicts the least recently used content, never what is owned or pinned', () => {
        const cache = plainManager(create, group(6));
        serve(cache, 1, prompt(8));
        serve(cache, 2, prompt(8, 1000));
        cache.addRequest(3, prompt(8, 2000));
        compute(cache, 3, 8);
        cache.pin(3);
        const pinned = slotsOf(cache, 3, 0, 2);
        cache.freeRequest(3);
        cache.addRequest(4, prompt(12, 3000));
        compute(cache, 4, 12);
        const taken = slotsOf(cache, 4, 0, 3);
        expect(taken.some((slot) => pinned.includes(slot))).toBe(false);
        expect(cache.locatePrefix(prompt(9)).places).toEqual([['absent', 'absent']]);
        expect(cache.locatePrefix(prompt(9, 1000)).places).toEqual([['device', 'absent']]);
        cache.addRequest(5, prompt(8, 4000));
        expect(cache.ensureCapacity(5, 8)).toBe(false);
        cache.unpin(3);
        expect(cache.ensureCapacity(5, 8)).toBe(true);
      });
    });

    describe('pins', () => {
      it('hold what the request has and gets, beyond its end', () => {
        const cache = plainManager(create, group(8));
        cache.addRequest(1, prompt(32));
        compute(cache, 1, 8);
        cache.pin(1);
        compute(cache, 1, 32);
        cache.freeRequest(1);
        expect(cache.isPinned(1)).toBe(true);
        expect(cache.stats()).toEqual([{ slotCount: 8, free: 0, reusable: 0, pinned: 8 }]);
        expect(() => cache.addRequest(1, prompt(4))).toThrow(/still pinned/);
        cache.unpin(1);
        expect(cache.stats()).toEqual([{ slotCount: 8, free: 0, reusable: 8, pinned: 0 }]);
      });

      it('hold every block that the runs of a transfer name, from the first block that they were said to name', () => {
        const windowed = group(16, { windowSize: 8 });
        const cache = plainManager(create, group(16), windowed);
        cache.addRequest(1, prompt(32));
        const named: number[] = [];
        for (let end = 8; end <= 32; end += 8) {
          expect(cache.ensureCapacity(1, end)).toBe(true);
          if (end === 8) cache.pin(1, [0, staleBlockEnd(32, 8, TPB)]);
          const range = sourceRange({ beginBlock: end / TPB - 2, endBlock: end / TPB }, windowed, 32, TPB);
          if (range !== null) named.push(...slotsOf(cache, 1, range.begin, range.end, 1));
          cache.markComputed(1, end);
        }
        expect(named.length).toBe(2);
        cache.freeRequest(1);
        expect(cache.stats()[0]).toMatchObject({ free: 8, reusable: 0, pinned: 8 });
        expect(cache.stats()[1]).toMatchObject({ free: 8, reusable: 6, pinned: 2 });
        cache.addRequest(2, { ...prompt(56, 1000), firstToken: 0 });
        expect(cache.ensureCapacity(2, 32)).toBe(name.startsWith('Growing'));
        cache.freeRequest(2);
        cache.unpin(1);
        expect(cache.stats().map(({ pinned }) => pinned)).toEqual([0, 0]);
      });

      it('hold nothing beyond the prompt: neither speculative nor decoded blocks, whenever they come', () => {
        const windowed = group(16, { windowSize: 8 });
        const cache = create({ tokensPerBlock: TPB, layerGroups: [group(16), windowed], speculativeTokens: 6 });
        // 14 tokens are B = 4 blocks; 6 speculative tokens make it 5, three decoded ones 6.
        cache.addRequest(1, prompt(14));
        expect(cache.ensureCapacity(1, 8)).toBe(true);
        cache.pin(1, [0, staleBlockEnd(14, 8, TPB)]);
        compute(cache, 1, 14);
        expect(cache.getSpeculativeBlockIds(1, 0).slots.length).toBe(1);
        expect(cache.stats().map(({ pinned }) => pinned)).toEqual([4, 3]);
        cache.unpin(1);
        cache.pin(1, [0, staleBlockEnd(14, 8, TPB)]);
        expect(cache.stats().map(({ pinned }) => pinned)).toEqual([4, 3]);
        compute(cache, 1, 17);
        expect(cache.stats().map(({ pinned }) => pinned)).toEqual([4, 3]);
        cache.freeRequest(1);
        expect(cache.stats().map(({ free, reusable, pinned }) => [free + reusable, pinned])).toEqual([
          [12, 4],
          [13, 3],
        ]);
        cache.unpin(1);
      });

      it('refuse bounds that are none, and a second pin', () => {
        const cache = plainManager(create, group(8));
        cache.addRequest(1, prompt(8));
        expect(() => cache.pin(1, [])).toThrow(ArgumentError);
        expect(() => cache.pin(1, [-1])).toThrow(RangeError);
        expect(() => cache.pin(1, [Number.NaN])).toThrow(RangeError);
        expect(cache.isPinned(1)).toBe(false);
        cache.pin(1, [1]);
        expect(() => cache.pin(1)).toThrow(StateError);
        cache.unpin(1);
        expect(() => cache.unpin(1)).toThrow(StateError);
      });
    });

    describe('speculative blocks', () => {
      it('exist once the prompt is covered, and no run names them', () => {
        const cache = create({ tokensPerBlock: TPB, layerGroups: [group(16)], speculativeTokens: 6 });
        cache.addRequest(1, prompt(14));
        compute(cache, 1, 14);
        // 14 + 6 tokens: five blocks, of which the prompt has four.
        expect(cache.stats()[0]?.free).toBe(11);
        expect(() => cache.getBlockIdsRange(1, 0, 0, 5)).toThrow(/end 5 is beyond the 4 blocks/);
        const spare = cache.getSpeculativeBlockIds(1, 0);
        expect(spare.begin).toBe(4);
        expect(spare.slots.length).toBe(1);
        // A decode step that reaches the block makes it an ordinary one.
        compute(cache, 1, 17);
        expect(slotsOf(cache, 1, 4, 5)).toEqual([...spare.slots]);
        expect(cache.getSpeculativeBlockIds(1, 0)).toMatchObject({ begin: 5 });
        expect(() => cache.getSpeculativeBlockIds(1, 1)).toThrow(RangeError);
        cache.freeRequest(1);
        expect(cache.stats()[0]).toMatchObject({ free: 13, reusable: 3 });
      });

      it('count when it is asked whether a prompt can ever fit', () => {
        const cache = create({ tokensPerBlock: TPB, layerGroups: [group(4)], speculativeTokens: 4 });
        expect(() => cache.addRequest(1, prompt(16))).toThrow(/need 5 slots of layer group 0, which has 4/);
        expect(cache.addRequest(1, prompt(12))).toEqual({ prepopulatedLen: 0 });
      });
    });

    describe('capacity', () => {
      it('that is not there changes nothing, in any group', () => {
        const { cache, memory } = movingManager(create, [group(8, { hostSlotCount: 8 }), group(4)]);
        serve(cache, 8, prompt(16, 5000));
        cache.addRequest(1, prompt(8));
        cache.ensureCapacity(1, 8);
        cache.addRequest(2, prompt(12, 1000));
        const before = [cache.stats(), memory.handed.length];
        expect(cache.ensureCapacity(2, 12)).toBe(false);
        expect([cache.stats(), memory.handed.length]).toEqual(before);
        cache.freeRequest(1);
        expect(cache.ensureCapacity(2, 12)).toBe(true);
      });

      it('is refused for good to a prompt that can never fit', () => {
        expect(() => plainManager(create, group(4)).addRequest(1, prompt(17))).toThrow(RequestTooLargeError);
        const cache = plainManager(create, group(16), group(3, { windowSize: 16 }));
        expect(() => cache.addRequest(1, { ...prompt(64), firstToken: 64 })).toThrow(/4 slots of layer group 1/);
      });
    });

    describe('bad input', () => {
      it('prompts', () => {
        const cache = plainManager(create, group(8));
        for (const promptLen of [0, -1, 1.5, Number.NaN, 2 ** 53])
          expect(() => cache.addRequest(1, { promptLen, blockHashes: [] })).toThrow(/promptLen/);
        expect(() => cache.addRequest(1, { ...prompt(8), blockHashes: [] })).toThrow(/0 entries for the 2 full blocks/);
        expect(() => cache.addRequest(1, { ...prompt(8), tokens: new Uint32Array(7) })).toThrow(/tokens has 7/);
        for (const firstToken of [-1, 9, 0.5, Number.NaN])
          expect(() => cache.addRequest(1, { ...prompt(8), firstToken })).toThrow(/firstToken/);
        expect(cache.addRequest(1, prompt(8))).toEqual({ prepopulatedLen: 0 });
        expect(() => cache.addRequest(1, prompt(8))).toThrow(ArgumentError);
      });

      it('requests that are not there', () => {
        const cache = plainManager(create, group(8));
        expect(() => cache.ensureCapacity(3, 4)).toThrow(/request 3 is not in the cache/);
        expect(() => cache.markComputed(3, 4)).toThrow(ArgumentError);
        expect(() => cache.pin(3)).toThrow(ArgumentError);
        expect(() => cache.pagesReady(3)).toThrow(ArgumentError);
        expect(() => cache.freeRequest(3)).toThrow(ArgumentError);
        expect(() => cache.getSpeculativeBlockIds(3, 0)).toThrow(ArgumentError);
      });

      it('computed tokens that step back or have no blocks', () => {
        const cache = plainManager(create, group(8));
        cache.addRequest(1, prompt(16));
        compute(cache, 1, 8);
        expect(() => cache.markComputed(1, 7)).toThrow(RangeError);
        expect(() => cache.markComputed(1, 17)).toThrow(/ensureCapacity first/);
        expect(() => cache.ensureCapacity(1, 16, 7)).toThrow(RangeError);
        expect(() => cache.ensureCapacity(1, 16, 17)).toThrow(RangeError);
      });

      it('options, by the name of the field', () => {
        const mover = new CacheMemory(TPB, [8], [8]);
        const options = { tokensPerBlock: TPB, layerGroups: [group(8)] };
        expect(() => create({ ...options, layerGroups: [] })).toThrow(/layerGroups/);
        for (const value of [0, -1, 1.5, Number.NaN]) {
          expect(() => create({ ...options, tokensPerBlock: value })).toThrow(/tokensPerBlock/);
          expect(() => plainManager(create, group(value))).toThrow(/layerGroups\[0\]\.slotCount/);
          expect(() => plainManager(create, group(8, { windowSize: value }))).toThrow(/windowSize/);
        }
        expect(() => create({ ...options, speculativeTokens: -1 })).toThrow(/speculativeTokens/);
        for (const value of [0, -1, 1.5, Number.NaN, 2 ** 53]) {
          expect(() => create({ ...options, senderTokensPerBlock: value })).toThrow(/senderTokensPerBlock/);
          expect(() => create({ ...options, contextParallelSize: value })).toThrow(/contextParallelSize/);
        }
        expect(() => plainManager(create, group(8, { sinkTokens: 4 }))).toThrow(/sinkTokens/);
        expect(() => plainManager(create, group(8, { windowSize: 8, sinkTokens: 0.5 }))).toThrow(/sinkTokens/);
        expect(() => create({ ...options, layerGroups: [group(8, { hostSlotCount: -1 })], mover })).toThrow(
          /hostSlotCount/,
        );
        expect(() => plainManager(create, group(8, { hostSlotCount: 8 }))).toThrow(/need a mover/);
        expect(() => create({ ...options, partialReuse: true })).toThrow(/pass a mover/);
        expect(() => plainManager(create, group(8, { tokensPerBlock: 8 }))).toThrow(
          /tokensPerBlock is 8, the manager's is 4/,
        );
        expect(() => plainManager(create, { ...STATE, windowSize: 8 })).toThrow(/state group has no window/);
      });
    });
  });
}
