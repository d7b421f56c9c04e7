import type { Check, TtftRow, TtftSample } from '../output-contract.js';
import { presetNamed } from '../presets/index.js';
import { sum } from '../statistics.js';
import { rowOf, subjectOf } from './rows.js';

/** How far the exposed tail may exceed the last slice's own time on the wire. */
export const TAIL_OVER_LAST_SLICE = 1.3;
/** The same where the GPU itself starts the slice. */
export const TAIL_OVER_LAST_SLICE_ON_GPU = 1.2;
export const COMPLETED_REQUESTS = 'completedRequests';
/** What pipelining may miss of the share that its chunk count allows it to hide. */
const HIDDEN_SHARE_TOLERANCE = 0.05;
/** Share of the ideal's saving that pipelining must reach. */
const SAVING_OVER_IDEAL = 0.8;

/** Something was done, every byte planned was sent, arrived and is right, and no request was lost. These decide the exit code. */
export function byteChecks(rows: readonly TtftRow[]): readonly Check[] {
  return rows.flatMap((row) => {
    const subject = `${row.variant} ${subjectOf(row)}`;
    const equal = (name: string, value: number, bound: number): Check => ({
      name,
      subject,
      met: value === bound,
      judged: true,
      value,
      bound,
      relation: '=',
    });
    const completed = row.samples.filter(({ outcome }) => outcome === 'completed').length;
    const perRequest = row.samples.filter(
      (sample) =>
        sample.outcome === 'completed' &&
        (sample.bytesSent !== sample.bytesPlanned || sample.bytesVerified !== sample.bytesPlanned),
    );
    return [
      // Of requests that were all refused no byte can be wrong.
      {
        name: COMPLETED_REQUESTS,
        subject,
        met: completed >= 1,
        judged: true,
        value: completed,
        bound: 1,
        relation: '>=',
      },
      equal('wrongBytes', row.wrongBytes, 0),
      equal('failedRequests', row.failed, 0),
      equal('bytesSent', row.bytesSent, row.bytesPlanned),
      equal('bytesVerified', row.bytesVerified, row.bytesPlanned),
      equal('requestsWithByteCountMismatch', perRequest.length, 0),
      equal('ranksWithByteCountMismatch', sum(row.samples.map(ranksWithMismatch)), 0),
    ];
  });
}

/** Ranks that wrote or got another number of bytes than the shapes of both sides say. */
function ranksWithMismatch(sample: TtftSample): number {
  if (sample.outcome !== 'completed') return 0;
  const writers = sample.contextRanks.filter(
    ({ bytesExpected, bytesPlanned, bytesSent }) => bytesPlanned !== bytesExpected || bytesSent !== bytesExpected,
  );
  const receivers = sample.generationRanks.filter(
    ({ bytesExpected, bytesVerified }) => bytesVerified !== bytesExpected,
  );
  return writers.length + receivers.length;
}

/**
 * The figures that pipelining is built for; they decide the exit code only when `judged`.
 * They say something only about slices of equal weight: not about a first slice that carries a reused prefix, a last chunk
 * that is shorter than the others, sliding windows, whose layers move with the last slices alone, or recurrent state, which the last slice
 * carries whole.
 */
export function figureChecks(
  rows: readonly TtftRow[],
  judged: boolean,
  tailBound = TAIL_OVER_LAST_SLICE,
): readonly Check[] {
  return rows.flatMap((row) => {
    if (row.variant !== 'pipelined' || row.ttftMs === null || row.promptTokens === null) return [];
    const { sliding, hybrid } = presetNamed(row.model);
    if (row.prefixHit > 0 || row.promptTokens % row.chunkTokens !== 0 || sliding !== null || hybrid !== null) return [];
    const subject = subjectOf(row);
    const checks: Check[] = [];
    if (row.exposedTailMs !== null && row.lastSliceMs !== null && row.lastSliceMs.p50 > 0) {
      const value = row.exposedTailMs.p50 / row.lastSliceMs.p50;
      const met = value <= tailBound;
      checks.push({
        name: 'exposedTailOverLastSlice',
        subject,
        met,
        judged,
        value,
        bound: tailBound,
        relation: '<=',
      });
    }
    if (row.hiddenShare !== null && row.slices > 0) {
      const bound = 1 - 1 / row.slices - HIDDEN_SHARE_TOLERANCE;
      const value = row.hiddenShare;
      checks.push({ name: 'hiddenShare', subject, met: value >= bound, judged, value, bound, relation: '>=' });
    }
    const monolithic = rowOf(rows, 'monolithic', row)?.ttftMs?.p50;
    const ideal = rowOf(rows, 'ideal', row)?.ttftMs?.p50;
    // One chunk, or a transfer that disappears in the noise: the ideal saves nothing, and there is nothing to compare with.
    if (monolithic !== undefined && ideal !== undefined && row.slices > 1 && monolithic > ideal) {
      const value = (monolithic - row.ttftMs.p50) / (monolithic - ideal);
      const met = monolithic - row.ttftMs.p50 >= SAVING_OVER_IDEAL * (monolithic - ideal);
      checks.push({
        name: 'savingOverIdealSaving',
        subject,
        met,
        judged,
        value,
        bound: SAVING_OVER_IDEAL,
        relation: '>=',
      });
    }
    return checks;
  });
}

/** What decides the exit code and does not hold. */
export function failedChecks(checks: readonly Check[]): readonly Check[] {
  return checks.filter((check) => check.judged && !check.met);
}
