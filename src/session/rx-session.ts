import type { KvTransceiverError } from '../errors.js';
import type { LlmRequest } from '../executor/request.js';
import type { BlockRun } from '../geometry/block-run.js';
import type { WriterOutcomeName, WriterReport } from '../wire/messages.js';
import type { Peer } from './peer-registry.js';
import type { RequestClocks } from './request-clocks.js';
import { TransitionTable } from './transition-table.js';

export type RxState = 'created' | 'requested' | 'receiving' | 'completed' | 'failed' | 'cancelled' | 'released';
export type RxEvent = 'request' | 'accept' | 'complete' | 'fail' | 'cancel' | 'release';

export const RX_TRANSITIONS: TransitionTable<RxState, RxEvent> = new TransitionTable<RxState, RxEvent>('rx session', {
  created: { request: 'requested', fail: 'failed', cancel: 'cancelled' },
  // A report may overtake ACCEPTED: nothing rests on messages arriving in order.
  requested: { request: 'requested', accept: 'receiving', complete: 'completed', fail: 'failed', cancel: 'cancelled' },
  receiving: { request: 'receiving', accept: 'receiving', complete: 'completed', fail: 'failed', cancel: 'cancelled' },
  completed: { release: 'released' },
  failed: { release: 'released' },
  cancelled: { release: 'released' },
  released: {},
});

export type RxOutcome = 'completed' | 'failed' | 'cancelled';

/** One context rank that was asked to write. */
export class RxWriter {
  readonly endpoint: string;
  /** Bytes that this writer's part of the plan moves; known once it is. */
  bytesExpected = 0;
  peer: Peer | null = null;
  asked = false;
  accepted = false;
  sliceCount = 0;
  bytesSeen = 0;
  outcome: WriterOutcomeName | null = null;
  reportedBytes = 0;
  reportedSlices = 0;
  /** Its word that nothing it started can land any more; a writer that was never asked needs to give none. */
  reportedDrained = false;

  constructor(endpoint: string) {
    this.endpoint = endpoint;
  }

  get drained(): boolean {
    return !this.asked || this.reportedDrained;
  }

  /** The first outcome stands; `drained` may follow later. */
  report(report: WriterReport): void {
    if (report.drained) this.reportedDrained = true;
    if (this.outcome !== null) return;
    this.outcome = report.outcome;
    this.reportedBytes = Number(report.bytes);
    this.reportedSlices = report.slices;
  }
}

/**
 * Role: one request's receive: one ticket, N expected writers.
 * Invariant: completes only when every expected writer reported DONE (I4); until every asked writer is drained the pages are
 *   retained, whatever the outcome (I1).
 */
export class RxSession {
  readonly rid: bigint;
  #ticket: bigint;
  readonly request: LlmRequest;
  readonly writers: readonly RxWriter[];
  readonly runs: readonly BlockRun[];
  /** Our aux slot, or -1. */
  readonly auxSlot: number;
  readonly clocks: RequestClocks;
  readonly startedAtMs: number;
  firstProgressAtMs: number | null = null;
  /** When retained pages are released without proof; null while the outcome is open. */
  releaseAtMs: number | null = null;
  #state: RxState = 'created';
  #outcome: RxOutcome | null = null;
  #error: KvTransceiverError | null = null;

  constructor(init: {
    readonly rid: bigint;
    readonly ticket: bigint;
    readonly request: LlmRequest;
    readonly writers: readonly RxWriter[];
    readonly runs: readonly BlockRun[];
    readonly auxSlot: number;
    readonly clocks: RequestClocks;
    readonly nowMs: number;
  }) {
    this.rid = init.rid;
    this.#ticket = init.ticket;
    this.request = init.request;
    this.writers = init.writers;
    this.runs = init.runs;
    this.auxSlot = init.auxSlot;
    this.clocks = init.clocks;
    this.startedAtMs = init.nowMs;
  }

  get state(): RxState {
    return this.#state;
  }

  /** Fresh per attempt: frames of an earlier attempt name another. */
  get ticket(): bigint {
    return this.#ticket;
  }

  /** A new attempt of the same receive. Only when no writer ever took the old ticket. */
  renew(ticket: bigint): void {
    this.#ticket = ticket;
  }

  get outcome(): RxOutcome | null {
    return this.#outcome;
  }

  get error(): KvTransceiverError | null {
    return this.#error;
  }

  get allDone(): boolean {
    return this.writers.every((writer) => writer.outcome === 'DONE');
  }

  get drained(): boolean {
    return this.writers.every((writer) => writer.drained);
  }

  get bytesExpected(): number {
    return this.writers.reduce((sum, writer) => sum + writer.bytesExpected, 0);
  }

  get bytesReported(): number {
    return this.writers.reduce((sum, writer) => sum + writer.reportedBytes, 0);
  }

  writerAt(endpoint: string): RxWriter | undefined {
    return this.writers.find((writer) => writer.endpoint === endpoint);
  }

  asked(): void {
    this.#state = RX_TRANSITIONS.next(this.#state, 'request');
  }

  accepted(): void {
    this.#state = RX_TRANSITIONS.next(this.#state, 'accept');
  }

  /** The first outcome stands. False when there was one. */
  decide(outcome: RxOutcome, error: KvTransceiverError | null): boolean {
    if (this.#outcome !== null) return false;
    const event = { completed: 'complete', failed: 'fail', cancelled: 'cancel' } as const;
    this.#state = RX_TRANSITIONS.next(this.#state, event[outcome]);
    this.#outcome = outcome;
    this.#error = error;
    return true;
  }

  release(): void {
    this.#state = RX_TRANSITIONS.next(this.#state, 'release');
  }
}
