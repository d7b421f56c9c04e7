import { describe, expect, it } from 'vitest';
import {
  earlyPrefixSlice,
  HOLE,
  type PrefillChunk,
  pairRuns,
  prefillSlice,
  projectBlocksToGlobalChunk,
  sourceRange,
  staleBlockEnd,
} from '../../src/geometry/index.js';

const full = { kind: 'attention', windowSize: null } as const;
const bad = [-1, 0.5, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 53];

function chunk(over: Partial<PrefillChunk>): PrefillChunk {
  const base = { chunkStart: 0, chunkEnd: 8, promptLen: 32, prepopulatedLen: 0, tokensPerBlock: 4, prefixSent: false };
  const merged = { ...base, ...over };
  return { remaining: Math.max(0, merged.promptLen - merged.chunkEnd), ...merged };
}

describe('staleBlockEnd', () => {
  it('a window of 4 blocks over exactly 16 blocks keeps the last 4', () => {
    expect(staleBlockEnd(64, 16, 4)).toBe(12);
  });

  it('counts the next token', () => {
    expect([62, 63, 64, 65, 66, 67, 68].map((tokens) => staleBlockEnd(tokens, 16, 4))).toEqual([
      11, 12, 12, 12, 12, 13, 13,
    ]);
  });

  it('is 0 for full attention, a window as large as the prompt, and a prompt below a block', () => {
    expect(staleBlockEnd(1_000_000, null, 32)).toBe(0);
    expect(staleBlockEnd(64, 65, 4)).toBe(0);
    expect(staleBlockEnd(64, 1024, 4)).toBe(0);
    expect(staleBlockEnd(3, 2, 16)).toBe(0);
  });

  it('reaches the block count when the window starts at the next token', () => {
    expect(staleBlockEnd(64, 1, 4)).toBe(16);
    expect(staleBlockEnd(63, 1, 4)).toBe(15);
  });

  it.each(bad)('refuses %s', (value) => {
    expect(() => staleBlockEnd(value, 16, 4)).toThrow(RangeError);
    expect(() => staleBlockEnd(64, value, 4)).toThrow(/windowSize/);
    expect(() => staleBlockEnd(64, 16, value)).toThrow(/tokensPerBlock/);
    expect(() => staleBlockEnd(64, 0, 4)).toThrow(RangeError);
    expect(() => staleBlockEnd(64, 16, 0)).toThrow(RangeError);
  });
});

describe('prefillSlice', () => {
  it('sends a prompt smaller than a block as one last slice', () => {
    const one = { promptLen: 3, tokensPerBlock: 16 };
    expect(prefillSlice(chunk({ ...one, chunkEnd: 1 }))).toBeNull();
    expect(prefillSlice(chunk({ ...one, chunkStart: 1, chunkEnd: 3 }))).toEqual({
      beginBlock: 0,
      endBlock: 1,
      isLast: true,
    });
  });

  it('a prompt that ends on a block end has no partial block', () => {
    expect(prefillSlice(chunk({ chunkStart: 20, chunkEnd: 32 }))).toEqual({ beginBlock: 5, endBlock: 8, isLast: true });
    expect(prefillSlice(chunk({ chunkStart: 20, chunkEnd: 33, promptLen: 33 }))).toEqual({
      beginBlock: 5,
      endBlock: 9,
      isLast: true,
    });
  });

  it('with an unaligned reuse hit sends the half-reused block once, after the chunk that completes it', () => {
    const hit = { prepopulatedLen: 14 };
    const first = { ...hit, chunkStart: 14, chunkEnd: 20 };
    const second = { ...hit, chunkStart: 20, chunkEnd: 32 };
    expect(prefillSlice(chunk(first))).toEqual({ beginBlock: 0, endBlock: 5, isLast: false });
    expect(prefillSlice(chunk({ ...first, prefixSent: true }))).toEqual({ beginBlock: 3, endBlock: 5, isLast: false });
    expect(prefillSlice(chunk({ ...second, prefixSent: true }))).toEqual({ beginBlock: 5, endBlock: 8, isLast: true });
  });

  it('sends the last slice even when it covers no block', () => {
    expect(prefillSlice(chunk({ prepopulatedLen: 32, chunkStart: 32, chunkEnd: 32, prefixSent: true }))).toEqual({
      beginBlock: 8,
      endBlock: 8,
      isLast: true,
    });
  });

  it('clamps a padded chunk to the prompt', () => {
    expect(prefillSlice(chunk({ chunkStart: 24, chunkEnd: 64 }))).toEqual({ beginBlock: 6, endBlock: 8, isLast: true });
  });

  it.each(['chunkStart', 'chunkEnd', 'promptLen', 'prepopulatedLen', 'remaining', 'tokensPerBlock'] as const)(
    'refuses a bad %s',
    (field) => {
      for (const value of bad) expect(() => prefillSlice({ ...chunk({}), [field]: value })).toThrow(RangeError);
    },
  );

  it('refuses what cannot tile', () => {
    expect(() => prefillSlice(chunk({ chunkStart: 9 }))).toThrow(/chunkEnd 8 is below chunkStart 9/);
    expect(() => prefillSlice(chunk({ prepopulatedLen: 4 }))).toThrow(/chunkStart 0 is below prepopulatedLen 4/);
    expect(() => prefillSlice(chunk({ prepopulatedLen: 33 }))).toThrow(RangeError);
    expect(() => prefillSlice({ ...chunk({}), remaining: 0 })).toThrow(/remaining is 0/);
  });
});

