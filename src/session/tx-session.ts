import type { ReadyEvent } from '../agent/transfer-agent.js';
import { InternalError, type KvTransceiverError } from '../errors.js';
import type { LlmRequest } from '../executor/request.js';
import type { BlockRun } from '../geometry/block-run.js';
import type { PeerLink } from './peer-link.js';
import type { Peer } from './peer-registry.js';
import type { RequestClocks } from './request-clocks.js';
import type { SendTask } from './send-task.js';
import { TransitionTable } from './transition-table.js';

export type TxState = 'created' | 'active' | 'draining' | 'closed';
export type TxEvent = 'slice' | 'lastSlice' | 'fail' | 'cancel' | 'drained';

export const TX_TRANSITIONS: TransitionTable<TxState, TxEvent> = new TransitionTable<TxState, TxEvent>('tx session', {
  created: { slice: 'active', lastSlice: 'draining', fail: 'draining', cancel: 'draining' },
  active: { slice: 'active', lastSlice: 'draining', fail: 'draining', cancel: 'draining' },
  // A failure or a cancel after the last slice changes the outcome, not the state.
  draining: { fail: 'draining', cancel: 'draining', drained: 'closed' },
  closed: {},
});

export type TxOutcome = 'completed' | 'failed' | 'cancelled';

/** One chunk's pages, fixed when the chunk was scheduled, whoever asks for them later. */
export interface TxSlice {
  readonly seq: number;
  readonly beginBlock: number;
  readonly endBlock: number;
  readonly isLast: boolean;
  /** Source run per layer group; null where the group sends nothing in this slice. */
  readonly runs: readonly (BlockRun | null)[];
  readonly after: ReadyEvent | null;
  readonly submittedAtMs: number;
}

/**
 * The report that the agent was given beside a receiver's last submission (`ArmedNote`). `armed`: it may be sent at any moment, so that nothing
 * else is said until the agent knows. `sent`: DONE was said, and is what this receiver is told whatever becomes of the request.
 */
export type NoteState = 'none' | 'armed' | 'sent' | 'dropped';
export type NoteEvent = 'arm' | 'send' | 'drop';

export const NOTE_TRANSITIONS: TransitionTable<NoteState, NoteEvent> = new TransitionTable<NoteState, NoteEvent>(
  'note',
  { none: { arm: 'armed' }, armed: { send: 'sent', drop: 'dropped' }, sent: {}, dropped: {} },
);

export interface TxEnding {
  readonly outcome: 'failed' | 'cancelled';
  readonly error: KvTransceiverError;
}

/** One receiver rank that asked for this request. */
export class TxReceiver {
  readonly peer: Peer;
  readonly ticket: bigint;
  readonly runs: readonly BlockRun[];
  /** Aux slot at the receiver, or -1. */
  readonly remoteAuxSlot: number;
  readonly flow: number;
  /** Of aux, which must not wait behind the last slice for the end of its forward. */
  readonly auxFlow: number;
  readonly tasks: SendTask[] = [];
  auxTask: SendTask | null = null;
  #note: NoteState = 'none';
  /** When its first report was handed to the messenger. */
  reportedAtMs: number | null = null;

  constructor(
    peer: Peer,
    ticket: bigint,
    runs: readonly BlockRun[],
    remoteAuxSlot: number,
    flows: { readonly pages: number; readonly aux: number },
  ) {
    this.peer = peer;
    this.ticket = ticket;
    this.runs = runs;
    this.remoteAuxSlot = remoteAuxSlot;
    this.flow = flows.pages;
    this.auxFlow = flows.aux;
  }

  get note(): NoteState {
    return this.#note;
  }

  /** @throws InternalError for a peer whose memory is not loaded: it cannot ask for pages */
  get link(): PeerLink {
    const { link, name } = this.peer;
    if (link === null) throw new InternalError(`${name} asked for pages but its memory is not loaded`);
    return link;
  }

  noted(event: NoteEvent): void {
    this.#note = NOTE_TRANSITIONS.next(this.#note, event);
  }

  get allTasks(): readonly SendTask[] {
    return this.auxTask === null ? this.tasks : [...this.tasks, this.auxTask];
  }

  get drained(): boolean {
    return this.auxTask?.drained !== false && this.tasks.every((task) => task.drained);
  }

  get bytesDone(): number {
    return this.tasks.reduce((sum, task) => sum + task.bytesDone, 0);
  }
}

/**
 * Role: what one request has to send, to whom, and how far it got. Holds state and answers questions; Sender does the work.
 * Ordering: slices and receivers come in any order; whoever comes second triggers the dispatch of what is missing, each
 *   (slice, receiver) once. Completed iff the last slice was submitted and everything arrived: between two chunks every existing
 *   task may be done, and that is not completion (I4).
 */
export class TxSession {
  readonly rid: bigint;
  readonly request: LlmRequest;
  readonly clocks: RequestClocks;
  readonly createdAtMs: number;
  readonly slices: TxSlice[] = [];
  readonly receivers = new Map<bigint, TxReceiver>();
  /** Our slot that the aux content is sent from, the same to every receiver. */
  auxSlot: number | null = null;
  prefixSent = false;
  /** What the ledger holds for this session. A later request may have the same id once it was given back. */
  pages: 'none' | 'held' | 'released' = 'none';
  #state: TxState = 'created';
  #outcome: TxOutcome | null = null;
  #error: KvTransceiverError | null = null;
  #ending: TxEnding | null = null;

