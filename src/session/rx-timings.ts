import { NO_TAIL, type TransferTimings } from './cache-transceiver.js';
import type { RxSession } from './rx-session.js';

/** The receiving side's part of what a report or a timeline wants to know; slices are their writers' to time. */
export function rxTimings(session: RxSession, nowMs: number): TransferTimings {
  return {
    startedAtMs: session.startedAtMs,
    firstPostAtMs: session.firstProgressAtMs,
    lastSliceSubmittedAtMs: null,
    settledAtMs: nowMs,
    slices: Math.max(0, ...session.expected.map((writer) => writer.reportedSlices)),
    bytesPlanned: session.bytesExpected,
    bytesDone: session.bytesReported,
    perSlice: [],
    tail: { ...NO_TAIL, reportedAtMs: session.reportedAtMs },
  };
}
