import { describe, expect, it } from 'vitest';
import type { TtftSample, TtftVariant } from '../../../src/cli/bench/output-contract.js';
import { byteChecks, failedChecks, figureChecks } from '../../../src/cli/bench/ttft/checks.js';
import { earlyPrefixChecks } from '../../../src/cli/bench/ttft/early-prefix-checks.js';
import { checkLines, headlines, ttftTable } from '../../../src/cli/bench/ttft/report-text.js';
import { RequestMeasurement } from '../../../src/cli/bench/ttft/request-measurement.js';
import { ratios, SampleTable } from '../../../src/cli/bench/ttft/rows.js';
import type { ContextReport } from '../../../src/cli/bench/ttft/worker-messages.js';
import type { PlannedRequest } from '../../../src/cli/bench/ttft/workload.js';
import { sampleWith } from './sample.js';

const FACTS = {
  model: 'llama-3.1-8b',
  contextShape: 'TP2, blocks of 32, HND',
  contextRanks: 2,
  generationShape: 'one rank, blocks of 32, HND',
  generationRanks: 1,
  chunkTokens: 2048,
  concurrency: 1,
  agent: 'host',
  path: 'host',
} as const;

function tableOf(samples: readonly (readonly [TtftVariant, Partial<TtftSample>])[]): ReturnType<SampleTable['rows']> {
  const table = new SampleTable();
  for (const [variant, over] of samples) table.add({ variant, promptTokens: 8192, prefixHit: 0 }, sampleWith(over));
  return table.rows(FACTS);
}

const GOOD = tableOf([
  ['monolithic', { ttftMs: 120, exposedTailMs: 41, transferMs: 40, slices: 1 }],
  ['pipelined', { ttftMs: 92, exposedTailMs: 11 }],
  ['ideal', { ttftMs: 90, exposedTailMs: 10, bytesPlanned: 250, bytesSent: 250, bytesVerified: 250 }],
]);

describe('rows', () => {
  it('keep the contract of the JSON', () => {
    expect(Object.keys(GOOD[0] ?? {})).toEqual([
      'variant',
      'model',
      'contextShape',
      'contextRanks',
      'generationShape',
      'generationRanks',
      'promptTokens',
      'chunkTokens',
      'prefixHit',
      'concurrency',
      'agent',
      'path',
      'requests',
      'failed',
      'slices',
      'ttftMs',
      'prefillMs',
      'transferMs',
      'exposedTailMs',
      'lastSliceMs',
      'hiddenShare',
      'bytesPlanned',
      'bytesSent',
      'bytesVerified',
      'wrongBytes',
      'samples',
    ]);
    expect(GOOD[1]).toMatchObject({
      variant: 'pipelined',
      requests: 1,
      failed: 0,
      slices: 4,
      hiddenShare: 1 - 11 / 40,
    });
    expect(ratios(GOOD)).toEqual({
      pipelinedOverMonolithic: { 8192: 92 / 120 },
      pipelinedOverIdeal: { 8192: 92 / 90 },
    });
  });

  it('count a failed request and leave it out of the times', () => {
    const rows = tableOf([
      ['pipelined', { ttftMs: 5 }],
      ['pipelined', { outcome: 'failed', ttftMs: 0, bytesSent: 3, bytesVerified: 0 }],
    ]);
    expect(rows[0]).toMatchObject({ requests: 2, failed: 1, ttftMs: { min: 5, max: 5 }, hiddenShare: null });
    expect(failedChecks(byteChecks(rows)).map((check) => check.name)).toEqual([
      'failedRequests',
      'bytesSent',
      'bytesVerified',
    ]);
  });

  it('keep variants of one prompt together although they were measured in turns', () => {
    const table = new SampleTable();
    for (const promptTokens of [1024, 2048]) {
      for (const variant of ['monolithic', 'pipelined'] as const)
        table.add({ variant, promptTokens, prefixHit: 0.5 }, sampleWith({}));
    }
    expect(table.rows(FACTS).map((row) => `${row.promptTokens} ${row.variant}`)).toEqual([
      '1024 monolithic',
      '1024 pipelined',
      '2048 monolithic',
      '2048 pipelined',
    ]);
    expect(ratios(table.rows(FACTS))['pipelinedOverMonolithic']).toEqual({ '1024@0.5': 1, '2048@0.5': 1 });
  });
});

