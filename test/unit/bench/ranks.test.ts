import { describe, expect, it } from 'vitest';
import { GrowingCacheManager } from '../../../src/cache/growing-cache-manager.js';
import { contextReport, type RankContext } from '../../../src/cli/bench/ttft/context-on-ranks.js';
import { PinCountingCache } from '../../../src/cli/bench/ttft/pin-counting-cache.js';
import { RankTally } from '../../../src/cli/bench/ttft/rank-tally.js';
import { StateError } from '../../../src/errors.js';

describe('one outcome from one for each rank', () => {
  const open = () => {
    const said: unknown[] = [];
    const tally = new RankTally<string>(
      3,
      (parts) => said.push(parts),
      (error) => said.push(error),
    );
    return { said, tally };
  };

  it('is complete when every rank is, in rank order', () => {
    const { said, tally } = open();
    tally.complete(2, 'c');
    tally.complete(0, 'a');
    expect(said).toEqual([]);
    tally.complete(1, 'b');
    tally.fail('late');
    expect(said).toEqual([['a', 'b', 'c']]);
    expect(tally.hasFailed).toBe(false);
  });

  it('fails once, with the first reason', () => {
    const { said, tally } = open();
    tally.complete(0, 'a');
    tally.fail('first');
    tally.fail('second');
    tally.complete(1, 'b');
    tally.complete(2, 'c');
    expect(said).toEqual(['first']);
    expect(tally.hasFailed).toBe(true);
  });
});

it('a prefill begins with the first rank and ends with the last, chunk by chunk', () => {
  const rank = (index: number, atMs: number, bytes: number): RankContext => ({
    rank: index,
    request: { prepopulatedLen: 32 } as never,
    prefill: {
      startMs: 100 + atMs,
      chunks: [
        { tokenBegin: 32, tokenEnd: 64, enqueuedMs: 100 + atMs, startMs: 100 + atMs, endMs: 200 + atMs },
        { tokenBegin: 64, tokenEnd: 80, enqueuedMs: 150, startMs: 200 + atMs, endMs: 300 - atMs },
      ],
    },
    timings: {
      startedAtMs: 0,
      firstPostAtMs: atMs === 0 ? null : 210,
      lastSliceSubmittedAtMs: 290,
      settledAtMs: 400,
      slices: 2,
      bytesPlanned: bytes,
      bytesDone: bytes,
      // Two receivers, one after the other.
      perSlice: [0, 1, 0, 1].map((seq, entry) => ({
        seq,
        beginBlock: 0,
        endBlock: 1,
        bytes: 1,
        // Slice 0 of rank 1 was handed over before its first chunk.
        submittedAtMs: seq === 0 ? 101 : 151,
        postedAtMs: atMs === 0 ? null : 310 + entry * 10 - seq,
        finishedAtMs: atMs === 0 ? null : 350 + entry,
      })),
      tail: {
        lastHeardAtMs: atMs === 0 ? null : 354,
        auxPostedAtMs: 301 + index,
        auxFinishedAtMs: 303 - index,
        reportedAtMs: null,
      },
    },
  });
  const report = contextReport([rank(0, 0, 0), rank(1, 7, 10)]);
  expect(report.slices.map((slice) => [slice.rank, slice.seq, slice.kind, slice.chunk])).toEqual([
    [0, 0, 'chunk', 0],
    [0, 1, 'last', 1],
    [0, 0, 'chunk', 0],
    [0, 1, 'last', 1],
    [1, 0, 'early-prefix', null],
    [1, 1, 'last', 1],
    [1, 0, 'early-prefix', null],
    [1, 1, 'last', 1],
  ]);
  expect(report).toEqual({
    cachedTokens: 32,
    prefillStartMs: 100,
    chunks: [
      { tokenBegin: 32, tokenEnd: 64, startMs: 100, endMs: 207 },
      { tokenBegin: 64, tokenEnd: 80, startMs: 200, endMs: 300 },
    ],
    firstPostMs: 210,
    lastSlicePostMs: 319,
    lastByteMs: 353,
    tail: { lastHeardMs: 354, auxPostedMs: 302, auxDoneMs: 303, reportSentMs: null },
    sliceCount: 2,
    slices: expect.any(Array),
    ranks: [
      { rank: 0, bytesPlanned: 0, bytesSent: 0 },
      { rank: 1, bytesPlanned: 10, bytesSent: 10 },
    ],
  });
});

it('pages of a request that two hold are free when both let go', () => {
  const group = { kind: 'attention', windowSize: null, tokensPerBlock: 4, layers: [0], slotCount: 2 } as const;
  const cache = new PinCountingCache(new GrowingCacheManager({ tokensPerBlock: 4, layerGroups: [group] }));
  cache.addRequest(1, { promptLen: 3, blockHashes: [] });
  expect(cache.ensureCapacity(1, 3)).toBe(true);
  cache.pin(1);
  cache.pin(1);
  cache.freeRequest(1);
  cache.unpin(1);
  expect([cache.isPinned(1), cache.stats()[0]?.free]).toEqual([true, 1]);
  cache.unpin(1);
  expect([cache.isPinned(1), cache.stats()[0]?.free]).toEqual([false, 2]);
  expect(() => cache.unpin(1)).toThrow(StateError);
});
