import type { BenchOutput, TtftRow, TtftSample, TtftVariant } from '../../../../src/cli/bench/output-contract.js';
import { SeededRandom } from '../../../../src/cli/bench/seeded-random.js';
import { type TraceRow, traceRow } from '../../../../src/cli/bench/trace/trace-row.js';
import { traceRatios } from '../../../../src/cli/bench/trace/trace-text.js';
import { byteChecks } from '../../../../src/cli/bench/ttft/checks.js';
import { SampleTable } from '../../../../src/cli/bench/ttft/rows.js';
import { sampleWith } from '../sample.js';

/** What somebody might call a model, a host or a file. */
export const HOSTILE = `</style><script>alert('x')</script>&"<b>\u0000`;

const FACTS = {
  model: 'llama-3.1-8b',
  contextShape: 'one rank, blocks of 32, HND',
  contextRanks: 1,
  generationShape: 'one rank, blocks of 32, HND',
  generationRanks: 1,
  chunkTokens: 512,
  concurrency: 8,
  agent: 'host',
  path: 'host',
} as const;

export const SLO = { ttftMs: 300, tbtMs: 21 };

/** A request with times that add up: queue, then chunks, then the tail; every fourth one is refused or fails. */
function randomSample(request: number, random: SeededRandom, slow: number): TtftSample {
  const ms = (bound: number): number => random.below(bound * 1000) / 1000;
  const arrivedAtMs = request * 20 + ms(10);
  const bytes = 1000 + random.below(100_000);
  const head = {
    request,
    arrivedAtMs,
    promptTokens: 1024,
    contextCachedTokens: 32 * random.below(8),
    bytesPlanned: bytes,
    bytesSent: bytes,
    bytesVerified: bytes,
  };
  if (request % 16 === 3) {
    const error = `generation: RequestTooLargeError: request ${request} needs ${40 + request} blocks`;
    return sampleWith({
      ...head,
      outcome: 'rejected',
      error,
      ttftMs: 0,
      bytesPlanned: 0,
      bytesSent: 0,
      bytesVerified: 0,
    });
  }
  const waitMs = ms(5);
  const queueMs = waitMs + ms(50);
  const chunks = [0, 1].map((index) => ({
    tokenBegin: 512 * index,
    tokenEnd: 512 * (index + 1),
    startMark: queueMs + 30 * index,
    endMark: queueMs + 30 * (index + 1),
  }));
  const prefillMs = 60;
  const exposedTailMs = slow + ms(20);
  const ttftMs = queueMs + prefillMs + exposedTailMs;
  const tokenGapsMs = Array.from({ length: random.below(6) }, () => 15 + Math.round(ms(10) * 1000) / 1000);
  const finishedMark = ttftMs + tokenGapsMs.reduce((total, gap) => total + gap, 0);
  const posted = queueMs + 31;
  return sampleWith({
    ...head,
    waitMs,
    queueMs,
    prefillMs,
    exposedTailMs,
    ttftMs,
    transferMs: 40 + ms(30),
    lastSliceMs: 10,
    slices: 2,
    generatedTokens: tokenGapsMs.length + 1,
    tokenGapsMs,
    finishedMark,
    firstPostMark: posted,
    lastByteMark: ttftMs - 1,
    timeline: {
      chunks,
      slices: [
        {
          rank: 0,
          seq: 0,
          kind: 'chunk',
          chunk: 0,
          bytes: 600,
          submittedMark: queueMs + 1,
          postedMark: posted,
          finishedMark: posted + 25,
        },
        {
          rank: 0,
          seq: 1,
          kind: 'last',
          chunk: 1,
          bytes: bytes - 600,
          submittedMark: queueMs + 31,
          postedMark: queueMs + 60,
          finishedMark: ttftMs - 1,
        },
      ],
    },
  });
}

function rowsOf(
  variants: readonly TtftVariant[],
  promptTokens: number | null,
  requests: number,
  seed: bigint,
): readonly TtftRow[] {
  const random = new SeededRandom(seed);
  const table = new SampleTable();
  for (const [place, variant] of variants.entries()) {
    for (let request = 0; request < requests; request++) {
      const sample = randomSample(request, random, variant === 'monolithic' ? 150 : 20);
      // In turns: three rounds, each long after the one before.
      const round = promptTokens === null ? Math.floor((3 * request) / requests) : 0;
      const turnMs = 20_000 * (round * variants.length + ((place + round) % variants.length));
      const arrivedAtMs = sample.arrivedAtMs + (promptTokens === null ? turnMs : 0);
      table.add({ variant, promptTokens, prefixHit: 0 }, { ...sample, round, arrivedAtMs });
    }
  }
  return table.rows(FACTS);
}

function outputOf<Row extends TtftRow>(bench: string, results: readonly Row[]): BenchOutput<Row> {
  return {
    schema: 1,
    bench,
    version: '0.0.0',
    commit: HOSTILE,
    startedAt: '2026-01-01T00:00:00.000Z',
    settings: { model: HOSTILE, trace: HOSTILE, context: { ranks: 1 }, poolTokens: null, variants: ['a', HOSTILE] },
    machine: {
      cpu: HOSTILE,
      cores: 2,
      memoryGiB: 1,
      kernel: HOSTILE,
      node: 'v0',
      gpus: [{ name: HOSTILE, driver: 'd', link: 'l' }],
      nixl: { version: HOSTILE, path: HOSTILE },
    },
    results,
    ratios: {},
    checks: byteChecks(results),
    paths: [
      {
        rank: 0,
        peer: HOSTILE,
        path: 'host',
        copy: { means: 'thread', reason: HOSTILE, remedy: HOSTILE },
        reason: HOSTILE,
        alternatives: [{ path: 'p2p', isAvailable: false, reason: HOSTILE, estimatedUs: 0 }],
        advice: [HOSTILE],
      },
    ],
    interrupted: false,
  };
}

export function ttftOutput(requests = 9): BenchOutput<TtftRow> {
  return outputOf('ttft', rowsOf(['monolithic', 'pipelined', 'ideal'], 1024, requests, 5n));
}

export function traceOutput(requests = 64): BenchOutput<TraceRow> {
  const rows = rowsOf(['monolithic', 'pipelined', 'pipelined-early-prefix'], null, requests, 7n).map((row) =>
    traceRow(row, SLO),
  );
  return { ...outputOf('trace', rows), ratios: traceRatios(rows) };
}
