import type { NoticeText } from './native.js';
import { errorOfStatus } from './native-error.js';
import type { CompletionStatus, SubmissionNotice } from './transfer-agent.js';

/** A watched process has ended. */
export interface EndedNotice {
  readonly kind: 'ended';
  readonly watch: number;
}

/** Something goes another way than it might. */
export interface AdviceNotice {
  readonly kind: 'advice';
  readonly message: string;
}

/** The agent of a watched process says something. */
export interface InboundNote {
  readonly kind: 'inbound note';
  readonly watch: number;
  readonly bytes: Uint8Array;
}

/** This inbound note will come within some milliseconds, or never. */
export interface NoteSoon {
  readonly kind: 'note soon';
  readonly watch: number;
  readonly bytes: Uint8Array;
}

/** What native code reports. */
export type NativeNotice = SubmissionNotice | EndedNotice | AdviceNotice | InboundNote | NoteSoon;

/** Numbers of one notice, as native/addon/notice_records.h describes them. */
const RECORD = 9;
const STATUSES: readonly CompletionStatus[] = ['transferred', 'failed', 'cancelled'];

/**
 * What native code reported, as completions and drained notices, in the same order.
 * @param peerOf names the peer of a submission for error messages
 */
export function readNotices(
  records: Float64Array,
  messages: readonly NoticeText[] | undefined,
  peerOf: (submission: number) => string | undefined,
): NativeNotice[] {
  const notices: NativeNotice[] = [];
  for (let at = 0; at + RECORD <= records.length; at += RECORD) {
    const kind = records[at];
    const submission = records[at + 1] ?? 0;
    if (kind === 1) {
      notices.push({ kind: 'drained', submission });
      continue;
    }
    if (kind === 2) {
      notices.push({ kind: 'ended', watch: submission });
      continue;
    }
    if (kind === 3) {
      notices.push({ kind: 'advice', message: textAt(messages, at) });
      continue;
    }
    if (kind === 4) {
      notices.push({ kind: 'released', submission });
      continue;
    }
    if (kind === 5) {
      notices.push({ kind: 'note', submission, isSent: records[at + 2] === 0 });
      continue;
    }
    if (kind === 6 || kind === 7) {
      const bytes = messages?.[at / RECORD];
      const said = kind === 6 ? 'inbound note' : 'note soon';
      if (bytes instanceof Uint8Array) notices.push({ kind: said, watch: submission, bytes });
      continue;
    }
    const [outcome = 0, bytes = 0, drained = 0, postedAtMs = NaN, finishedAtMs = 0, code = 0, postingMs = 0] =
      records.subarray(at + 2, at + RECORD);
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
      postingMs,
      error: code === 0 ? null : errorOfStatus(code, textAt(messages, at), failure),
    });
  }
  return notices;
}

function textAt(messages: readonly NoticeText[] | undefined, at: number): string {
  const text = messages?.[at / RECORD];
  return typeof text === 'string' ? text : 'unknown';
}