describe('earlyPrefixSlice', () => {
  const gates = { prepopulatedLen: 14, tokensPerBlock: 4, isFirstChunk: true, cancelled: false, pipelined: true };

  it('covers whole blocks only', () => {
    expect(earlyPrefixSlice(gates)).toEqual({ beginBlock: 0, endBlock: 3 });
    expect(earlyPrefixSlice({ ...gates, prepopulatedLen: 16 })).toEqual({ beginBlock: 0, endBlock: 4 });
    expect(earlyPrefixSlice({ ...gates, prepopulatedLen: 3 })).toBeNull();
  });

  it.each([{ isFirstChunk: false }, { cancelled: true }, { pipelined: false }])('stays shut when %j', (gate) => {
    expect(earlyPrefixSlice({ ...gates, ...gate })).toBeNull();
  });

  it.each(bad)('refuses %s', (value) => {
    expect(() => earlyPrefixSlice({ ...gates, prepopulatedLen: value })).toThrow(RangeError);
    expect(() => earlyPrefixSlice({ ...gates, tokensPerBlock: value, pipelined: false })).toThrow(RangeError);
  });
});

describe('sourceRange', () => {
  it('asks only for blocks inside the final window', () => {
    const windowed = { kind: 'attention', windowSize: 16 } as const;
    expect(sourceRange({ beginBlock: 11, endBlock: 13 }, windowed, 64, 4)).toEqual({ begin: 12, end: 13 });
    expect(sourceRange({ beginBlock: 4, endBlock: 8 }, windowed, 64, 4)).toBeNull();
    expect(sourceRange({ beginBlock: 13, endBlock: 16, isLast: true }, windowed, 64, 4)).toEqual({
      begin: 13,
      end: 16,
    });
  });

  it('asks for nothing when the whole prompt is outside the window', () => {
    const windowed = { kind: 'latent', windowSize: 1 } as const;
    expect(sourceRange({ beginBlock: 0, endBlock: 16, isLast: true }, windowed, 64, 4)).toBeNull();
  });

  it('full attention asks for the slice, never past the prompt', () => {
    expect(sourceRange({ beginBlock: 2, endBlock: 5 }, full, 64, 4)).toEqual({ begin: 2, end: 5 });
    expect(sourceRange({ beginBlock: 14, endBlock: 20 }, full, 62, 4)).toEqual({ begin: 14, end: 16 });
    expect(sourceRange({ beginBlock: 3, endBlock: 3, isLast: true }, full, 64, 4)).toBeNull();
  });

  it('sends recurrent state once, with the last slice', () => {
    const state = { kind: 'state', windowSize: null } as const;
    expect(sourceRange({ beginBlock: 0, endBlock: 8, isLast: false }, state, 64, 4)).toBeNull();
    expect(sourceRange({ beginBlock: 0, endBlock: 8 }, state, 64, 4)).toBeNull();
    expect(sourceRange({ beginBlock: 8, endBlock: 8, isLast: true }, state, 64, 4)).toEqual({ begin: 0, end: 1 });
  });

  it('refuses bad bounds', () => {
    for (const value of bad) {
      expect(() => sourceRange({ beginBlock: value, endBlock: 8 }, full, 64, 4)).toThrow(/beginBlock/);
      expect(() => sourceRange({ beginBlock: 0, endBlock: value }, full, 64, 4)).toThrow(/endBlock/);
      expect(() => sourceRange({ beginBlock: 0, endBlock: 8 }, full, value, 4)).toThrow(/promptLen/);
      expect(() => sourceRange({ beginBlock: 0, endBlock: 8 }, full, 64, value)).toThrow(/tokensPerBlock/);
    }
    expect(() => sourceRange({ beginBlock: 5, endBlock: 4 }, full, 64, 4)).toThrow(RangeError);
  });
});