it('a row keeps timelines up to a bound, and every figure beyond it', () => {
  const table = new SampleTable();
  const chunk = { tokenBegin: 0, tokenEnd: 1, startMark: 0, endMark: 1 };
  const timeline = { chunks: Array.from({ length: 18_000 }, () => chunk), slices: [] };
  for (let request = 0; request < 3; request++) {
    table.add({ variant: 'pipelined', promptTokens: 1, prefixHit: 0 }, sampleWith({ request, timeline }));
  }
  const [row] = table.rows(FACTS);
  expect(row?.samples.map((sample) => sample.timeline !== null)).toEqual([true, true, false]);
  expect(row?.ttftMs?.max).toBe(100);
});

describe('checks', () => {
  it('hold for a good run', () => {
    expect(failedChecks(byteChecks(GOOD))).toEqual([]);
    expect(figureChecks(GOOD, true).map(({ name, met }) => [name, met])).toEqual([
      ['exposedTailOverLastSlice', true],
      ['hiddenShare', true],
      ['savingOverIdealSaving', true],
    ]);
  });

  it.each([
    [{ wrongBytes: 1 }, ['wrongBytes']],
    [{ bytesSent: 999 }, ['bytesSent', 'requestsWithByteCountMismatch']],
    [{ bytesVerified: 1001 }, ['bytesVerified', 'requestsWithByteCountMismatch']],
  ])('fail the run for %j', (over, names) => {
    const rows = tableOf([['pipelined', over]]);
    expect(failedChecks(byteChecks(rows)).map((check) => check.name)).toEqual(names);
  });

  it('fail a variant of which nothing was completed, and let one pass of which something was', () => {
    const rejected = { outcome: 'rejected', bytesPlanned: 0, bytesSent: 0, bytesVerified: 0 } as const;
    const rows = tableOf([
      ['monolithic', rejected],
      ['monolithic', rejected],
      ['pipelined', rejected],
      ['pipelined', {}],
    ]);
    expect(failedChecks(byteChecks(rows))).toMatchObject([{ name: 'completedRequests', value: 0, bound: 1 }]);
    expect(checkLines(byteChecks(rows))).toEqual(['NOT MET  completedRequests monolithic 8192: 0 >= 1']);
    expect(checkLines(byteChecks(rows.slice(1)))).toEqual([
      'met      every byte planned was sent, arrived and is right',
    ]);
  });

  it('see a mismatch that cancels out over two requests', () => {
    const rows = tableOf([
      ['pipelined', { bytesSent: 999 }],
      ['pipelined', { bytesSent: 1001 }],
    ]);
    expect(failedChecks(byteChecks(rows)).map((check) => [check.name, check.value])).toEqual([
      ['requestsWithByteCountMismatch', 2],
    ]);
  });

  it('say nothing where slices differ in weight, or the ideal saves nothing', () => {
    const windows = GOOD.map((row) => ({ ...row, model: 'gemma-3-1b' }));
    const prefix = GOOD.map((row) => ({ ...row, prefixHit: 0.5 }));
    const shortLastChunk = GOOD.map((row) => ({ ...row, chunkTokens: 1000 }));
    for (const rows of [windows, prefix, shortLastChunk]) expect(figureChecks(rows, true)).toEqual([]);
    const noise = tableOf([
      ['monolithic', { ttftMs: 90, transferMs: 40 }],
      ['pipelined', { ttftMs: 92, exposedTailMs: 11 }],
      ['ideal', { ttftMs: 91 }],
    ]);
    expect(figureChecks(noise, true).map((check) => check.name)).toEqual(['exposedTailOverLastSlice', 'hiddenShare']);
  });

  it('judge figures only on request', () => {
    const slow = tableOf([
      ['monolithic', { ttftMs: 120, transferMs: 40 }],
      ['pipelined', { ttftMs: 119, exposedTailMs: 39 }],
      ['ideal', { ttftMs: 90 }],
    ]);
    expect(figureChecks(slow, true).every((check) => !check.met)).toBe(true);
    expect(failedChecks(figureChecks(slow, false))).toEqual([]);
    expect(failedChecks(figureChecks(slow, true))).toHaveLength(3);
  });
});

it('prints one row per variant, the saving, and one line for all bytes', () => {
  const table = ttftTable(GOOD).split('\n');
  expect(table).toHaveLength(2 + 3);
  expect(table[3]?.replaceAll(/ +/g, ' ')).toBe('pipelined 8192 92.0 92.0 80.0 40.0 11.0 10.0 72.5 % 1000 B 0');
  expect(headlines(GOOD)).toEqual([
    '8192 tokens: TTFT 92.0 ms pipelined, 120 ms monolithic (x 0.77, 28.0 ms saved, 93 % of what the ideal saves)',
  ]);
  expect(checkLines([...byteChecks(GOOD), ...figureChecks(GOOD, false)])).toEqual([
    'met      every byte planned was sent, arrived and is right',
    'met      exposedTailOverLastSlice 8192: 1.100 <= 1.300',
    'met      hiddenShare 8192: 0.725 >= 0.700',
    'met      savingOverIdealSaving 8192: 0.933 >= 0.800',
  ]);
});

