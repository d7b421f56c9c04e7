import type { LlmRequest } from '../../../executor/request.js';
import type { SliceTiming, TransferTimings } from '../../../session/cache-transceiver.js';
import type { ClockedChunk, ClockedPrefill } from './chunk-clock.js';
import type { ContextReport, ReportedChunk, ReportedSlice, WriterBytes } from './worker-messages.js';

/** What one context rank saw of a request that it completed. */
export interface RankContext {
  readonly rank: number;
  readonly request: LlmRequest;
  readonly prefill: ClockedPrefill;
  readonly timings: TransferTimings;
}

/** All ranks together: the first to begin and the last to end count. */
export function contextReport(ranks: readonly RankContext[]): ContextReport {
  return {
    cachedTokens: Math.max(...ranks.map(({ request }) => request.prepopulatedLen)),
    prefillStartMs: Math.min(...ranks.map(({ prefill }) => prefill.startMs)),
    chunks: chunksOf(ranks),
    firstPostMs: earliest(ranks.map(({ timings }) => timings.firstPostAtMs)),
    lastSlicePostMs: earliest(ranks.flatMap(({ timings }) => lastSlice(timings).map((slice) => slice.postedAtMs))),
    lastByteMs: latest(ranks.flatMap(({ timings }) => timings.perSlice.map((slice) => slice.finishedAtMs))),
    tail: {
      lastHeardMs: latest(ranks.map(({ timings }) => timings.tail.lastHeardAtMs)),
      auxPostedMs: latest(ranks.map(({ timings }) => timings.tail.auxPostedAtMs)),
      auxDoneMs: latest(ranks.map(({ timings }) => timings.tail.auxFinishedAtMs)),
      reportSentMs: latest(ranks.map(({ timings }) => timings.tail.reportedAtMs)),
    },
    sliceCount: Math.max(...ranks.map(({ timings }) => timings.slices)),
    slices: ranks.flatMap(slicesOf),
    ranks: ranks.map(
      ({ rank, timings }): WriterBytes => ({
        rank,
        bytesPlanned: timings.bytesPlanned,
        bytesSent: timings.bytesDone,
      }),
    ),
  };
}

function chunksOf(ranks: readonly RankContext[]): readonly ReportedChunk[] {
  const count = Math.max(...ranks.map(({ prefill }) => prefill.chunks.length));
  return Array.from({ length: count }, (_, index) => {
    const alike = ranks.flatMap(({ prefill }) => prefill.chunks[index] ?? []);
    const { tokenBegin, tokenEnd } = alike[0] as ClockedChunk;
    return {
      tokenBegin,
      tokenEnd,
      startMs: Math.min(...alike.map(({ startMs }) => startMs)),
      endMs: Math.max(...alike.map(({ endMs }) => endMs)),
    };
  });
}

/** A slice belongs to the chunk that was handed over last before it; one from before the first chunk is the early prefix. */
function slicesOf({ rank, prefill, timings }: RankContext): readonly ReportedSlice[] {
  const last = Math.max(...timings.perSlice.map(({ seq }) => seq));
  return timings.perSlice.map(({ seq, bytes, submittedAtMs, postedAtMs, finishedAtMs }) => {
    const chunk = prefill.chunks.findLastIndex(({ enqueuedMs }) => enqueuedMs <= submittedAtMs);
    return {
      rank,
      seq,
      kind: seq === last ? 'last' : chunk === -1 ? 'early-prefix' : 'chunk',
      chunk: chunk === -1 ? null : chunk,
      bytes,
      submittedMs: submittedAtMs,
      postedMs: postedAtMs,
      finishedMs: finishedAtMs,
    };
  });
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
