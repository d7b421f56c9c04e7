import { describe, expect, it } from 'vitest';
import { chainBlockHashes, GrowingCacheManager, type LayerGroup } from '../../src/cache/index.js';
import { ArgumentError, RequestTooLargeError, StateError } from '../../src/errors.js';

const TPB = 4;

function group(slotCount: number, windowSize: number | null = null): LayerGroup {
  return { kind: 'attention', windowSize, tokensPerBlock: TPB, layers: [0], slotCount };
}

function manager(...layerGroups: LayerGroup[]): GrowingCacheManager {
  return new GrowingCacheManager({ tokensPerBlock: TPB, layerGroups });
}

/** Tokens 0, 1, 2, ... from `base` on. */
function prompt(length: number, base = 0) {
  const tokens = Uint32Array.from({ length }, (_, index) => base + index);
  return { promptLen: length, blockHashes: chainBlockHashes(tokens, TPB) };
}

function compute(cache: GrowingCacheManager, request: number, endToken: number): void {
  expect(cache.ensureCapacity(request, endToken)).toBe(true);
  cache.markComputed(request, endToken);
}

function slotsOf(cache: GrowingCacheManager, request: number, begin: number, end: number, index = 0): number[] {
  return [...cache.getBlockIdsRange(request, index, begin, end).slots];
}

describe('chainBlockHashes', () => {
  it('gives one hash per full block, each depending on all tokens before', () => {
    const hashes = chainBlockHashes(Uint32Array.of(1, 2, 3, 4, 5, 6, 7), 2);
    expect(hashes.length).toBe(3);
    expect(hashes.every((hash) => /^[0-9a-f]{32}$/.test(hash))).toBe(true);
    expect(chainBlockHashes(Uint32Array.of(1, 2, 3, 4), 2)).toEqual(hashes.slice(0, 2));
    const other = chainBlockHashes(Uint32Array.of(9, 2, 3, 4, 5, 6), 2);
    expect(other.some((hash, index) => hash === hashes[index])).toBe(false);
  });

  it('equal blocks at two places differ, and a block does not hash like two', () => {
    const [first, second] = chainBlockHashes(Uint32Array.of(7, 7, 7, 7), 2);
    expect(first).not.toBe(second);
    expect(chainBlockHashes(Uint32Array.of(7, 7, 7, 7), 4)[0]).not.toBe(second);
  });

  it('depends on what it starts from', () => {
    const tokens = Uint32Array.of(1, 2, 3, 4);
    expect(chainBlockHashes(tokens, 2, '')).toEqual(chainBlockHashes(tokens, 2));
    const [plain, first, second] = ['', 'adapter-1', 'adapter-2'].map((root) => chainBlockHashes(tokens, 2, root));
    expect(new Set([...(plain ?? []), ...(first ?? []), ...(second ?? [])]).size).toBe(6);
  });

  it('reads a view at its own offset', () => {
    const backing = Uint32Array.of(99, 1, 2, 3, 4);
    expect(chainBlockHashes(backing.subarray(1), 2)).toEqual(chainBlockHashes(Uint32Array.of(1, 2, 3, 4), 2));
  });

  it('has none for a prompt below a block and refuses a bad block size', () => {
    expect(chainBlockHashes(Uint32Array.of(1), 2)).toEqual([]);
    for (const size of [0, -1, 1.5, Number.NaN]) {
      expect(() => chainBlockHashes(Uint32Array.of(1), size)).toThrow(ArgumentError);
    }
  });
});