describe('one request', () => {
  const planned: PlannedRequest = {
    variant: 'pipelined',
    request: 3,
    seed: 9n,
    prompt: { kind: 'random', seed: 9n, tokenCount: 64 },
    prefixHit: 0,
    contextWarmTokens: 0,
    generationWarmTokens: 0,
    maxTokens: 3,
    arrivalMs: null,
  };
  const context: ContextReport = {
    cachedTokens: 0,
    prefillStartMs: 1010,
    chunks: [
      { tokenBegin: 0, tokenEnd: 32, startMs: 1010, endMs: 1050 },
      { tokenBegin: 32, tokenEnd: 64, startMs: 1050, endMs: 1090 },
    ],
    firstPostMs: 1051,
    lastSlicePostMs: 1091,
    lastByteMs: 1099,
    tail: { lastHeardMs: 1099.1, auxPostedMs: 1090.2, auxDoneMs: 1090.3, reportSentMs: 1099.2 },
    sliceCount: 2,
    slices: [
      { rank: 0, seq: 0, kind: 'chunk', chunk: 0, bytes: 6, submittedMs: 1011, postedMs: 1051, finishedMs: 1060 },
      { rank: 0, seq: 1, kind: 'last', chunk: 1, bytes: 0, submittedMs: 1051, postedMs: null, finishedMs: null },
    ],
    ranks: [
      { rank: 0, bytesPlanned: 6, bytesSent: 6 },
      { rank: 1, bytesPlanned: 4, bytesSent: 4 },
    ],
  };
  const generation = {
    cachedTokens: 0,
    tail: { reportReadMs: 1100, settledMs: 1100.5 },
    firstWrong: null,
    ranks: [{ rank: 0, bytesVerified: 10, wrongBytes: 0 }],
    tokensMs: [1101, 1121.00049, 1131],
  };
  const TIMES = { runStartedMs: 400, arrivedMs: 1000, submittedMs: 1004 };
  const expected = { of: () => ({ context: [6, 4], generation: [10] }) };

  it('is complete when both sides reported, and its times start at the submission', async () => {
    const measurement = new RequestMeasurement(planned, TIMES, expected);
    measurement.accept('generation', { kind: 'firstToken', key: 1, atMs: 1101 });
    measurement.accept('generation', { kind: 'generationDone', key: 1, report: generation });
    measurement.accept('context', { kind: 'contextDone', key: 1, report: context });
    await measurement.complete;
    expect(measurement.sample('lost')).toMatchObject({
      outcome: 'completed',
      ttftMs: 101,
      queueMs: 10,
      prefillMs: 80,
      transferMs: 48,
      exposedTailMs: 11,
      lastSliceMs: 8,
      arrivedAtMs: 600,
      waitMs: 4,
      chunkEndMarks: [50, 90],
      generatedTokens: 3,
      tokenGapsMs: [20, 10],
      finishedMark: 131,
      timeline: {
        chunks: [
          { tokenBegin: 0, tokenEnd: 32, startMark: 10, endMark: 50 },
          { tokenBegin: 32, tokenEnd: 64, startMark: 50, endMark: 90 },
        ],
        slices: [
          { rank: 0, seq: 0, kind: 'chunk', chunk: 0, bytes: 6, submittedMark: 11, postedMark: 51, finishedMark: 60 },
          {
            rank: 0,
            seq: 1,
            kind: 'last',
            chunk: 1,
            bytes: 0,
            submittedMark: 51,
            postedMark: null,
            finishedMark: null,
          },
        ],
      },
      lastByteMark: 99,
      tail: { reportRead: 100, settled: 100.5 },
      bytesPlanned: 10,
      bytesSent: 10,
      bytesVerified: 10,
      contextRanks: [
        { rank: 0, bytesExpected: 6, bytesPlanned: 6, bytesSent: 6 },
        { rank: 1, bytesExpected: 4, bytesPlanned: 4, bytesSent: 4 },
      ],
      generationRanks: [{ rank: 0, bytesExpected: 10, bytesVerified: 10, wrongBytes: 0 }],
    });
  });

  it('carries what each side said about a failure', async () => {
    const measurement = new RequestMeasurement(planned, TIMES, expected);
    const lost = measurement.heardFromOtherThan('context');
    measurement.accept('context', { kind: 'contextDone', key: 1, report: context });
    measurement.accept('generation', {
      kind: 'requestFailed',
      key: 1,
      error: { name: 'PeerLostError', code: 'ERR_KVT_PEER_LOST', message: 'gone' },
    });
    await lost;
    await measurement.complete;
    expect(measurement.sample('lost')).toMatchObject({
      outcome: 'failed',
      error: 'generation: PeerLostError: gone',
      bytesSent: 10,
    });
  });

  it('is refused, with that reason alone, when a server says that it can never fit', async () => {
    const measurement = new RequestMeasurement(planned, TIMES, expected);
    measurement.accept('generation', {
      kind: 'requestFailed',
      key: 1,
      error: { name: 'RequestTooLargeError', code: 'ERR_KVT_REQUEST_TOO_LARGE', message: 'request 1 needs 9 blocks' },
    });
    expect([measurement.isOverFor('generation'), measurement.isOverFor('context')]).toEqual([true, false]);
    measurement.accept('context', {
      kind: 'requestFailed',
      key: 1,
      error: { name: 'Cancelled', code: '', message: 'cancelled by the driver' },
    });
    await measurement.complete;
    expect(measurement.sample('lost')).toMatchObject({
      outcome: 'rejected',
      error: 'generation: RequestTooLargeError: request 1 needs 9 blocks',
      timeline: null,
    });
  });

  it('is lost when a side never says anything', () => {
    expect(new RequestMeasurement(planned, TIMES, expected).sample('no outcome within 1 s')).toMatchObject({
      outcome: 'failed',
      error: 'no outcome within 1 s',
    });
  });
});

