import type { TtftRow, TtftSample } from '../output-contract.js';
import { roundsOf } from '../trace/trace-row.js';
import { completedOf } from './report-output.js';

/** A quantity over time: mean of each of equally long intervals. */
export interface LoadSeries {
  readonly intervalMs: number;
  readonly values: readonly number[];
}

interface Weighted {
  readonly begin: number;
  readonly end: number;
  /** What it counts for at each moment in between. */
  readonly weight: number;
}

/** Which part of a request's life is counted. */
export type LoadMeasure = 'arriving' | 'waiting' | 'prefilling' | 'decoding' | 'moving';

const MEASURES: Readonly<Record<LoadMeasure, (sample: TtftSample) => Weighted | null>> = {
  // A request a millisecond would be 1000 a second.
  arriving: ({ arrivedAtMs }) => ({ begin: arrivedAtMs, end: arrivedAtMs + 1, weight: 1000 }),
  waiting: ({ arrivedAtMs, queueMs }) => ({ begin: arrivedAtMs, end: arrivedAtMs + queueMs, weight: 1 }),
  prefilling: ({ arrivedAtMs, queueMs, prefillMs }) => {
    const begin = arrivedAtMs + queueMs;
    return { begin, end: begin + prefillMs, weight: 1 };
  },
  decoding: ({ arrivedAtMs, ttftMs, finishedMark }) =>
    finishedMark === null ? null : { begin: arrivedAtMs + ttftMs, end: arrivedAtMs + finishedMark, weight: 1 },
  moving: ({ arrivedAtMs, bytesSent, firstPostMark, lastByteMark }) => {
    if (firstPostMark === null || lastByteMark === null || lastByteMark <= firstPostMark) return null;
    // GB/s: bytes a millisecond are millionths of it.
    const weight = bytesSent / (lastByteMark - firstPostMark) / 1e6;
    return { begin: arrivedAtMs + firstPostMark, end: arrivedAtMs + lastByteMark, weight };
  },
};

/**
 * Time as a variant has it: its rounds, one behind the other. A round is as long as the slowest variant needed for it, so that the same arrivals lie at
 * the same place for all of them.
 */
export interface LoadAxis {
  readonly lengthMs: number;
  /** Begin of each round on it. */
  readonly beginsMs: ReadonlyMap<number, number>;
}

export function loadAxis(rows: readonly Pick<TtftRow, 'samples'>[]): LoadAxis {
  const longestMs = new Map<number, number>();
  for (const { samples } of rows)
    for (const { round, durationMs, arrivingMs } of roundsOf(samples))
      longestMs.set(round, Math.max(longestMs.get(round) ?? 0, durationMs, arrivingMs));
  const beginsMs = new Map<number, number>();
  let lengthMs = 0;
  for (const [round, roundMs] of [...longestMs].sort(([a], [b]) => a - b)) {
    beginsMs.set(round, lengthMs);
    lengthMs += roundMs;
  }
  return { lengthMs: Math.max(1, lengthMs), beginsMs };
}

/** The load of a row over the axis. Requests that were not completed count only as they arrive. */
export function loadSeries(row: TtftRow, measure: LoadMeasure, axis: LoadAxis, intervals: number): LoadSeries {
  const { lengthMs, beginsMs } = axis;
  const intervalMs = lengthMs / intervals;
  const values = new Array<number>(intervals).fill(0);
  const startsMs = new Map(roundsOf(row.samples).map(({ round, startedAtMs }) => [round, startedAtMs]));
  for (const sample of measure === 'arriving' ? row.samples : completedOf(row)) {
    const span = MEASURES[measure](sample);
    if (span === null) continue;
    const { round = 0 } = sample;
    const shiftMs = (beginsMs.get(round) ?? 0) - (startsMs.get(round) ?? 0);
    const [begin, end] = [span.begin + shiftMs, Math.min(span.end + shiftMs, lengthMs)];
    for (
      let index = Math.max(0, Math.floor(begin / intervalMs));
      index < intervals && index * intervalMs < end;
      index++
    ) {
      const inside = Math.min(end, (index + 1) * intervalMs) - Math.max(begin, index * intervalMs);
      values[index] = (values[index] as number) + (span.weight * Math.max(0, inside)) / intervalMs;
    }
  }
  return { intervalMs, values };
}
