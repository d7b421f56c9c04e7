import type { TransferTimings } from '../session/cache-transceiver.js';

/** Ms from the first slice to the end; null when nothing was posted. */
export function transferMs({ firstPostAtMs, settledAtMs }: TransferTimings): number | null {
  return firstPostAtMs === null ? null : settledAtMs - firstPostAtMs;
}

/**
 * Ms from the moment at which the last slice's pages were computed, that is, its first post, to the end. A last slice that moves nothing
 * counts from when it was handed over. Null on the receiving side, which does not see that moment.
 */
export function exposedTailMs({ perSlice, lastSliceSubmittedAtMs, settledAtMs }: TransferTimings): number | null {
  if (lastSliceSubmittedAtMs === null) return null;
  let lastSeq = -1;
  let postedAtMs = Number.POSITIVE_INFINITY;
  for (const slice of perSlice) {
    if (slice.seq > lastSeq) {
      lastSeq = slice.seq;
      postedAtMs = Number.POSITIVE_INFINITY;
    }
    if (slice.seq === lastSeq && slice.postedAtMs !== null) postedAtMs = Math.min(postedAtMs, slice.postedAtMs);
  }
  return settledAtMs - (Number.isFinite(postedAtMs) ? postedAtMs : lastSliceSubmittedAtMs);
}
