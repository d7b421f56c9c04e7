import type { LlmRequest } from '../executor/request.js';
import type { SendTask } from './send-task.js';
import type { SliceEnd } from './transfer-observer.js';

/** A task that has ended, for observers. */
export function sliceEndOf(task: SendTask, request: LlmRequest): SliceEnd {
  const { slice, state } = task;
  return {
    request,
    peer: task.receiver.peer.name,
    seq: slice?.seq ?? null,
    isLast: slice?.isLast ?? false,
    beginBlock: slice?.beginBlock ?? 0,
    endBlock: slice?.endBlock ?? 0,
    bytesPlanned: task.bytesPlanned,
    bytes: task.bytesDone,
    status: state === 'transferred' || state === 'cancelled' ? state : 'failed',
    path: slice === null ? null : task.path,
    submittedAtMs: slice?.submittedAtMs ?? task.postedAtMs ?? 0,
    postedAtMs: task.postedAtMs,
    finishedAtMs: task.finishedAtMs,
    errorCode: task.error?.code ?? null,
  };
}
