import type { ArmedNote, TransferAgent } from '../agent/transfer-agent.js';
import type { WriterReport } from '../wire/messages.js';
import type { ControlChannel } from './control-channel.js';
import type { Peer } from './peer.js';
import type { SendTask } from './send-task.js';
import type { TxReceiver, TxSession } from './tx-session.js';

/**
 * Role: the report that a receiver is due when the submission that is about to be handed over, and those before it, have arrived, as a note for
 *   the agent to say by itself.
 * Why: behind a small last slice the way of its completion to this thread and of the report over the control plane takes longer than the slice.
 * Invariant: it says what will be true when it is sent, and only then: every slice and the aux, if one is wanted, are at the receiver. The same
 *   report follows as a frame.
 */
export class ArmedReports {
  readonly #agent: TransferAgent;
  readonly #channel: ControlChannel;
  readonly #isLive: (peer: Peer) => boolean;

  constructor(options: {
    readonly agent: TransferAgent;
    readonly channel: ControlChannel;
    readonly isLive: (peer: Peer) => boolean;
  }) {
    this.#agent = options.agent;
    this.#channel = options.channel;
    this.#isLive = options.isLive;
  }

  /** @returns null when `task` is not the last one that this receiver waits for, or its report could not be DONE */
  of(session: TxSession, task: SendTask): { readonly note: ArmedNote } | null {
    const { receiver } = task;
    if (this.#agent.carriesNotes !== true || session.outcome !== null || !this.#isLive(receiver.peer)) return null;
    const isLast = receiver.remoteAuxSlot < 0 ? task.slice?.isLast === true : task.slice === null;
    if (!isLast || !session.lastSliceSubmitted || receiver.tasks.length !== session.slices.length) return null;
    const others = receiver.allTasks.filter((other) => other !== task && other.state !== 'transferred');
    if (others.some((other) => other.state !== 'waiting')) return null;
    const bytes = receiver.tasks.reduce((sum, { ended, bytesDone, bytesPlanned }) => {
      return sum + (ended ? bytesDone : bytesPlanned);
    }, 0);
    const report = doneReport(session.rid, receiver, bytes);
    const frame = this.#channel.encode(receiver.peer.endpoint, report);
    return { note: { bytes: frame, also: others.map(({ id }) => id) } };
  }
}

/** Every slice arrived at this receiver, and so did the aux content where it is wanted. */
export function doneReport(rid: bigint, { ticket, tasks }: TxReceiver, bytes: number): WriterReport {
  return {
    type: 'WRITER_REPORT',
    rid,
    ticket,
    outcome: 'DONE',
    slices: tasks.length,
    bytes: BigInt(bytes),
    drained: true,
    errorCode: '',
    message: '',
  };
}