describe('prefix reuse', () => {
  it('returns the very slots that hold the content and leaves one token to compute', () => {
    const cache = manager(group(16));
    expect(cache.addRequest(1, prompt(16))).toEqual({ prepopulatedLen: 0 });
    compute(cache, 1, 16);
    const slots = slotsOf(cache, 1, 0, 4);
    cache.freeRequest(1);
    expect(cache.stats()).toEqual([{ slotCount: 16, free: 12, reusable: 4, pinned: 0 }]);

    // The same 16 tokens: the last block must be computed again, so that there is a token to compute.
    expect(cache.addRequest(2, prompt(16))).toEqual({ prepopulatedLen: 12 });
    expect(slotsOf(cache, 2, 0, 3)).toEqual(slots.slice(0, 3));
    expect(cache.stats()).toEqual([{ slotCount: 16, free: 12, reusable: 1, pinned: 0 }]);
    expect(cache.addRequest(3, prompt(17))).toEqual({ prepopulatedLen: 16 });
    expect(slotsOf(cache, 3, 0, 4)).toEqual(slots);
  });

  it('never hands a reused slot out for writing', () => {
    const cache = manager(group(16));
    cache.addRequest(1, prompt(16));
    compute(cache, 1, 16);
    cache.addRequest(2, prompt(16));
    compute(cache, 2, 16);
    const written = slotsOf(cache, 2, 3, 4);
    expect(slotsOf(cache, 1, 0, 4)).not.toContain(written[0]);
  });

  it('matches only what markComputed declared final, in whole blocks', () => {
    const cache = manager(group(16));
    cache.addRequest(1, prompt(16));
    cache.ensureCapacity(1, 16);
    expect(cache.addRequest(2, prompt(16))).toEqual({ prepopulatedLen: 0 });
    cache.markComputed(1, 7);
    expect(cache.addRequest(3, prompt(16))).toEqual({ prepopulatedLen: 4 });
    cache.markComputed(1, 8);
    expect(cache.addRequest(4, prompt(16))).toEqual({ prepopulatedLen: 8 });
  });

  it('two requests that compute the same content keep a slot each; one copy stays reusable', () => {
    const cache = manager(group(16));
    cache.addRequest(1, prompt(8));
    cache.addRequest(2, prompt(8));
    compute(cache, 1, 8);
    compute(cache, 2, 8);
    const [first, second] = [slotsOf(cache, 1, 0, 2), slotsOf(cache, 2, 0, 2)];
    expect(new Set([...first, ...second]).size).toBe(4);
    cache.freeRequest(2);
    cache.freeRequest(1);
    expect(cache.stats()).toEqual([{ slotCount: 16, free: 14, reusable: 2, pinned: 0 }]);
    expect(cache.addRequest(3, prompt(9))).toEqual({ prepopulatedLen: 8 });
    expect(slotsOf(cache, 3, 0, 2)).toEqual(first);
  });

  it('evicts the least recently used content first, of one prompt its end', () => {
    const cache = manager(group(4));
    cache.addRequest(1, prompt(8));
    compute(cache, 1, 8);
    cache.freeRequest(1);
    cache.addRequest(2, prompt(8, 1000));
    compute(cache, 2, 8);
    cache.freeRequest(2);
    cache.addRequest(3, prompt(4, 2000));
    compute(cache, 3, 4);
    cache.freeRequest(3);
    expect(cache.addRequest(4, prompt(9))).toEqual({ prepopulatedLen: 4 });
    cache.freeRequest(4);
    expect(cache.addRequest(5, prompt(9, 1000))).toEqual({ prepopulatedLen: 8 });
  });

  it('does not match across a prompt that differs in its first block', () => {
    const cache = manager(group(16));
    cache.addRequest(1, prompt(16));
    compute(cache, 1, 16);
    expect(cache.addRequest(2, prompt(16, 1))).toEqual({ prepopulatedLen: 0 });
  });
});

