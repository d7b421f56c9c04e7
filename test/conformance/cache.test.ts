import { describe, expect, it } from 'vitest';
import { GrowingCacheManager, ReservingCacheManager } from '../../src/cache/index.js';
import { type CreateManager, group, prompt } from './cache-fixture.js';
import { describePageMoves } from './cache-moves-suite.js';
import { describeCacheManager } from './cache-suite.js';

const MANAGERS: readonly (readonly [string, CreateManager])[] = [
  ['GrowingCacheManager', (options) => new GrowingCacheManager(options)],
  ['ReservingCacheManager', (options) => new ReservingCacheManager(options)],
];

for (const [name, create] of MANAGERS) {
  describeCacheManager(name, create);
  describePageMoves(name, create);
}

describe('how the two differ', () => {
  const layerGroups = [group(16), group(16, { windowSize: 8 })];

  it('growing: blocks come by the chunk and go with the window', () => {
    const cache = new GrowingCacheManager({ tokensPerBlock: 4, layerGroups });
    expect(cache.allocation).toEqual({ reservesPrompt: false, speculativeTokens: 0 });
    cache.addRequest(1, prompt(64));
    for (let end = 8; end <= 32; end += 8) {
      expect(cache.ensureCapacity(1, end)).toBe(true);
      cache.markComputed(1, end);
    }
    expect(cache.stats().map(({ free, reusable }) => 16 - free - reusable)).toEqual([8, 2]);
    expect(() => cache.getBlockIdsRange(1, 0, 0, 9)).toThrow(RangeError);
    expect(cache.getBlockIdsRange(1, 1, 0, 8).begin).toBe(6);
  });

  it('reserving: the whole prompt at once, kept to the end; blocks beyond the computed ones exist and hold nothing', () => {
    const cache = new ReservingCacheManager({ tokensPerBlock: 4, layerGroups });
    expect(cache.allocation).toEqual({ reservesPrompt: true, speculativeTokens: 0 });
    cache.addRequest(1, prompt(64));
    expect(cache.stats().map(({ free }) => free)).toEqual([16, 16]);
    expect(cache.ensureCapacity(1, 8)).toBe(true);
    expect(cache.stats().map(({ free }) => free)).toEqual([0, 0]);
    const slots = cache.getBlockIdsRange(1, 1, 0, 16);
    for (let end = 8; end <= 52; end += 4) {
      expect(cache.ensureCapacity(1, end)).toBe(true);
      cache.markComputed(1, end);
    }
    expect(cache.getBlockIdsRange(1, 1, 0, 16)).toEqual(slots);
    expect(cache.locatePrefix(prompt(64)).places[0]).toEqual([
      ...new Array(13).fill('device'),
      ...new Array(3).fill('absent'),
    ]);
    cache.addRequest(2, prompt(4, 1000));
    expect(cache.ensureCapacity(2, 4)).toBe(false);
  });

  it('reserving: a receiver gets the final window only, a context server needs a page for every block', () => {
    const cache = new ReservingCacheManager({
      tokensPerBlock: 4,
      layerGroups: [group(16), group(4, { windowSize: 8 })],
    });
    expect(() => cache.addRequest(1, prompt(64))).toThrow(/16 slots of layer group 1/);
    cache.addRequest(1, { ...prompt(64), firstToken: 64 });
    expect(cache.ensureCapacity(1, 64, 64)).toBe(true);
    expect(cache.getBlockIdsRange(1, 1, 0, 16)).toMatchObject({ begin: 14 });
    expect(cache.stats()[1]?.free).toBe(2);
  });

  it('reserving: all or nothing', () => {
    const cache = new ReservingCacheManager({ tokensPerBlock: 4, layerGroups: [group(16)] });
    cache.addRequest(1, prompt(40));
    expect(cache.ensureCapacity(1, 4)).toBe(true);
    cache.addRequest(2, prompt(40, 1000));
    expect(cache.ensureCapacity(2, 4)).toBe(false);
    expect(() => cache.getBlockIdsRange(2, 0, 0, 1)).toThrow(RangeError);
  });
});