describe('projectBlocksToGlobalChunk', () => {
  it('reads a suffix list by ordinal', () => {
    expect([...projectBlocksToGlobalChunk([7, 8, 9], 12, 10, 8)]).toEqual([8, 9]);
    expect([...projectBlocksToGlobalChunk(Int32Array.of(7, 8, 9), 12, 0, 10)]).toEqual([7]);
    expect([...projectBlocksToGlobalChunk([7, 8, 9], 12, 12, 4)]).toEqual([]);
    expect([...projectBlocksToGlobalChunk([], 12, 0, 12)]).toEqual([]);
  });

  it('a list longer than its end covers from ordinal 0', () => {
    expect([...projectBlocksToGlobalChunk([7, 8, 9], 2, 0, 9)]).toEqual([7, 8]);
  });

  it('refuses bad bounds and ids that are no slot', () => {
    for (const value of bad) {
      expect(() => projectBlocksToGlobalChunk([1], value, 0, 1)).toThrow(/residentBlockEnd/);
      expect(() => projectBlocksToGlobalChunk([1], 1, value, 1)).toThrow(/chunkBlockOffset/);
      expect(() => projectBlocksToGlobalChunk([1], 1, 0, value)).toThrow(/chunkBlockCount/);
    }
    expect(() => projectBlocksToGlobalChunk([2 ** 31], 1, 0, 1)).toThrow(/blockIds\[0\]/);
    expect(() => projectBlocksToGlobalChunk([0.5], 1, 0, 1)).toThrow(RangeError);
  });
});

describe('pairRuns', () => {
  it('pairs by ordinal, and a hole on either side moves nothing', () => {
    const source = { begin: 2, slots: Int32Array.of(20, 21, HOLE, 23, 24) };
    const destination = { begin: 3, slots: Int32Array.of(31, 32, HOLE, 34, 35) };
    expect([...pairRuns(source, destination)]).toEqual([21, 31, 24, 34]);
  });

  it('disjoint and touching runs pair nothing', () => {
    const source = { begin: 0, slots: Int32Array.of(1, 2) };
    expect(pairRuns(source, { begin: 2, slots: Int32Array.of(3) }).length).toBe(0);
    expect(pairRuns({ begin: 2, slots: Int32Array.of(3) }, source).length).toBe(0);
    expect(pairRuns(source, { begin: 0, slots: new Int32Array(0) }).length).toBe(0);
  });

  it('a wider window on the receiver has its head ignored', () => {
    const source = { begin: 12, slots: Int32Array.of(5) };
    expect([...pairRuns(source, { begin: 10, slots: Int32Array.of(1, 2, 3, 4) })]).toEqual([5, 3]);
  });

  it('refuses what is neither a slot nor a hole', () => {
    const good = { begin: 0, slots: Int32Array.of(1) };
    expect(() => pairRuns({ begin: 0, slots: Int32Array.of(-2) }, good)).toThrow(/source slot of ordinal 0 is -2/);
    expect(() => pairRuns(good, { begin: 0, slots: Int32Array.of(-7) })).toThrow(/destination slot/);
    expect(() => pairRuns({ begin: -1, slots: Int32Array.of(1) }, good)).toThrow(/source.begin/);
    expect(() => pairRuns(good, { begin: Number.NaN, slots: Int32Array.of(1) })).toThrow(/destination.begin/);
  });
});
