import { InternalError, type KvTransceiverError } from '../errors.js';
import type { LlmRequest } from '../executor/request.js';
import type { BlockRun } from '../geometry/block-run.js';
import type { RankInfo } from '../mapping/index.js';
import type { RequestClocks } from './request-clocks.js';
import type { RxWriter } from './rx-writer.js';
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

/** The writers of one DP group of the context instance. Of several groups one holds the request; which, the first slice or report says. */
export interface RxGroup {
  readonly dpRank: number;
  readonly writers: readonly RxWriter[];
  /** `out`: it said that it does not have the request, or a rank of it cannot be asked. */
  standing: 'possible' | 'assigned' | 'out';
}

/**
 * Role: one request's receive: N expected writers, each with a ticket of its own.
 * Invariant: completes only when every expected writer reported DONE (I4); until every asked writer is drained, those of groups that
 *   turned out not to have the request included, the pages are retained, whatever the outcome (I1).
 */
export class RxSession {
  readonly rid: bigint;
  readonly request: LlmRequest;
  /** Any rank of the context instance: it says who the others are. */
  readonly infoEndpoint: string;
  readonly runs: readonly BlockRun[];
  readonly wantsAux: boolean;
  readonly clocks: RequestClocks;
  readonly startedAtMs: number;
  /** Our aux slot, or -1: none wanted, or none free yet. */
  auxSlot = -1;
  firstProgressAtMs: number | null = null;
  /** When the newest report that counted was read. */
  reportedAtMs: number | null = null;
  /** What REQUEST_DATA carries: valid, or ''. */
  traceparent = '';
  /** When pages whose writers are not drained are released without proof; null while the outcome is open. */
  releaseAtMs: number | null = null;
  /** No clock runs out and no writer is silent for long before this; whatever happens meanwhile makes it later. */
  sweepNotBeforeMs = Number.NEGATIVE_INFINITY;
  #instance: RankInfo | null = null;
  #groups: readonly RxGroup[] = [];
  #writers: readonly RxWriter[] = [];
  #state: RxState = 'created';
  #outcome: RxOutcome | null = null;
  #error: KvTransceiverError | null = null;

  constructor(init: {
    readonly rid: bigint;
    readonly request: LlmRequest;
    readonly infoEndpoint: string;
    readonly runs: readonly BlockRun[];
    readonly wantsAux: boolean;
    readonly clocks: RequestClocks;
    readonly nowMs: number;
  }) {
    this.rid = init.rid;
    this.request = init.request;
    this.infoEndpoint = init.infoEndpoint;
    this.runs = init.runs;
    this.wantsAux = init.wantsAux;
    this.clocks = init.clocks;
    this.startedAtMs = init.nowMs;
  }

  get state(): RxState {
    return this.#state;
  }

  get outcome(): RxOutcome | null {
    return this.#outcome;
  }

  get error(): KvTransceiverError | null {
    return this.#error;
  }

  /** What the rank at `infoEndpoint` says of its instance; null until it was greeted. */
  get instance(): RankInfo | null {
    return this.#instance;
  }

  get groups(): readonly RxGroup[] {
    return this.#groups;
  }

  /** Of every group. */
  get writers(): readonly RxWriter[] {
    return this.#writers;
  }

  get assigned(): RxGroup | null {
    for (const group of this.#groups) if (group.standing === 'assigned') return group;
    return null;
  }

  /** Whose reports complete it; none while it is not known which group has the request. */
  get expected(): readonly RxWriter[] {
    return this.assigned?.writers ?? [];
  }

  get allDone(): boolean {
    const { expected } = this;
    return expected.length > 0 && expected.every((writer) => writer.outcome === 'DONE');
  }

  get drained(): boolean {
    return this.#writers.every((writer) => writer.drained);
  }

  /** The context server answered before its pages were asked for: every rank of it has computed the prompt. */
  get isComputed(): boolean {
    const { disagg } = this.request;
    return disagg !== null && disagg.scheduleStyle === 'context_first' && disagg.firstGenTokens.length > 0;
  }

  /**
   * Nobody is waited for any more: every expected writer has begun, or took the question although the prompt is computed. One that has taken it
   * and does not begin may be another process than the one that computed.
   */
  get allArrived(): boolean {
    const { expected, isPromptOut } = this;
    return expected.length > 0 && expected.every(({ started, accepted }) => started || (accepted && isPromptOut));
  }

  /** What a writer that took the question has not reported is the transfer's time, no longer the prefill's. */
  get reportDue(): boolean {
    const { isPromptOut } = this;
    return isPromptOut && this.expected.some(({ accepted, outcome }) => accepted && outcome === null);
  }

  /** One writer had it to its last block, and the ranks of an instance act alike: none of the others still waits to be scheduled. */
  get isPromptOut(): boolean {
    return this.isComputed || this.expected.some(({ lastSliceSeen, outcome }) => lastSliceSeen || outcome === 'DONE');
  }

  get bytesExpected(): number {
    return this.expected.reduce((sum, writer) => sum + writer.bytesExpected, 0);
  }

  get bytesReported(): number {
    return this.expected.reduce((sum, writer) => sum + writer.reportedBytes, 0);
  }

  writerAt(endpoint: string): RxWriter | undefined {
    return this.#writers.find((writer) => writer.endpoint === endpoint);
  }

  groupOf(writer: RxWriter): RxGroup {
    const group = this.#groups.find(({ writers }) => writers.includes(writer));
    if (group === undefined) throw new InternalError(`rank ${writer.rank} is no writer of request ${this.rid}`);
    return group;
  }

  /** False: its group does not have the request. */
  wants(writer: RxWriter): boolean {
    const { assigned } = this;
    return assigned === null ? this.groupOf(writer).standing === 'possible' : assigned.writers.includes(writer);
  }

  /** Who writes is known. The only group there is has the request. */
  choose(instance: RankInfo, groups: readonly RxGroup[]): void {
    this.#instance = instance;
    this.#groups = groups;
    const [only, other] = groups;
    if (only === undefined || other !== undefined) this.#writers = groups.flatMap(({ writers }) => writers);
    else {
      this.#writers = only.writers;
      only.standing = 'assigned';
    }
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
