import type { TtftSample } from '../../../src/cli/bench/output-contract.js';

/** A completed request of four chunks and slices; what a test is about is given in `over`. */
export function sampleWith(over: Partial<TtftSample>): TtftSample {
  return {
    request: 0,
    seed: '1',
    arrivedAtMs: 0,
    waitMs: 0,
    promptTokens: 8192,
    contextCachedTokens: 0,
    generationCachedTokens: 0,
    outcome: 'completed',
    error: null,
    slices: 4,
    ttftMs: 100,
    queueMs: 1,
    prefillMs: 80,
    transferMs: 40,
    exposedTailMs: 12,
    lastSliceMs: 10,
    bytesPlanned: 1000,
    bytesSent: 1000,
    bytesVerified: 1000,
    wrongBytes: 0,
    contextRanks: [],
    generationRanks: [],
    firstWrong: null,
    chunkEndMarks: [],
    firstPostMark: null,
    lastSlicePostMark: null,
    lastByteMark: null,
    generatedTokens: 1,
    tokenGapsMs: [],
    finishedMark: 100,
    timeline: null,
    ...over,
  };
}
