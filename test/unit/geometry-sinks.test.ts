import { describe, expect, it } from 'vitest';
import { joinRuns } from '../../src/geometry/block-run.js';
import {
  HOLE,
  pairRuns,
  pairSubBlocks,
  prefillSlice,
  runEnd,
  sinkRange,
  sourceRange,
} from '../../src/geometry/index.js';
import { ownedBlocks } from '../../src/mapping/index.js';

/** 16 blocks of 4 tokens; the window begins with block 12, the sinks end with block 1. */
const group = { kind: 'attention', windowSize: 16, sinkTokens: 6 } as const;
const slice = (beginBlock: number, endBlock: number) => ({ beginBlock, endBlock });

describe('sinkRange', () => {
  it.each<[string, number, number, { begin: number; end: number } | null]>([
    ['the whole prompt', 0, 16, { begin: 0, end: 2 }],
    ['a slice that ends inside the sinks', 0, 1, { begin: 0, end: 1 }],
    ['a slice that begins inside the sinks', 1, 4, { begin: 1, end: 2 }],
    ['a slice between sinks and window', 2, 12, null],
    ['an empty slice', 1, 1, null],
  ])('of %s', (_, begin, end, expected) => {
    expect(sinkRange(slice(begin, end), group, 64, 4)).toEqual(expected);
  });

  it('never meets the window: what both would name is the window’s', () => {
    for (const sinkTokens of [0, 1, 4, 6, 47, 48, 49, 64, 1000]) {
      for (const promptLen of [1, 3, 4, 20, 63, 64, 65]) {
        for (const windowSize of [1, 2, 4, 16, promptLen, promptLen + 1, promptLen + 2]) {
          const shape = { kind: 'attention', windowSize, sinkTokens } as const;
          const whole = slice(0, Math.ceil(promptLen / 4));
          const named: number[] = [];
          for (const range of [sinkRange(whole, shape, promptLen, 4), sourceRange(whole, shape, promptLen, 4)])
            for (let block = range?.begin ?? 0; block < (range?.end ?? 0); block++) named.push(block);
          const wanted = Array.from({ length: whole.endBlock }, (_, block) => block).filter((block) =>
            // A sink token, or a position that the next token sees.
            [0, 1, 2, 3].some((i) => block * 4 + i < sinkTokens || promptLen - (block * 4 + i) < windowSize),
          );
          expect(named, `P ${promptLen}, W ${windowSize}, sinks ${sinkTokens}`).toEqual(wanted);
        }
      }
    }
  });

  it('is null without a window, for state, and without sinks', () => {
    expect(sinkRange(slice(0, 16), { ...group, windowSize: null }, 64, 4)).toBeNull();
    expect(sinkRange({ ...slice(0, 16), isLast: true }, { ...group, kind: 'state' }, 64, 4)).toBeNull();
    expect(sinkRange(slice(0, 16), { kind: 'attention', windowSize: 16 }, 64, 4)).toBeNull();
  });

  it.each([-1, 0.5, Number.NaN, Infinity, 2 ** 53])('refuses %s', (value) => {
    expect(() => sinkRange(slice(value, 4), group, 64, 4)).toThrow(/beginBlock/);
    expect(() => sinkRange(slice(0, value), group, 64, 4)).toThrow(/endBlock/);
    expect(() => sinkRange(slice(0, 4), { ...group, sinkTokens: value }, 64, 4)).toThrow(/sinkTokens/);
    expect(() => sinkRange(slice(0, 4), { ...group, windowSize: value }, 64, 4)).toThrow(/windowSize/);
    expect(() => sinkRange(slice(0, 4), group, value, 4)).toThrow(/promptLen/);
    expect(() => sinkRange(slice(0, 4), group, 64, value)).toThrow(/tokensPerBlock/);
    expect(() => ownedBlocks(value, 4, 0, 2)).toThrow(/begin/);
    expect(() => ownedBlocks(0, value, 0, 2)).toThrow(RangeError);
    expect(() => ownedBlocks(0, 4, value, 2)).toThrow(RangeError);
    expect(() => ownedBlocks(0, 4, 0, value)).toThrow(RangeError);
  });

  it('refuses what is reversed, and a rank outside its size', () => {
    expect(() => sinkRange(slice(4, 3), group, 64, 4)).toThrow(/endBlock 3 is below beginBlock 4/);
    expect(() => ownedBlocks(4, 3, 0, 2)).toThrow(/end 3 is below begin 4/);
    expect(() => ownedBlocks(0, 4, 2, 2)).toThrow(/cpSize - 1 1 is below cpRank 2/);
    expect(() => ownedBlocks(0, 4, 0, 0)).toThrow(/cpSize/);
  });
});

