import type { Completion, DataPath } from '../agent/transfer-agent.js';
import type { KvTransceiverError } from '../errors.js';
import type { SliceResult } from '../wire/messages.js';
import { TransitionTable } from './transition-table.js';
import type { TxReceiver, TxSlice } from './tx-session.js';

/** `waiting`: handed to the agent, behind its device event. Whether it was posted by then is the completion's to say. */
export type SendTaskState = 'queued' | 'waiting' | 'transferred' | 'failed' | 'cancelled';
export type SendTaskEvent = 'submit' | 'complete' | 'fail' | 'cancel';

export const SEND_TASK_TRANSITIONS: TransitionTable<SendTaskState, SendTaskEvent> = new TransitionTable<
  SendTaskState,
  SendTaskEvent
>('send task', {
  // A slice that covers no block completes without being handed over.
  queued: { submit: 'waiting', complete: 'transferred', fail: 'failed', cancel: 'cancelled' },
  waiting: { complete: 'transferred', fail: 'failed', cancel: 'cancelled' },
  transferred: {},
  failed: {},
  cancelled: {},
});

/** One slice (or the aux content) on its way to one receiver. */
export class SendTask {
  /** The agent's submission id. */
  readonly id: number;
  readonly receiver: TxReceiver;
  /** Null for aux. */
  readonly slice: TxSlice | null;
  readonly bytesPlanned: number;
  #state: SendTaskState = 'queued';
  #drained = true;
  #needsSource = false;
  bytesDone = 0;
  postedAtMs: number | null = null;
  finishedAtMs: number | null = null;
  /** When this thread was told. */
  heardAtMs: number | null = null;
  error: KvTransceiverError | null = null;
  /** Known while somebody observes. */
  path: DataPath | null = null;

  constructor(id: number, receiver: TxReceiver, slice: TxSlice | null, bytesPlanned: number) {
    this.id = id;
    this.receiver = receiver;
    this.slice = slice;
    this.bytesPlanned = bytesPlanned;
  }

  get state(): SendTaskState {
    return this.#state;
  }

  get ended(): boolean {
    return this.#state !== 'queued' && this.#state !== 'waiting';
  }

  /** Nothing of this task can touch memory. From `submitted` on only the agent's word makes it true again. */
  get drained(): boolean {
    return this.#drained;
  }

  /** Its source pages must stay as they are. False before, and with an agent that gathers them first, long before it is drained. */
  get needsSource(): boolean {
    return this.#needsSource;
  }

  submitted(): void {
    this.#state = SEND_TASK_TRANSITIONS.next(this.#state, 'submit');
    this.#drained = false;
    this.#needsSource = true;
  }

  /** The agent has done with the source pages, not with the rest. */
  sourceReleased(): void {
    this.#needsSource = false;
  }

  /** Nothing had to move. */
  completedEmpty(nowMs: number): void {
    this.#state = SEND_TASK_TRANSITIONS.next(this.#state, 'complete');
    this.finishedAtMs = nowMs;
  }

  /** The agent refused the submission: it does not exist there. */
  refused(error: KvTransceiverError): void {
    this.#state = SEND_TASK_TRANSITIONS.next(this.#state, 'fail');
    this.error = error;
  }

  settled(completion: Completion): void {
    const event = { transferred: 'complete', failed: 'fail', cancelled: 'cancel' } as const;
    this.#state = SEND_TASK_TRANSITIONS.next(this.#state, event[completion.status]);
    this.#drained = completion.drained;
    if (completion.drained) this.#needsSource = false;
    this.bytesDone = completion.bytes;
    this.postedAtMs = completion.postedAtMs;
    this.finishedAtMs = completion.finishedAtMs;
    this.error = completion.error;
  }

  becameDrained(): void {
    this.#drained = true;
    this.#needsSource = false;
  }
}

/** How a slice went to one receiver; null for aux, which its report covers. */
export function sliceResultOf(task: SendTask, rid: bigint): SliceResult | null {
  const { slice, receiver } = task;
  if (slice === null) return null;
  return {
    type: 'SLICE_RESULT',
    rid,
    ticket: receiver.ticket,
    sliceSeq: slice.seq,
    isLast: slice.isLast,
    ok: task.state === 'transferred',
    bytes: BigInt(task.bytesDone),
    beginBlock: slice.beginBlock,
    endBlock: slice.endBlock,
  };
}
