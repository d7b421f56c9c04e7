import type { RequestTimeline, TtftRow, TtftSample } from '../output-contract.js';
import { quantile } from '../statistics.js';
import { completedOf } from './report-output.js';

/** One variant's run of a request that is drawn. */
export interface DrawnRun {
  readonly row: TtftRow;
  readonly sample: TtftSample & { readonly timeline: RequestTimeline };
}

/** The same request of the plan in every variant, so that pictures can be laid side by side. */
export interface DrawnRequest {
  /** Which place its TTFT has in the reference variant, for example 0.5. */
  readonly share: number;
  readonly reference: TtftRow;
  /** Where the picture's time begins. */
  readonly startsAt: 'arrival' | 'first-forward';
  readonly runs: readonly DrawnRun[];
}

/**
 * For each share the request whose TTFT lies nearest to that quantile of the last variant that sends in slices, among those that all
 * variants completed and whose timelines were kept. Each request once.
 */
export function chooseRequests(
  rows: readonly TtftRow[],
  shares: readonly number[],
  startsAt: DrawnRequest['startsAt'],
): readonly DrawnRequest[] {
  const runs = rows.map((row) => new Map(completedOf(row).flatMap((sample) => drawable(row, sample))));
  const reference = rows.findLast(({ variant }) => variant.startsWith('pipelined')) ?? rows.at(-1);
  const ofReference = reference === undefined ? undefined : runs[rows.indexOf(reference)];
  if (reference === undefined || ofReference === undefined) return [];
  const common = [...ofReference.values()].filter(({ sample }) => runs.every((known) => known.has(sample.request)));
  const sorted = completedOf(reference)
    .map(({ ttftMs }) => ttftMs)
    .sort((a, b) => a - b);
  const taken = new Set<number>();
  return shares.flatMap((share): readonly DrawnRequest[] => {
    const left = common.filter(({ sample }) => !taken.has(sample.request));
    if (left.length === 0) return [];
    const wanted = quantile(sorted, share);
    const distance = (run: DrawnRun): number => Math.abs(run.sample.ttftMs - wanted);
    const nearest = left.reduce((best, run) => (distance(run) < distance(best) ? run : best));
    const { request } = nearest.sample;
    taken.add(request);
    return [{ share, reference, startsAt, runs: runs.flatMap((known) => known.get(request) ?? []) }];
  });
}

function drawable(row: TtftRow, sample: TtftSample): readonly (readonly [number, DrawnRun])[] {
  // Files of older versions have no such key.
  const timeline = sample.timeline ?? null;
  return timeline === null ? [] : [[sample.request, { row, sample: { ...sample, timeline } }]];
}
