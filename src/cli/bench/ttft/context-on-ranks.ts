import type { LlmRequest } from '../../../executor/request.js';
import type { SliceTiming, TransferTimings } from '../../../session/cache-transceiver.js';
import type { ContextReport, WriterBytes } from './worker-messages.js';

/** What one context rank saw of a request that it completed. */
export interface RankContext {
  readonly rank: number;
  readonly request: LlmRequest;
  readonly prefill: { readonly startMs: number; readonly chunkEndsMs: readonly number[] };
  readonly timings: TransferTimings;
}

/** All ranks together: the first to begin and the last to end count. */
export function contextReport(ranks: readonly RankContext[]): ContextReport {
  const chunks = Math.max(...ranks.map(({ prefill }) => prefill.chunkEndsMs.length));
  return {
    cachedTokens: Math.max(...ranks.map(({ request }) => request.prepopulatedLen)),
    prefillStartMs: Math.min(...ranks.map(({ prefill }) => prefill.startMs)),
    chunkEndsMs: Array.from({ length: chunks }, (_, chunk) =>
      Math.max(...ranks.flatMap(({ prefill }) => prefill.chunkEndsMs[chunk] ?? [])),
    ),
    firstPostMs: earliest(ranks.map(({ timings }) => timings.firstPostAtMs)),
    lastSlicePostMs: earliest(ranks.flatMap(({ timings }) => lastSlice(timings).map((slice) => slice.postedAtMs))),
    lastByteMs: latest(ranks.flatMap(({ timings }) => timings.perSlice.map((slice) => slice.finishedAtMs))),
    tail: {
      lastHeardMs: latest(ranks.map(({ timings }) => timings.tail.lastHeardAtMs)),
      auxPostedMs: latest(ranks.map(({ timings }) => timings.tail.auxPostedAtMs)),
      auxDoneMs: latest(ranks.map(({ timings }) => timings.tail.auxFinishedAtMs)),
      reportSentMs: latest(ranks.map(({ timings }) => timings.tail.reportedAtMs)),
    },
    slices: Math.max(...ranks.map(({ timings }) => timings.slices)),
    ranks: ranks.map(
      ({ rank, timings }): WriterBytes => ({
        rank,
        bytesPlanned: timings.bytesPlanned,
        bytesSent: timings.bytesDone,
      }),
    ),
  };
}

/** One entry for each receiver of the rank. */
function lastSlice({ perSlice }: TransferTimings): readonly SliceTiming[] {
  const last = Math.max(...perSlice.map(({ seq }) => seq));
  return perSlice.filter(({ seq }) => seq === last);
}

function earliest(times: readonly (number | null)[]): number | null {
  const known = times.filter((time) => time !== null);
  return known.length === 0 ? null : Math.min(...known);
}

export function latest(times: readonly (number | null)[]): number | null {
  const known = times.filter((time) => time !== null);
  return known.length === 0 ? null : Math.max(...known);
}