describe('early prefix', () => {
  const rows = (prefixHit: number, early: Partial<TtftSample>, more: Partial<typeof FACTS> = {}) => {
    const table = new SampleTable();
    const at = (variant: TtftVariant) => ({ variant, promptTokens: 8192, prefixHit });
    table.add(at('monolithic'), sampleWith({ ttftMs: 120, transferMs: 60, slices: 1 }));
    table.add(at('pipelined-early-prefix'), sampleWith({ ttftMs: 92, exposedTailMs: 11, ...early }));
    table.add(at('ideal'), sampleWith({ ttftMs: 90, exposedTailMs: 10 }));
    return table.rows({ ...FACTS, ...more });
  };
  const told = (checks: ReturnType<typeof earlyPrefixChecks>) =>
    checks.map(({ name, value, met }) => [name, value, met]);

  it('is held against the last slice and the ideal', () => {
    expect(told(earlyPrefixChecks(rows(0.9, {}), true, 1.3))).toEqual([
      ['earlyPrefixLinkTime', expect.any(Number), true],
      ['earlyPrefixTailOverLastSlice', 1.1, true],
      ['earlyPrefixOverIdeal', 92 / 90, true],
    ]);
    const slow = earlyPrefixChecks(rows(0.9, { ttftMs: 100, exposedTailMs: 20 }), true, 1.3);
    expect(told(slow)).toEqual([
      ['earlyPrefixLinkTime', expect.any(Number), true],
      ['earlyPrefixTailOverLastSlice', 2, false],
      ['earlyPrefixOverIdeal', 100 / 90, false],
    ]);
    expect(failedChecks(slow)).toHaveLength(2);
    expect(failedChecks(earlyPrefixChecks(rows(0.9, { ttftMs: 100 }), false, 1.3))).toEqual([]);
  });

  it('says nothing without a hit, and only that the link is too slow where what precedes the last slice takes longer than the prefill', () => {
    expect(earlyPrefixChecks(rows(0, {}), true, 1.3)).toEqual([]);
    // 60 ms for the whole prompt: 54 for nine tenths of it.
    const slowLink = earlyPrefixChecks(rows(0.9, { prefillMs: 53 }), true, 1.3);
    expect(told(slowLink)).toEqual([['earlyPrefixLinkTime', 54 / 53, false]]);
    expect(failedChecks(slowLink)).toHaveLength(1);
    expect(earlyPrefixChecks(rows(0.9, { prefillMs: 54 }), true, 1.3)).toHaveLength(3);
    // 58 for all but a last slice of 2 ms: the slices of earlier chunks queue behind the prefix.
    expect(told(earlyPrefixChecks(rows(0.9, { prefillMs: 57, lastSliceMs: 2 }), true, 1.3))).toEqual([
      ['earlyPrefixLinkTime', 58 / 57, false],
    ]);
    expect(earlyPrefixChecks(rows(0.9, { prefillMs: 58, lastSliceMs: 2 }), true, 1.3)).toHaveLength(3);
    expect(earlyPrefixChecks(rows(0.9, {}, { model: 'gemma-3-27b' as 'llama-3.1-8b' }), true, 1.3)).toEqual([]);
  });
});