describe('joinRuns', () => {
  const run = (begin: number, slots: number[], stride?: number) => ({
    begin,
    slots: Int32Array.from(slots),
    ...(stride === undefined ? {} : { stride }),
  });

  it('fills the gap with holes', () => {
    expect(joinRuns(run(1, [7]), run(4, [9, 8]))).toEqual(run(1, [7, HOLE, HOLE, 9, 8]));
    expect(joinRuns(run(1, [7]), run(2, [9]))).toEqual(run(1, [7, 9]));
    expect(joinRuns(run(1, [7, 6], 3), run(10, [9], 3))).toEqual(run(1, [7, 6, HOLE, 9], 3));
    expect(joinRuns(run(0, []), run(4, [9]))).toEqual(run(4, [9]));
    expect(joinRuns(run(0, [7]), run(4, []))).toEqual(run(0, [7]));
  });

  it('refuses runs that overlap or do not share a stride', () => {
    expect(() => joinRuns(run(1, [7, 8]), run(2, [9]))).toThrow(/back.begin is 2, the front run ends at 3/);
    expect(() => joinRuns(run(0, [7], 2), run(3, [9], 2))).toThrow(/stride/);
    expect(() => joinRuns(run(0, [7]), run(4, [9], 2))).toThrow(/stride/);
  });
});

describe('bounds at the edge of what a number holds', () => {
  const slots = Int32Array.of(1, 2, 3);
  it('ordinals beyond 2^53 are refused, not walked', () => {
    const last = { begin: 2 ** 53 - 2, slots };
    expect(() => pairRuns(last, last)).toThrow(/source: the end of the run/);
    expect(() => pairRuns({ begin: 0, slots }, { begin: 0, slots, stride: 2 ** 52 })).toThrow(/destination/);
    expect(() => pairSubBlocks({ begin: 2 ** 50, slots }, 16, { begin: 0, slots }, 1)).toThrow(/source/);
    expect(() => pairSubBlocks({ begin: 0, slots }, 2 ** 31, { begin: 0, slots }, 1)).toThrow(/2147483648 parts/);
    expect(() => runEnd(last)).toThrow(RangeError);
    expect(() => runEnd({ begin: -1, slots })).toThrow(/begin/);
    expect(() => runEnd({ begin: 0, slots, stride: 0 })).toThrow(/stride/);
  });

  it('-0 is 0, and leaves as 0', () => {
    const chunk = { chunkEnd: 8, remaining: -0, tokensPerBlock: 4, prefixSent: true, promptLen: 8 };
    expect(prefillSlice({ ...chunk, chunkStart: -0, prepopulatedLen: -0 })).toEqual({
      beginBlock: 0,
      endBlock: 2,
      isLast: true,
    });
    expect(sourceRange(slice(-0, 4), group, 12, 4)).toEqual({ begin: 0, end: 3 });
    expect(sinkRange(slice(-0, 4), group, 64, 4)).toEqual({ begin: 0, end: 2 });
    expect(ownedBlocks(-0, 4, -0, 2)).toEqual({ begin: 0, end: 2 });
  });
});