describe('windows', () => {
  it('a window of 4 blocks keeps the last 4 of 16', () => {
    const cache = manager(group(16), group(8, 16));
    cache.addRequest(1, prompt(64));
    for (let end = 16; end <= 64; end += 16) compute(cache, 1, end);
    expect(cache.getBlockIdsRange(1, 0, 0, 16)).toMatchObject({ begin: 0 });
    const run = cache.getBlockIdsRange(1, 1, 0, 16);
    expect(run.begin).toBe(12);
    expect(run.slots.length).toBe(4);
    expect(cache.getBlockIdsRange(1, 1, 4, 8)).toEqual({ begin: 8, slots: new Int32Array(0) });
    expect(cache.getBlockIdsRange(1, 1, 13, 15).slots).toEqual(run.slots.slice(1, 3));
  });

  it('keeps what the next chunk still sees', () => {
    const cache = manager(group(8, 16));
    cache.addRequest(1, prompt(64));
    compute(cache, 1, 18);
    // Token 18 sees tokens 3..18: block 0 is needed.
    expect(cache.getBlockIdsRange(1, 0, 0, 5).begin).toBe(0);
    compute(cache, 1, 19);
    expect(cache.getBlockIdsRange(1, 0, 0, 5).begin).toBe(1);
  });

  it('a hit needs only the blocks inside the window at the hit', () => {
    const cache = manager(group(32), group(8, 8));
    cache.addRequest(1, prompt(32));
    for (let end = 8; end <= 32; end += 8) compute(cache, 1, end);
    cache.freeRequest(1);
    // Blocks 0 and 1 of the windowed group are evicted: 6 others stay, more than the window needs.
    cache.addRequest(9, prompt(32, 5000));
    compute(cache, 9, 8);
    expect(cache.addRequest(2, prompt(33))).toEqual({ prepopulatedLen: 32 });
    expect(cache.getBlockIdsRange(2, 0, 0, 8).slots.length).toBe(8);
    expect(cache.getBlockIdsRange(2, 1, 0, 8).begin).toBe(6);
  });

  it('a windowed group that lost its newest blocks limits the hit', () => {
    const cache = manager(group(32), group(4, 8));
    cache.addRequest(1, prompt(32));
    for (let end = 8; end <= 32; end += 8) compute(cache, 1, end);
    cache.freeRequest(1);
    cache.addRequest(9, prompt(16, 5000));
    compute(cache, 9, 16);
    expect(cache.addRequest(2, prompt(33))).toEqual({ prepopulatedLen: 0 });
  });

  it('a receiver gets the final window only, and keeps it when its sender has blocks of the same size', () => {
    const layerGroups = [group(17), group(5, 16)];
    const cache = new GrowingCacheManager({ tokensPerBlock: TPB, layerGroups, senderTokensPerBlock: TPB });
    cache.addRequest(1, prompt(64));
    expect(cache.ensureCapacity(1, 64)).toBe(false);
    expect(cache.ensureCapacity(1, 64, 64)).toBe(true);
    expect(cache.getBlockIdsRange(1, 0, 0, 16).begin).toBe(0);
    expect(cache.getBlockIdsRange(1, 1, 0, 16).begin).toBe(12);
    cache.markComputed(1, 64);
    cache.freeRequest(1);
    expect(cache.addRequest(2, prompt(65))).toEqual({ prepopulatedLen: 64 });
  });

  it('a receiver whose hit left the final window takes its slots over', () => {
    const cache = manager(group(16), group(4, 16));
    cache.addRequest(1, prompt(16));
    compute(cache, 1, 16);
    cache.freeRequest(1);
    expect(cache.addRequest(2, prompt(64))).toEqual({ prepopulatedLen: 16 });
    expect(cache.ensureCapacity(2, 64, 64)).toBe(true);
    expect(cache.getBlockIdsRange(2, 1, 0, 16).begin).toBe(12);
    expect(cache.stats()[1]).toEqual({ slotCount: 4, free: 0, reusable: 0, pinned: 0 });
  });
});

