import type { SliceTiming, TailTimings, TransferTimings } from './cache-transceiver.js';
import type { SendTask } from './send-task.js';
import type { TxSession } from './tx-session.js';

/** What a report or a timeline wants to know of one request's transfer. One walk over its tasks: every request that is sent pays for it. */
export function txTimings(session: TxSession, nowMs: number): TransferTimings {
  const perSlice: SliceTiming[] = [];
  let firstPostAtMs: number | null = null;
  let bytesPlanned = 0;
  let bytesDone = 0;
  for (const { tasks } of session.receivers.values())
    for (const task of tasks) {
      bytesPlanned += task.bytesPlanned;
      bytesDone += task.bytesDone;
      const timing = sliceTiming(task);
      if (timing === null) continue;
      perSlice.push(timing);
      const { postedAtMs } = timing;
      if (postedAtMs !== null && (firstPostAtMs === null || postedAtMs < firstPostAtMs)) firstPostAtMs = postedAtMs;
    }
  const last = session.slices.at(-1);
  return {
    startedAtMs: session.createdAtMs,
    firstPostAtMs,
    lastSliceSubmittedAtMs: last?.isLast === true ? last.submittedAtMs : null,
    settledAtMs: nowMs,
    slices: session.slices.length,
    bytesPlanned,
    bytesDone,
    perSlice,
    tail: tailOf(session),
  };
}

function sliceTiming({ slice, bytesDone, postedAtMs, finishedAtMs }: SendTask): SliceTiming | null {
  if (slice === null) return null;
  const { seq, beginBlock, endBlock, submittedAtMs } = slice;
  return { seq, beginBlock, endBlock, bytes: bytesDone, submittedAtMs, postedAtMs, finishedAtMs };
}

function tailOf({ receivers }: TxSession): TailTimings {
  let lastHeardAtMs: number | null = null;
  let auxPostedAtMs: number | null = null;
  let auxFinishedAtMs: number | null = null;
  let lastReportedAtMs: number | null = null;
  for (const { tasks, auxTask, reportedAtMs } of receivers.values()) {
    for (const { heardAtMs } of tasks) lastHeardAtMs = later(lastHeardAtMs, heardAtMs);
    if (auxTask !== null) {
      auxPostedAtMs = later(auxPostedAtMs, auxTask.postedAtMs);
      auxFinishedAtMs = later(auxFinishedAtMs, auxTask.finishedAtMs);
    }
    lastReportedAtMs = later(lastReportedAtMs, reportedAtMs);
  }
  return { lastHeardAtMs, auxPostedAtMs, auxFinishedAtMs, reportedAtMs: lastReportedAtMs };
}

function later(a: number | null, b: number | null): number | null {
  return a === null || (b !== null && b > a) ? b : a;
}
