import type { TransferAgent } from '../agent/transfer-agent.js';
import type { Clock } from '../clock.js';
import type { TransferPlan } from '../mapping/index.js';
import type { RequestData } from '../wire/messages.js';
import type { Counters } from './counters.js';
import type { Peer } from './peer.js';
import type { PeerLink } from './peer-link.js';
import type { SendTask } from './send-task.js';
import { readTrace } from './trace-reader.js';
import type { SliceEnd, TransferObservers } from './transfer-observer.js';
import type { TxSession } from './tx-session.js';

/** Role: tells observers what the context side does. Without one, nothing is made for them. */
export class SendWatch {
  readonly #observers: TransferObservers;
  readonly #counters: Counters;
  readonly #clock: Clock;
  readonly #agent: TransferAgent;

  constructor(observers: TransferObservers, counters: Counters, clock: Clock, agent: TransferAgent) {
    this.#observers = observers;
    this.#counters = counters;
    this.#clock = clock;
    this.#agent = agent;
  }

  started({ request, rid, createdAtMs: atMs }: TxSession): void {
    const { current } = this.#observers;
    if (current === null) return;
    const trace = readTrace(request.disagg?.traceparent, 'request', this.#counters);
    current.onStarted({ request, rid, side: 'context', atMs, trace });
  }

  /** A trace context that is not valid is counted whether or not anybody traces. */
  asked({ request }: TxSession, peer: Peer, { traceparent }: RequestData): void {
    const trace = readTrace(traceparent, 'wire', this.#counters);
    this.#observers.current?.onReceiverAsked({ request, peer: peer.name, trace });
  }

  /** Every expected receiver has asked. */
  arrived({ request, createdAtMs }: TxSession): void {
    this.#observers.current?.onPeersArrived(request, 'context', this.#clock.now() - createdAtMs);
  }

  planned(task: SendTask, { handle }: PeerLink, plan: TransferPlan): void {
    if (this.#observers.current === null || plan.stats.bytes === 0) return;
    try {
      task.path = this.#agent.explain(handle, plan).path;
    } catch {
      // A peer that the agent has just let go of has no path, and that is no failure of the slice.
    }
  }

  ended(task: SendTask, session: TxSession): void {
    this.#observers.current?.onSliceEnded(sliceEndOf(task, session));
  }
}

function sliceEndOf(task: SendTask, { request }: TxSession): SliceEnd {
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