describe('pins', () => {
  it('hold the blocks the request has, gets later, and loses to the window', () => {
    const cache = manager(group(8, 8));
    cache.addRequest(1, prompt(32));
    compute(cache, 1, 8);
    cache.pin(1);
    expect(cache.isPinned(1)).toBe(true);
    compute(cache, 1, 16);
    compute(cache, 1, 24);
    expect(cache.getBlockIdsRange(1, 0, 0, 6).begin).toBe(4);
    expect(cache.stats()).toEqual([{ slotCount: 8, free: 2, reusable: 0, pinned: 6 }]);
    cache.unpin(1);
    expect(cache.isPinned(1)).toBe(false);
    expect(cache.stats()).toEqual([{ slotCount: 8, free: 2, reusable: 4, pinned: 0 }]);
  });

  it('outlive the request, and count a shared slot once', () => {
    const cache = manager(group(8));
    cache.addRequest(1, prompt(16));
    compute(cache, 1, 16);
    cache.pin(1);
    cache.addRequest(2, prompt(17));
    cache.pin(2);
    expect(cache.stats()[0]?.pinned).toBe(4);
    cache.freeRequest(1);
    cache.freeRequest(2);
    expect(cache.stats()).toEqual([{ slotCount: 8, free: 4, reusable: 0, pinned: 4 }]);
    cache.addRequest(3, prompt(32, 1000));
    expect(cache.ensureCapacity(3, 20)).toBe(false);
    expect(cache.ensureCapacity(3, 16)).toBe(true);
    expect(() => cache.addRequest(1, prompt(16))).toThrow(/still pinned/);
    cache.unpin(1);
    expect(cache.ensureCapacity(3, 20)).toBe(false);
    cache.unpin(2);
    expect(cache.ensureCapacity(3, 20)).toBe(true);
  });

  it('hold a hit that left the window, which is then no room for new blocks', () => {
    const cache = manager(group(16), group(4, 16));
    cache.addRequest(1, prompt(16));
    compute(cache, 1, 16);
    cache.freeRequest(1);
    expect(cache.addRequest(2, prompt(64))).toEqual({ prepopulatedLen: 16 });
    cache.pin(2);
    expect(cache.ensureCapacity(2, 64, 64)).toBe(false);
    cache.unpin(2);
    expect(cache.ensureCapacity(2, 64, 64)).toBe(true);
  });

  it('keep content matchable', () => {
    const cache = manager(group(8));
    cache.addRequest(1, prompt(16));
    compute(cache, 1, 16);
    const slots = slotsOf(cache, 1, 0, 4);
    cache.pin(1);
    cache.freeRequest(1);
    expect(cache.addRequest(2, prompt(17))).toEqual({ prepopulatedLen: 16 });
    cache.unpin(1);
    expect(slotsOf(cache, 2, 0, 4)).toEqual(slots);
    expect(cache.stats()).toEqual([{ slotCount: 8, free: 4, reusable: 0, pinned: 0 }]);
  });
});

describe('capacity', () => {
  it('false changes nothing, in any group', () => {
    const cache = manager(group(8), group(4));
    cache.addRequest(1, prompt(16));
    cache.ensureCapacity(1, 4);
    cache.addRequest(2, prompt(16, 1000));
    const before = cache.stats();
    expect(cache.ensureCapacity(2, 16)).toBe(false);
    expect(cache.stats()).toEqual(before);
    expect(() => cache.getBlockIdsRange(2, 0, 0, 1)).toThrow(RangeError);
    expect(cache.ensureCapacity(2, 12)).toBe(true);
  });

  it('less than what exists changes nothing', () => {
    const cache = manager(group(8));
    cache.addRequest(1, prompt(16));
    cache.ensureCapacity(1, 16);
    const slots = slotsOf(cache, 1, 0, 4);
    expect(cache.ensureCapacity(1, 3)).toBe(true);
    expect(slotsOf(cache, 1, 0, 4)).toEqual(slots);
  });

  it('grows past the prompt for generated tokens, whose blocks are not kept', () => {
    const cache = manager(group(8));
    cache.addRequest(1, prompt(6));
    compute(cache, 1, 6);
    compute(cache, 1, 12);
    cache.freeRequest(1);
    expect(cache.stats()).toEqual([{ slotCount: 8, free: 7, reusable: 1, pinned: 0 }]);
  });

  it('scatters pages, the same way for the same seed, also after reuse', () => {
    const order = (seed: number): number[] => {
      const cache = new GrowingCacheManager({ tokensPerBlock: TPB, layerGroups: [group(256)], seed });
      cache.addRequest(1, prompt(1024));
      cache.ensureCapacity(1, 1024);
      cache.freeRequest(1);
      cache.addRequest(2, prompt(1024, 1));
      cache.ensureCapacity(2, 1024);
      return slotsOf(cache, 2, 0, 256);
    };
    const slots = order(7);
    expect([...slots].sort((x, y) => x - y)).toEqual(Array.from({ length: 256 }, (_, slot) => slot));
    const contiguous = slots.filter((slot, index) => slot === (slots[index - 1] ?? -2) + 1).length;
    expect(contiguous).toBeLessThan(10);
    expect(order(7)).toEqual(slots);
    expect(order(8)).not.toEqual(slots);
  });

  it('refuses a prompt that can never fit, naming the group; a window needs only its window', () => {
    const cache = manager(group(16), group(4, 16));
    expect(() => cache.addRequest(1, prompt(65))).toThrow(RequestTooLargeError);
    expect(() => cache.addRequest(1, prompt(65))).toThrow(/17 slots of layer group 0, which has 16/);
    expect(cache.addRequest(1, prompt(64))).toEqual({ prepopulatedLen: 0 });
    expect(() => manager(group(99), group(3, 16)).addRequest(1, prompt(64))).toThrow(/4 slots of layer group 1/);
  });

  it('a prompt below a block takes one block and nothing to reuse', () => {
    const cache = manager(group(2));
    cache.addRequest(1, prompt(3));
    compute(cache, 1, 3);
    expect(slotsOf(cache, 1, 0, 1).length).toBe(1);
    cache.freeRequest(1);
    expect(cache.stats()).toEqual([{ slotCount: 2, free: 2, reusable: 0, pinned: 0 }]);
  });
});

