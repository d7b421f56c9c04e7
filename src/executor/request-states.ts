import { TransitionTable } from '../session/transition-table.js';
import type { LlmRequest, RequestState } from './request.js';

/** What can happen to a request, seen from the executor. */
export type RequestEvent =
  /** Generation first: every expected receiver has asked. */
  | 'receivers_ready'
  /** The last slice was handed to the transceiver. */
  | 'last_slice_sent'
  /** The last chunk of a request that never leaves this server was enqueued: its next work is a decode step. */
  | 'prompt_enqueued'
  | 'receive_posted'
  | 'transfer_completed'
  | 'decode_started'
  | 'finished'
  /** Ended by its user: an ordinary end. */
  | 'context_cancelled'
  | 'generation_cancelled'
  | 'failed';

/** Compute and response phase of a request; what may touch its pages is the ledger's to say. */
export const REQUEST_TRANSITIONS: TransitionTable<RequestState, RequestEvent> = new TransitionTable<
  RequestState,
  RequestEvent
>('request', {
  DISAGG_CONTEXT_WAIT_SCHEDULER: {
    receivers_ready: 'CONTEXT_INIT',
    context_cancelled: 'DISAGG_CONTEXT_COMPLETE',
    failed: 'DISAGG_TRANS_ERROR',
  },
  CONTEXT_INIT: {
    last_slice_sent: 'DISAGG_CONTEXT_TRANS_IN_PROGRESS',
    prompt_enqueued: 'GENERATION_IN_PROGRESS',
    context_cancelled: 'DISAGG_CONTEXT_COMPLETE',
    generation_cancelled: 'GENERATION_COMPLETE',
    failed: 'DISAGG_TRANS_ERROR',
  },
  DISAGG_CONTEXT_TRANS_IN_PROGRESS: {
    transfer_completed: 'DISAGG_CONTEXT_COMPLETE',
    context_cancelled: 'DISAGG_CONTEXT_COMPLETE',
    failed: 'DISAGG_TRANS_ERROR',
  },
  DISAGG_GENERATION_INIT: {
    receive_posted: 'DISAGG_GENERATION_TRANS_IN_PROGRESS',
    generation_cancelled: 'GENERATION_COMPLETE',
    failed: 'DISAGG_TRANS_ERROR',
  },
  DISAGG_GENERATION_TRANS_IN_PROGRESS: {
    transfer_completed: 'DISAGG_GENERATION_TRANS_COMPLETE',
    generation_cancelled: 'GENERATION_COMPLETE',
    failed: 'DISAGG_TRANS_ERROR',
  },
  DISAGG_GENERATION_TRANS_COMPLETE: {
    decode_started: 'GENERATION_IN_PROGRESS',
    generation_cancelled: 'GENERATION_COMPLETE',
    failed: 'DISAGG_TRANS_ERROR',
  },
  GENERATION_IN_PROGRESS: {
    finished: 'GENERATION_COMPLETE',
    generation_cancelled: 'GENERATION_COMPLETE',
    failed: 'DISAGG_TRANS_ERROR',
  },
  DISAGG_CONTEXT_COMPLETE: {},
  GENERATION_COMPLETE: {},
  DISAGG_TRANS_ERROR: {},
});

export type RequestRole = 'context' | 'generation' | 'aggregate';

/** Which part of a request's life this server runs. */
export function roleOf(request: LlmRequest): RequestRole {
  switch (request.disagg?.requestType) {
    case 'context_only':
      return 'context';
    case 'generation_only':
      return 'generation';
    default:
      return 'aggregate';
  }
}

/** The state in which a request enters an executor. */
export function initialState(request: Pick<LlmRequest, 'disagg'>): RequestState {
  const { disagg } = request;
  if (disagg?.requestType === 'generation_only') return 'DISAGG_GENERATION_INIT';
  const waits = disagg?.requestType === 'context_only' && disagg.scheduleStyle === 'generation_first';
  return waits ? 'DISAGG_CONTEXT_WAIT_SCHEDULER' : 'CONTEXT_INIT';
}

export function isTerminal(state: RequestState): boolean {
  return state === 'DISAGG_CONTEXT_COMPLETE' || state === 'GENERATION_COMPLETE' || state === 'DISAGG_TRANS_ERROR';
}
