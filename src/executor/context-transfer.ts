import type { ReadyEvent } from '../agent/transfer-agent.js';
import { InternalError } from '../errors.js';
import type { CacheTransceiver } from '../session/cache-transceiver.js';
import type { PageMoves } from './page-moves.js';
import { remainingPromptTokens } from './request.js';
import type { RequestEndings } from './request-endings.js';
import type { Entry, RequestTable } from './request-table.js';
import { typedError } from './typed-error.js';

/** Prompts that are asked for their receivers in one turn: with thousands waiting, the rest has its turn next. */
export const POLLS_PER_TURN = 256;

export interface ContextTransferOptions {
  readonly table: RequestTable;
  readonly transceiver: CacheTransceiver;
  readonly endings: RequestEndings;
  readonly moves: PageMoves;
}

/**
 * Role: the context side's talk with the transceiver.
 * Ordering: `prepare` before scheduling, `sendEarlyPrefix` before the forward that computes the first chunk, `sendKvAsync` directly after
 *   each forward was enqueued, with its event. None of them waits; whoever calls them for many requests does it in portions.
 */
export class ContextTransfer {
  readonly #o: ContextTransferOptions;
  /** Prompts that were never asked about: the first question starts their queue clock. */
  readonly #fresh: Entry[] = [];
  /** Something may have changed for prompts that wait. */
  #isDue = true;
  #cursor: Iterator<Entry> | null = null;
  #hasUnseen = false;
  /** Requests whose prefix has left. */
  readonly #prefixed = new WeakSet<Entry>();

  constructor(options: ContextTransferOptions) {
    this.#o = options;
  }

  /** A prompt was added. */
  added(entry: Entry): void {
    if (entry.request.state === 'DISAGG_CONTEXT_WAIT_SCHEDULER') this.#fresh.push(entry);
  }

  /** Receivers may have asked since the last look. */
  activity(): void {
    this.#isDue = true;
  }

  /** The last `prepare` left prompts to look at, so that another turn should come soon. */
  get hasUnseen(): boolean {
    return this.#hasUnseen;
  }

  /** Generation first: a prompt whose receivers have all asked may be scheduled. Looks at so many and no more. */
  prepare(): void {
    const waiting = this.#o.table.in('DISAGG_CONTEXT_WAIT_SCHEDULER');
    const fresh = this.#fresh.length === 0 ? this.#fresh : this.#fresh.splice(0, POLLS_PER_TURN);
    for (const entry of fresh) this.#poll(entry);
    if (this.#cursor === null && this.#isDue) {
      this.#isDue = false;
      if (waiting.size > 0) this.#cursor = waiting.values();
    }
    for (let polls = fresh.length; this.#cursor !== null && polls < POLLS_PER_TURN; polls++) {
      const next = this.#cursor.next();
      if (next.done === true) this.#cursor = null;
      else this.#poll(next.value);
    }
    this.#hasUnseen = this.#cursor !== null || this.#fresh.length > 0;
  }

  #poll(entry: Entry): void {
    const { table, transceiver } = this.#o;
    const { request, outcome } = entry;
    if (outcome !== null || request.cancelRequested || request.state !== 'DISAGG_CONTEXT_WAIT_SCHEDULER') return;
    try {
      if (transceiver.receiverReady(request)) table.advance(entry, 'receivers_ready');
    } catch (error) {
      this.#o.endings.abandon(entry, typedError(error, 'receiverReady failed'));
    }
  }

  /**
   * Reused prefix blocks leave before the first forward, behind the moves that bring them, if any: natively, each slice behind its own event,
   * so that no other transfer waits. Does nothing when they have left.
   */
  sendEarlyPrefix(entry: Entry): void {
    const { request } = entry;
    const { pipelined, earlyPrefix } = request.transferPolicy;
    const isFirstChunk = request.chunkStart === request.prepopulatedLen;
    if (entry.role !== 'context' || !pipelined || !earlyPrefix || !isFirstChunk) return;
    if (request.prepopulatedLen === 0 || request.cancelRequested || this.#prefixed.has(entry)) return;
    const ready = this.#o.moves.ofPrefix(entry);
    // Without an event to wait for they leave when they are there, or with the first chunk, behind the event of its forward.
    if (entry.outcome !== null || (ready !== null && ready.event === null)) return;
    try {
      this.#prefixed.add(entry);
      this.#o.transceiver.sendEarlyPrefix(request, { after: ready?.event ?? null });
    } catch (error) {
      this.#o.endings.fail(entry, typedError(error, 'sendEarlyPrefix failed'));
    }
  }

  /** Somebody waits for them at the other end. */
  firstTokensKnown(): void {
    try {
      this.#o.transceiver.firstTokensKnown?.();
    } catch {
      // `takeSettled` tries the same again, where the loop sees what it throws.
    }
  }

  /**
   * After each forward, for each request of the batch that has a prompt in it. The last slice is sent even when a cancel is pending, so that no prompt is
   * left half sent; a request whose cancel is pending gets no intermediate slice.
   */
  sendKvAsync(entry: Entry, after: ReadyEvent | null): void {
    const { request } = entry;
    if (entry.role !== 'context' || entry.outcome !== null) return;
    const isLast = remainingPromptTokens(request) === 0;
    if (!isLast && (!request.transferPolicy.pipelined || request.cancelRequested)) return;
    try {
      const receipt = this.#o.transceiver.respondAndSendAsync(request, { after });
      if (isLast && receipt === null) {
        throw new InternalError(`request ${request.id}: the transceiver did not accept the last slice`);
      }
      if (isLast) this.#o.table.advance(entry, 'last_slice_sent');
    } catch (error) {
      // Also a retired session: the peer will not come back, so that waiting for it would never end.
      this.#o.endings.fail(entry, typedError(error, 'respondAndSendAsync failed'));
    }
  }
}