describe('bad input', () => {
  it.each([-1, 0.5, Number.NaN, 2 ** 53])('bounds of %s', (value) => {
    const cache = manager(group(8));
    cache.addRequest(1, prompt(16));
    cache.ensureCapacity(1, 16);
    expect(() => cache.getBlockIdsRange(1, 0, value, 4)).toThrow(RangeError);
    expect(() => cache.getBlockIdsRange(1, 0, 0, value)).toThrow(RangeError);
    expect(() => cache.ensureCapacity(1, value)).toThrow(RangeError);
    expect(() => cache.ensureCapacity(1, 16, value)).toThrow(RangeError);
    expect(() => cache.markComputed(1, value)).toThrow(RangeError);
    expect(() => cache.addRequest(2, { promptLen: value, blockHashes: [] })).toThrow(ArgumentError);
    expect(() => new GrowingCacheManager({ tokensPerBlock: value, layerGroups: [group(8)] })).toThrow(ArgumentError);
    expect(() => manager(group(value))).toThrow(/slotCount/);
    expect(() => manager(group(8, value))).toThrow(/windowSize/);
  });

  it('bounds that are reversed, past the blocks, or step back', () => {
    const cache = manager(group(8));
    cache.addRequest(1, prompt(16));
    compute(cache, 1, 8);
    expect(() => cache.getBlockIdsRange(1, 0, 2, 1)).toThrow(/end 1 is below begin 2/);
    expect(() => cache.getBlockIdsRange(1, 0, 0, 3)).toThrow(/end 3 is beyond the 2 blocks/);
    expect(() => cache.getBlockIdsRange(1, 1, 0, 1)).toThrow(/group 1/);
    expect(() => cache.markComputed(1, 7)).toThrow(RangeError);
    expect(() => cache.markComputed(1, 9)).toThrow(/ensureCapacity first/);
    expect(() => cache.ensureCapacity(1, 16, 7)).toThrow(RangeError);
    expect(() => cache.ensureCapacity(1, 16, 17)).toThrow(RangeError);
    expect(slotsOf(cache, 1, 2, 2)).toEqual([]);
  });

  it('requests and pins that do not exist, or exist already', () => {
    const cache = manager(group(8));
    cache.addRequest(1, prompt(16));
    expect(() => cache.addRequest(1, prompt(16))).toThrow(ArgumentError);
    expect(() => cache.addRequest(2, { promptLen: 16, blockHashes: [] })).toThrow(/0 entries for the 4 full blocks/);
    expect(() => cache.ensureCapacity(3, 4)).toThrow(/request 3 is not in the cache/);
    expect(() => cache.markComputed(3, 4)).toThrow(ArgumentError);
    expect(() => cache.getBlockIdsRange(3, 0, 0, 0)).toThrow(ArgumentError);
    expect(() => cache.pin(3)).toThrow(ArgumentError);
    expect(() => cache.freeRequest(3)).toThrow(ArgumentError);
    expect(() => cache.unpin(1)).toThrow(StateError);
    cache.pin(1);
    expect(() => cache.pin(1)).toThrow(StateError);
    cache.freeRequest(1);
    expect(() => cache.freeRequest(1)).toThrow(ArgumentError);
    cache.unpin(1);
    expect(() => cache.unpin(1)).toThrow(StateError);
  });

  it('groups that this manager cannot serve', () => {
    expect(() => manager()).toThrow(/at least one/);
    expect(() => manager({ ...group(8, 4), kind: 'state' })).toThrow(/a state group has no window/);
    expect(() => manager({ ...group(8), tokensPerBlock: 8 })).toThrow(/layerGroups\[0\].tokensPerBlock is 8/);
  });
});
