import { errorOfStatus } from './native-error.js';
import type { Completion, CompletionStatus, DrainedNotice } from './transfer-agent.js';

/** Numbers of one notice, as native/addon/notice_records.h describes them. */
const RECORD = 8;
const STATUSES: readonly CompletionStatus[] = ['transferred', 'failed', 'cancelled'];

/**
 * What native code reported, as completions and drained notices, in the same order.
 * @param peerOf names the peer of a submission for error messages
 */
export function readNotices(
  records: Float64Array,
  messages: readonly (string | undefined)[] | undefined,
  peerOf: (submission: number) => string | undefined,
): (Completion | DrainedNotice)[] {
  const notices: (Completion | DrainedNotice)[] = [];
  for (let at = 0; at + RECORD <= records.length; at += RECORD) {
    const [
      kind = 0,
      submission = 0,
      outcome = 0,
      bytes = 0,
      drained = 0,
      postedAtMs = NaN,
      finishedAtMs = 0,
      code = 0,
    ] = records.subarray(at, at + RECORD);
    if (kind === 1) {
      notices.push({ kind: 'drained', submission });
      continue;
    }
    const peer = peerOf(submission);
    const failure = { bytesDone: bytes, drained: drained === 1, ...(peer === undefined ? {} : { peer }) };
    notices.push({
      kind: 'completion',
      submission,
      status: STATUSES[outcome] ?? 'failed',
      bytes,
      drained: drained === 1,
      postedAtMs: Number.isNaN(postedAtMs) ? null : postedAtMs,
      finishedAtMs,
      error: code === 0 ? null : errorOfStatus(code, messages?.[at / RECORD] ?? 'unknown', failure),
    });
  }
  return notices;
}
