import type { BlockRun } from '../geometry/block-run.js';
import type { Finding } from '../mapping/compatibility.js';
import type { RankInfo } from '../mapping/rank-info.js';

/** Numbers on the wire; never reused. */
export const MessageType = {
  HELLO: 1,
  HELLO_ACK: 2,
  REQUEST_DATA: 3,
  ACCEPTED: 4,
  SLICE_RESULT: 5,
  WRITER_REPORT: 6,
  REPORT_ACK: 7,
  CANCEL: 8,
  CANCEL_ACK: 9,
  STATUS: 10,
  PING: 11,
  PONG: 12,
  GOODBYE: 13,
  ERROR: 14,
} as const;

export const WriterOutcome = { DONE: 1, FAILED: 2, CANCELLED: 3, REFUSED: 4 } as const;
export type WriterOutcomeName = keyof typeof WriterOutcome;

export interface Hello {
  readonly type: 'HELLO';
  readonly nonce: bigint;
  readonly supportedMajors: readonly number[];
  readonly rankInfo: RankInfo;
  /**
   * Only asks who answers at the receiver's endpoint, because somebody says that he is there. Nobody becomes a peer by it, and `agentMetadata`
   * is empty. Left out otherwise.
   */
  readonly probe?: true;
}

export interface HelloAck {
  readonly type: 'HELLO_ACK';
  /** The HELLO's nonce. */
  readonly nonce: bigint;
  readonly endpoint: string;
  /** Accepted, or refused with the reason in `findings` / `message`. */
  readonly answer:
    | { readonly accepted: true; readonly rankInfo: RankInfo }
    | { readonly accepted: false; readonly message: string; readonly findings: readonly Finding[] };
}

export interface RequestData {
  readonly type: 'REQUEST_DATA';
  readonly rid: bigint;
  readonly ticket: bigint;
  /** Whole milliseconds on the wire; the encoder rounds down and keeps it within [0, 2^32). */
  readonly timeLeftMs: number;
  /** Prompt length in tokens as the receiver knows it; the writer refuses another. */
  readonly promptLen: number;
  readonly cachedTokens: number;
  /** Aux slot at the receiver, or -1 when aux is not wanted. */
  readonly auxSlot: number;
  readonly endpoint: string;
  readonly traceparent: string;
  /** Destination slots per layer group, each covering `[begin, begin + slots.length)`. */
  readonly runs: readonly BlockRun[];
  /**
   * The receiver was told the first token: the prompt is computed, so that a rank which does not know the request is not the process that
   * computed it, and waits for nothing. Left out otherwise. In the header: builds that do not know it wait.
   */
  readonly isComputed?: true;
}

export interface Accepted {
  readonly type: 'ACCEPTED';
  readonly rid: bigint;
  readonly ticket: bigint;
}

export interface SliceResult {
  readonly type: 'SLICE_RESULT';
  readonly rid: bigint;
  readonly ticket: bigint;
  readonly sliceSeq: number;
  readonly isLast: boolean;
  readonly ok: boolean;
  readonly bytes: bigint;
  readonly beginBlock: number;
  readonly endBlock: number;
}

export interface WriterReport {
  readonly type: 'WRITER_REPORT';
  readonly rid: bigint;
  readonly ticket: bigint;
  readonly outcome: WriterOutcomeName;
  readonly slices: number;
  /** KV bytes written to this receiver (aux not counted). */
  readonly bytes: bigint;
  readonly drained: boolean;
  /** '' for DONE, else an ERR_KVT_* code. */
  readonly errorCode: string;
  readonly message: string;
}

export interface ReportAck {
  readonly type: 'REPORT_ACK';
  readonly rid: bigint;
  readonly ticket: bigint;
  /** Echo of the report's `drained`, so that a report repeated with `drained = true` is answered for itself. */
  readonly drained: boolean;
}

export interface Cancel {
  readonly type: 'CANCEL';
  readonly rid: bigint;
  readonly ticket: bigint;
  readonly from: 'generation' | 'context';
  readonly endpoint: string;
  readonly reason: string;
}

export interface CancelAck {
  readonly type: 'CANCEL_ACK';
  readonly rid: bigint;
  readonly ticket: bigint;
}

export interface StatusQuery {
  readonly type: 'STATUS';
  readonly rid: bigint;
  readonly ticket: bigint;
  readonly endpoint: string;
}

export interface Ping {
  readonly type: 'PING';
  readonly endpoint: string;
  readonly sessions: number;
  readonly freeAuxSlots: number;
}

export interface Pong {
  readonly type: 'PONG';
  readonly endpoint: string;
  readonly sessions: number;
  readonly freeAuxSlots: number;
}

export interface Goodbye {
  readonly type: 'GOODBYE';
  readonly endpoint: string;
  readonly drainMs: number;
  readonly reason: string;
}

export interface ErrorFrame {
  readonly type: 'ERROR';
  readonly rid: bigint;
  readonly code: string;
  readonly text: string;
}

export type Message =
  | Hello
  | HelloAck
  | RequestData
  | Accepted
  | SliceResult
  | WriterReport
  | ReportAck
  | Cancel
  | CancelAck
  | StatusQuery
  | Ping
  | Pong
  | Goodbye
  | ErrorFrame;

/** A message of a newer minor that its sender marked as safe to skip: count it and go on. Never sent. */
export interface UnknownMessage {
  readonly type: 'UNKNOWN';
  readonly typeNumber: number;
  readonly rid: bigint;
}

/** What a decoded frame may carry. */
export type ReceivedMessage = Message | UnknownMessage;

/** A decoded frame: the header's facts and the message. */
export interface Frame {
  readonly major: number;
  readonly minor: number;
  /** The sender's incarnation. */
  readonly incarnation: bigint;
  readonly message: ReceivedMessage;
}
