// The figures of a row from its samples alone, written apart from the bench's own code.
import type { TtftRow, TtftSample } from '../../src/cli/bench/output-contract.js';
import type { TraceRow } from '../../src/cli/bench/trace/trace-row.js';

interface Spread {
  readonly min: number;
  readonly p50: number;
  readonly p90: number;
  readonly p99: number;
  readonly max: number;
}

/** Linear between the two neighbours of rank `share * (n - 1)`. */
function spread(values: readonly number[]): Spread {
  const sorted = Float64Array.from(values).sort();
  if (sorted.length === 0) throw new Error('nothing was measured');
  const at = (share: number): number => {
    const rank = share * (sorted.length - 1);
    const below = Math.trunc(rank);
    const [low, high] = [sorted[below] as number, sorted[Math.min(below + 1, sorted.length - 1)] as number];
    return low + (high - low) * (rank - below);
  };
  return { min: at(0), p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1) };
}

function total(values: readonly number[]): number {
  let sum = 0;
  for (const value of values) sum += value;
  return sum;
}

const doneOf = (row: Pick<TtftRow, 'samples'>): readonly TtftSample[] =>
  row.samples.filter((one) => one.outcome === 'completed');

export function recomputeTtftRow(row: TtftRow, rows: readonly TtftRow[]) {
  const done = doneOf(row);
  const monolithic = rows.find((one) => one.variant === 'monolithic' && one.promptTokens === row.promptTokens);
  if (monolithic === undefined) throw new Error('no monolithic row');
  const exposedTailMs = spread(done.map((one) => one.exposedTailMs));
  return {
    requests: row.samples.length,
    failed: row.samples.filter((one) => one.outcome === 'failed').length,
    ttftMs: spread(done.map((one) => one.ttftMs)),
    prefillMs: spread(done.map((one) => one.prefillMs)),
    transferMs: spread(done.map((one) => one.transferMs)),
    exposedTailMs,
    lastSliceMs: spread(done.map((one) => one.lastSliceMs)),
    hiddenShare: 1 - exposedTailMs.p50 / spread(doneOf(monolithic).map((one) => one.transferMs)).p50,
    bytesPlanned: total(row.samples.map((one) => one.bytesPlanned)),
    bytesSent: total(row.samples.map((one) => one.bytesSent)),
    bytesVerified: total(row.samples.map((one) => one.bytesVerified)),
    wrongBytes: total(row.samples.map((one) => one.wrongBytes)),
  };
}

export function recomputeTraceRow(
  row: TraceRow,
  rows: readonly TraceRow[],
  slo: { readonly ttftMs: number; readonly tbtMs: number },
) {
  const done = doneOf(row);
  const first = Math.min(...row.samples.map((one) => one.arrivedAtMs));
  const rounds = [...new Set(row.samples.map((one) => one.round ?? 0))]
    .sort((a, b) => a - b)
    .map((round) => {
      const own = row.samples.filter((one) => (one.round ?? 0) === round);
      const startedAtMs = Math.min(...own.map((one) => one.arrivedAtMs));
      const ended = own
        .filter((one) => one.outcome === 'completed')
        .map((one) => one.arrivedAtMs + (one.finishedMark ?? 0));
      return {
        round,
        requests: own.length,
        startedAtMs,
        arrivingMs: Math.max(...own.map((one) => one.arrivedAtMs)) - startedAtMs,
        durationMs: ended.length === 0 ? 0 : Math.max(...ended) - startedAtMs,
      };
    });
  const durationMs = total(rounds.map((one) => one.durationMs));
  const meanOf = (gaps: readonly number[]): number => total(gaps) / gaps.length;
  const good = done.filter(
    (one) => one.ttftMs <= slo.ttftMs && (one.tokenGapsMs.length === 0 || meanOf(one.tokenGapsMs) <= slo.tbtMs),
  ).length;
  const prompts = total(done.map((one) => one.promptTokens));
  return {
    ...recomputeTtftRow(row, rows),
    completed: done.length,
    rejected: row.samples.filter((one) => one.outcome === 'rejected').length,
    startedAtMs: first,
    durationMs,
    rounds,
    offeredRequestsPerSecond: (1000 * row.samples.length) / total(rounds.map((one) => one.arrivingMs)),
    waitMs: spread(done.map((one) => one.waitMs)),
    queueMs: spread(done.map((one) => one.queueMs)),
    tbtMs: spread(done.flatMap((one) => one.tokenGapsMs)),
    meanTbtMs: spread(done.filter((one) => one.tokenGapsMs.length > 0).map((one) => meanOf(one.tokenGapsMs))),
    goodput: { goodRequests: good, share: good / row.samples.length, requestsPerSecond: (1000 * good) / durationMs },
    promptTokensInAll: prompts,
    generatedTokensInAll: total(done.map((one) => one.generatedTokens)),
    contextHitShare: total(done.map((one) => one.contextCachedTokens)) / prompts,
    generationHitShare: total(done.map((one) => one.generationCachedTokens)) / prompts,
    requestsWithHit: done.filter((one) => one.contextCachedTokens > 0).length,
  };
}
