import type { ErrorCode } from '../../errors.js';
import type { RequestOutcome } from '../../executor/executor-events.js';
import type { DisaggregatedParams, PromptUsage, SamplingParams, TransferPolicy } from '../../executor/request.js';

export type WorkerRole = 'context' | 'generation';
export type WorkerPhase = 'ready' | 'draining';

/** An error on its way to another process. */
export interface LinkError {
  readonly code: ErrorCode;
  readonly message: string;
}

/** Whose request ids: what is the same in all ids of one front, and different in those of two. */
export interface IdOrigin {
  readonly nodeId: number;
  readonly processId: number;
}

/** Front to worker. `call` numbers a request within a session. */
export type FrontMessage =
  /** Opens a session, until answered by `welcome` or `refused`; in an open one it says which ids come from now on. */
  | {
      readonly type: 'hello';
      readonly endpoint: string;
      readonly role: WorkerRole;
      readonly engine: string;
      readonly ids: IdOrigin;
    }
  | {
      readonly type: 'submit';
      readonly call: number;
      readonly promptTokens: Uint32Array;
      readonly maxTokens: number;
      readonly params: DisaggregatedParams;
      readonly transferPolicy: TransferPolicy | null;
      readonly sampling: SamplingParams | null;
      readonly stopTokens: readonly number[];
    }
  | { readonly type: 'cancel'; readonly call: number }
  /** Answered by `pong`, or by `unknown` to `endpoint` when there is no such session. */
  | { readonly type: 'ping'; readonly endpoint: string }
  | { readonly type: 'metrics'; readonly query: number }
  | { readonly type: 'bye' };

/** Worker to front. */
export type WorkerMessage =
  | {
      readonly type: 'welcome';
      readonly incarnation: bigint;
      /** Control endpoint where generation servers ask for pages. */
      readonly infoEndpoint: string;
      readonly pid: number;
      readonly phase: WorkerPhase;
    }
  /** `takenIds`: those that another front has, when that is the reason; null: it is another. */
  | { readonly type: 'refused'; readonly reason: string; readonly takenIds: IdOrigin | null }
  | { readonly type: 'unknown' }
  | { readonly type: 'answer'; readonly call: number; readonly params: DisaggregatedParams }
  /** `index`: of the first of them in the answer. */
  | { readonly type: 'tokens'; readonly call: number; readonly index: number; readonly tokens: readonly number[] }
  | {
      readonly type: 'done';
      readonly call: number;
      readonly outcome: RequestOutcome;
      /** Tokens that were sent before. */
      readonly tokenCount: number;
      /** Null exactly unless failed. */
      readonly error: LinkError | null;
      readonly usage: PromptUsage | null;
      /** Of a generation worker: what came with the pages. */
      readonly contextUsage: PromptUsage | null;
      /** The server turned the request away; it had no call. */
      readonly refused: boolean;
    }
  | { readonly type: 'pong'; readonly phase: WorkerPhase }
  | { readonly type: 'metrics'; readonly query: number; readonly text: string };

/**
 * One frame of the link between the front process and a worker, msgpack:
 *
 *   { v: version, s: session, n: sequence number, m: [message, ...] }
 *
 * The front draws the session at random, so that nobody else can speak in it. `n` counts the frames of one direction from 1; a number that is
 * left out means that a frame was lost, and ends the session. Frames with `n` = 0 stand outside the order: hello, welcome, refused, unknown.
 */
export interface LinkFrame<M> {
  readonly session: bigint;
  readonly sequence: number;
  readonly messages: readonly M[];
}
