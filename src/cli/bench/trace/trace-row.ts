import type { TtftRow, TtftSample } from '../output-contract.js';
import { type Percentiles, percentilesOf, sum } from '../statistics.js';

/** What a request must keep to count as good. */
export interface Slo {
  readonly ttftMs: number;
  /** Of the mean time between its tokens. */
  readonly tbtMs: number;
}

export interface Goodput {
  readonly goodRequests: number;
  /** Of all that arrived, the failed and refused ones too. */
  readonly share: number;
  readonly requestsPerSecond: number;
}

/** One turn of a variant. */
export interface TraceRound {
  readonly round: number;
  readonly requests: number;
  /** Its first arrival, ms after the run began. */
  readonly startedAtMs: number;
  /** From its first to its last arrival. */
  readonly arrivingMs: number;
  /** From its first arrival to its last token. */
  readonly durationMs: number;
}

/** One variant of `bench trace`. */
export interface TraceRow extends TtftRow {
  readonly completed: number;
  /** Refused by a server or by the full queue; no failure. */
  readonly rejected: number;
  readonly rejections: readonly { readonly reason: string; readonly requests: number }[];
  /** When its first request arrived, ms after the run began. */
  readonly startedAtMs: number;
  /** From the first arrival of a round to its last token, all rounds together. */
  readonly durationMs: number;
  readonly rounds: readonly TraceRound[];
  /** While requests arrived. */
  readonly offeredRequestsPerSecond: number;
  /** At the coordinator, for a place. */
  readonly waitMs: Percentiles | null;
  /** From the arrival to the first forward step, waiting for a place included. */
  readonly queueMs: Percentiles | null;
  /** Between two tokens of a request: all gaps of all requests. */
  readonly tbtMs: Percentiles | null;
  /** The mean of each request's gaps; those of one token have none. */
  readonly meanTbtMs: Percentiles | null;
  readonly slo: Slo;
  readonly goodput: Goodput;
  readonly promptTokensInAll: number;
  readonly generatedTokensInAll: number;
  /** Share of the prompt tokens that a server found in its cache. */
  readonly contextHitShare: number;
  readonly generationHitShare: number;
  /** Requests of which the context server found something. */
  readonly requestsWithHit: number;
}

/** Null for a request of one token: nothing lies between. */
export function meanGapMs({ tokenGapsMs }: Pick<TtftSample, 'tokenGapsMs'>): number | null {
  return tokenGapsMs.length === 0 ? null : sum(tokenGapsMs) / tokenGapsMs.length;
}

export function isGood(sample: TtftSample, slo: Slo): boolean {
  return sample.outcome === 'completed' && sample.ttftMs <= slo.ttftMs && (meanGapMs(sample) ?? 0) <= slo.tbtMs;
}

/** The figures that a replay adds to a row. */
export function traceRow(row: TtftRow, slo: Slo): TraceRow {
  const { samples } = row;
  const done = samples.filter(({ outcome }) => outcome === 'completed');
  const rounds = roundsOf(samples);
  const durationMs = sum(rounds.map((round) => round.durationMs));
  const rejected = samples.filter(({ outcome }) => outcome === 'rejected');
  const goodRequests = samples.filter((sample) => isGood(sample, slo)).length;
  const promptTokensInAll = sum(done.map(({ promptTokens }) => promptTokens));
  const share = (tokens: number): number => (promptTokensInAll === 0 ? 0 : tokens / promptTokensInAll);
  return {
    ...row,
    completed: done.length,
    rejected: rejected.length,
    rejections: reasonsOf(rejected),
    startedAtMs: rounds[0]?.startedAtMs ?? 0,
    durationMs,
    rounds,
    offeredRequestsPerSecond: perSecond(samples.length, sum(rounds.map(({ arrivingMs }) => arrivingMs))),
    waitMs: percentilesOf(done.map(({ waitMs }) => waitMs)),
    queueMs: percentilesOf(done.map(({ queueMs }) => queueMs)),
    tbtMs: percentilesOf(done.flatMap(({ tokenGapsMs }) => tokenGapsMs)),
    meanTbtMs: percentilesOf(done.flatMap((sample) => meanGapMs(sample) ?? [])),
    slo,
    goodput: {
      goodRequests,
      share: samples.length === 0 ? 0 : goodRequests / samples.length,
      requestsPerSecond: perSecond(goodRequests, durationMs),
    },
    promptTokensInAll,
    generatedTokensInAll: sum(done.map(({ generatedTokens }) => generatedTokens)),
    contextHitShare: share(sum(done.map(({ contextCachedTokens }) => contextCachedTokens))),
    generationHitShare: share(sum(done.map(({ generationCachedTokens }) => generationCachedTokens))),
    requestsWithHit: done.filter(({ contextCachedTokens }) => contextCachedTokens > 0).length,
  };
}

/** The turns that a variant had, in their order. */
export function roundsOf(samples: readonly TtftSample[]): readonly TraceRound[] {
  const byRound = new Map<number, TtftSample[]>();
  for (const sample of samples) {
    const { round = 0 } = sample;
    const some = byRound.get(round);
    if (some === undefined) byRound.set(round, [sample]);
    else some.push(sample);
  }
  return [...byRound].sort(([a], [b]) => a - b).map(([round, some]) => roundOf(round, some));
}

function roundOf(round: number, samples: readonly TtftSample[]): TraceRound {
  const arrivals = samples.map(({ arrivedAtMs }) => arrivedAtMs);
  const startedAtMs = leastOf(arrivals);
  const ends = samples.flatMap(({ outcome, arrivedAtMs, finishedMark }) =>
    outcome === 'completed' ? arrivedAtMs + (finishedMark ?? 0) : [],
  );
  return {
    round,
    requests: samples.length,
    startedAtMs,
    arrivingMs: mostOf(arrivals) - startedAtMs,
    durationMs: ends.length === 0 ? 0 : mostOf(ends) - startedAtMs,
  };
}

/** The most frequent first; what differs only in its numbers counts as one reason. */
function reasonsOf(samples: readonly TtftSample[]): TraceRow['rejections'] {
  const byShape = new Map<string, { reason: string; requests: number }>();
  for (const { error } of samples) {
    const reason = error ?? 'no reason given';
    const shape = reason.replaceAll(/\d+/g, '#');
    const known = byShape.get(shape);
    if (known === undefined) byShape.set(shape, { reason, requests: 1 });
    else known.requests++;
  }
  return [...byShape.values()].sort((a, b) => b.requests - a.requests);
}

function perSecond(count: number, ms: number): number {
  return ms > 0 ? (1000 * count) / ms : 0;
}

// Not Math.min(...values): a trace may have more requests than a call takes arguments.
function leastOf(values: readonly number[]): number {
  return values.reduce((least, value) => Math.min(least, value), values[0] ?? 0);
}

function mostOf(values: readonly number[]): number {
  return values.reduce((most, value) => Math.max(most, value), values[0] ?? 0);
}
