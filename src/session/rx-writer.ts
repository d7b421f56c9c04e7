import { InternalError } from '../errors.js';
import type { SliceResult, WriterOutcomeName, WriterReport } from '../wire/messages.js';
import type { Peer } from './peer-registry.js';
import { VerifiedPrefix } from './verified-prefix.js';
import type { ChosenWriter } from './writer-choice.js';

/** Refusals that say that there is no such request, or none any more. */
const NOTHING_THERE: ReadonlySet<string> = new Set([
  'ERR_KVT_SESSION_RETIRED',
  'ERR_KVT_NOT_ASSIGNED',
  'ERR_KVT_TRANSFER_TIMEOUT',
]);
/** Attempts at one writer that says each time that it does not know this process. */
const MAX_ATTEMPTS = 8;

/**
 * One context rank of a receive.
 * Ordering: its ticket names one attempt at this writer; the attempts at its siblings are theirs.
 */
export class RxWriter {
  readonly rank: number;
  readonly endpoint: string;
  /** It sends aux, into the slot that it alone is told. */
  readonly sendsAux: boolean;
  readonly #prefix = new VerifiedPrefix();
  #ticket: bigint;
  #attempts = 1;
  /** Block ordinal of the writer up to which some slice reached. */
  #coveredEnd = 0;
  /** Bytes that this writer's part of the plan moves; known once it is. */
  bytesExpected = 0;
  peer: Peer | null = null;
  asked = false;
  accepted = false;
  /** It had no room for the question, which is asked on. */
  hadNoRoom = false;
  sliceCount = 0;
  lastSliceSeen = false;
  /** When it last said anything of this ticket, and when it was last asked for a word. */
  heardAtMs = 0;
  statusAtMs = 0;
  outcome: WriterOutcomeName | null = null;
  reportedBytes = 0;
  reportedSlices = 0;
  reportedCode = '';
  /** Its word that nothing it started can land any more; a writer that was never asked needs to give none. */
  reportedDrained = false;

  constructor(chosen: ChosenWriter, ticket: bigint) {
    this.rank = chosen.rank;
    this.endpoint = chosen.endpoint;
    this.sendsAux = chosen.sendsAux;
    this.#ticket = ticket;
  }

  /** Fresh per attempt: frames of an earlier attempt name another. */
  get ticket(): bigint {
    return this.#ticket;
  }

  get drained(): boolean {
    return !this.asked || this.reportedDrained;
  }

  /** It writes, or wrote: the request is known there. */
  get started(): boolean {
    return this.sliceCount > 0 || this.outcome !== null;
  }

  /** It refused the question, and not because it lacks the request, which may wait there for a receiver. */
  get refusedOnly(): boolean {
    return this.outcome === 'REFUSED' && !NOTHING_THERE.has(this.reportedCode);
  }

  get mayTryAgain(): boolean {
    return this.#attempts < MAX_ATTEMPTS;
  }

  /** Block ordinal of the writer up to which every slice arrived. Its report covers slices of which no word came. */
  get verifiedEndBlock(): number {
    const isWhole = this.outcome === 'DONE' && this.reportedBytes === this.bytesExpected;
    return isWhole ? Number.MAX_SAFE_INTEGER : this.#prefix.endBlock;
  }

  /** What it says that those slices moved. */
  get verifiedBytes(): number {
    return this.#prefix.bytes;
  }

  /** A new attempt at it. Only when it gave its word that nothing was written for the old ticket. */
  renew(ticket: bigint): void {
    if (this.started) throw new InternalError(`ticket ${this.#ticket} was used`);
    this.#ticket = ticket;
    this.#attempts += 1;
    this.peer = null;
    this.asked = false;
    this.accepted = false;
    this.reportedDrained = false;
  }

  /** Tokens of the blocks that it counts slices in; null when it holds none, or is not known yet. */
  get blockTokens(): number | null {
    const groups = this.peer?.info.pageTable.layerGroups.filter(({ kind }) => kind !== 'state') ?? [];
    return groups.length === 0 ? null : Math.min(...groups.map(({ tokensPerBlock }) => tokensPerBlock));
  }

  /**
   * False when it brings the prompt no further: a copy, an earlier slice that was overtaken, the answer to a question how it goes. A slice
   * that failed, or without a new block, is no progress either, or a writer could hold the pages for ever.
   */
  slice(result: SliceResult): boolean {
    const brings = result.ok && result.endBlock > result.beginBlock;
    const isNew = (brings && result.endBlock > this.#coveredEnd) || (result.isLast && !this.lastSliceSeen);
    if (brings) this.#coveredEnd = Math.max(this.#coveredEnd, result.endBlock);
    this.sliceCount = Math.max(this.sliceCount, result.sliceSeq + 1);
    this.lastSliceSeen ||= result.isLast;
    if (brings) this.#prefix.add(result.beginBlock, result.endBlock, Number(result.bytes));
    return isNew;
  }

  /** The first outcome stands; `drained` may follow later. */
  report(report: WriterReport): void {
    if (report.drained) this.reportedDrained = true;
    if (this.outcome !== null) return;
    this.outcome = report.outcome;
    this.reportedBytes = Number(report.bytes);
    this.reportedSlices = report.slices;
    this.reportedCode = report.errorCode;
  }
}