  constructor(rid: bigint, request: LlmRequest, clocks: RequestClocks, nowMs: number) {
    this.rid = rid;
    this.request = request;
    this.clocks = clocks;
    this.createdAtMs = nowMs;
  }

  get state(): TxState {
    return this.#state;
  }

  get outcome(): TxOutcome | null {
    return this.#outcome;
  }

  get error(): KvTransceiverError | null {
    return this.#error;
  }

  /** How it ends if the notes that are under way turn out not to have been sent. */
  get ending(): TxEnding | null {
    return this.#ending;
  }

  /**
   * The agent may be telling a receiver DONE, or has told it what this thread is yet to hear. Who was told DONE completes, so that no other
   * outcome may be decided before that is known; a cancel of the submission makes the agent say it at once.
   */
  get isBeingTold(): boolean {
    for (const receiver of this.receivers.values())
      if (receiver.note === 'armed' || (receiver.note === 'sent' && !this.delivered(receiver))) return true;
    return false;
  }

  /** Who the first receiver says it is; the others are of its instance, and of its DP group. */
  get firstReceiver(): Peer | null {
    for (const { peer } of this.receivers.values()) return peer;
    return null;
  }

  /** Flat ranks of the receivers' instance that this rank serves; null while none has asked. Moving no byte to one does not make it fewer. */
  get expectedReceivers(): ReadonlySet<number> | null {
    return this.firstReceiver?.link?.expectedReceivers ?? null;
  }

  get receiverReady(): boolean {
    const expected = this.expectedReceivers;
    return expected !== null && this.receivers.size >= expected.size;
  }

  get lastSliceSubmitted(): boolean {
    return this.slices.at(-1)?.isLast === true;
  }

  get tasks(): readonly SendTask[] {
    return [...this.receivers.values()].flatMap((receiver) => receiver.allTasks);
  }

  /**
   * The transfer itself has work that is not done. A slice whose forward still runs is not its work: its pages are known to be computed
   * when the next slice came, or, for the last one, the first token.
   */
  get transferBusy(): boolean {
    const newest = this.slices.at(-1);
    const computing = newest !== undefined && newest.after !== null && this.request.outputTokens.length === 0;
    for (const { tasks, auxTask } of this.receivers.values()) {
      if (auxTask?.ended === false) return true;
      if (tasks.some((task) => !task.ended && !(computing && task.slice === newest))) return true;
    }
    return false;
  }

  get drained(): boolean {
    for (const { drained } of this.receivers.values()) if (!drained) return false;
    return true;
  }

  /**
   * No submission reads the request's pages, and none will: each slice went to each receiver, or nothing is sent any more. What is still
   * outstanding is out of the agent's own memory: aux, answers of receivers, regions of a bounce arena.
   */
  get sourceUnneeded(): boolean {
    if (this.#outcome === null && !this.#isDispatched) return false;
    for (const { tasks } of this.receivers.values()) if (tasks.some((task) => task.needsSource)) return false;
    return true;
  }

  get #isDispatched(): boolean {
    if (!this.receiverReady || !this.lastSliceSubmitted) return false;
    for (const { tasks } of this.receivers.values()) if (tasks.length !== this.slices.length) return false;
    return true;
  }

  addSlice(slice: TxSlice): void {
    this.#state = TX_TRANSITIONS.next(this.#state, slice.isLast ? 'lastSlice' : 'slice');
    this.slices.push(slice);
  }

  /** Every slice arrived at this receiver. */
  pagesDelivered(receiver: TxReceiver): boolean {
    return (
      this.lastSliceSubmitted &&
      receiver.tasks.length === this.slices.length &&
      receiver.tasks.every((task) => task.state === 'transferred')
    );
  }

  /** Every slice arrived, and the aux content where it is wanted. */
  delivered(receiver: TxReceiver): boolean {
    const auxDone = receiver.remoteAuxSlot < 0 || receiver.auxTask?.state === 'transferred';
    return auxDone && this.pagesDelivered(receiver);
  }

  get allDelivered(): boolean {
    if (!this.receiverReady) return false;
    for (const receiver of this.receivers.values()) if (!this.delivered(receiver)) return false;
    return true;
  }

  /** The first reason stays. */
  endOnceTold(outcome: TxEnding['outcome'], error: KvTransceiverError): void {
    this.#ending ??= { outcome, error };
  }

  /** The first outcome stands. False when there was one. */
  decide(outcome: TxOutcome, error: KvTransceiverError | null): boolean {
    if (this.#outcome !== null) return false;
    if (outcome !== 'completed')
      this.#state = TX_TRANSITIONS.next(this.#state, outcome === 'failed' ? 'fail' : 'cancel');
    this.#outcome = outcome;
    this.#error = error;
    return true;
  }

  close(): void {
    this.#state = TX_TRANSITIONS.next(this.#state, 'drained');
  }
}
