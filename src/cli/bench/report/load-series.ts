import type { TtftRow, TtftSample } from '../output-contract.js';
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

/** The load of a row from its first arrival on. Requests that were not completed count only as they arrive. */
export function loadSeries(row: TtftRow, measure: LoadMeasure, lengthMs: number, intervals: number): LoadSeries {
  const intervalMs = lengthMs / intervals;
  const values = new Array<number>(intervals).fill(0);
  const startMs = startOf(row);
  for (const sample of measure === 'arriving' ? row.samples : completedOf(row)) {
    const span = MEASURES[measure](sample);
    if (span === null) continue;
    const [begin, end] = [span.begin - startMs, Math.min(span.end - startMs, lengthMs)];
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

export function startOf({ samples }: Pick<TtftRow, 'samples'>): number {
  return samples.reduce((least, { arrivedAtMs }) => Math.min(least, arrivedAtMs), samples[0]?.arrivedAtMs ?? 0);
}
