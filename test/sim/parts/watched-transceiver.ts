import type { ReadyEvent } from '../../../src/agent/transfer-agent.js';
import { type LlmRequest, requestKey } from '../../../src/executor/request.js';
import type { CacheTransceiver, SendReceipt, Settled } from '../../../src/session/cache-transceiver.js';
import type { TransferLedger } from '../../../src/session/transfer-ledger.js';
import type { KvCacheTransceiver } from '../../../src/transceiver.js';
import type { Journal } from '../core/journal.js';
import type { SimProcess } from '../core/scheduler.js';
import type { WatchedCache } from './watched-cache.js';

/** What the simulator saw of one request at one transceiver. */
interface Transfer {
  readonly request: LlmRequest;
  readonly startedAtMs: number;
  readonly lostMsAtStart: number;
  slices: number;
  lastSliceSent: boolean;
  settled: Settled | null;
  /** When its executor took the outcome: not before the ranks it acts with have come to the exchange. */
  settledAtMs: number;
  /** When the outcome was there to be taken; null while there is none. */
  endedAtMs: number | null;
  /** Its pages were held for the transfer, and when that ended. */
  releasedAtMs: number | null;
  lastActMs: number;
}

export interface SettleNote {
  readonly server: string;
  /** Flat rank in its instance, and how many ranks of it have the request. */
  readonly rank: number;
  readonly ranks: number;
  readonly endpoint: string;
  readonly settled: Settled;
  readonly startedAtMs: number;
  /** Context: when the whole prompt had been handed over, or null. */
  readonly promptOutAtMs: number | null;
}

export interface Bounds {
  readonly transferQueueTimeoutMs: number;
  readonly noProgressTimeoutMs: number;
  readonly kvTransferTimeoutMs: number;
}

/** Room for sweeps, turns and queues. */
const SLACK_MS = 1000;

/**
 * Role: stands between executor and transceiver and keeps book: each transfer settles once, within its clocks, and a page is given back
 *   only after that.
 */
export class WatchedTransceiver implements CacheTransceiver {
  readonly #inner: KvCacheTransceiver;
  readonly #name: string;
  readonly #process: SimProcess;
  readonly #cache: WatchedCache;
  readonly #bounds: Bounds;
  readonly #journal: Journal;
  readonly #onSettled: (note: SettleNote) => void;
  readonly #wrongWords: (request: LlmRequest, tokens: number) => number;
  readonly #place: { readonly rank: number; readonly ranks: number };
  /** Released without proof, by the warning; ranks that share a hold unpin it later. */
  readonly #unprovenKeys = new Set<string>();
  readonly #transfers = new Map<LlmRequest, Transfer>();
  readonly #byId = new Map<number, Transfer>();
  readonly #asked = new WeakSet<LlmRequest>();
  /** Context requests that have a session without an outcome. */
  readonly #sending = new WeakSet<LlmRequest>();
  /** The counter `released_unproven`, followed as it grows: a snapshot of all of them costs more than the rest of a release. */
  #unproven = 0;
  #unprovenSeen = 0;

  constructor(options: {
    readonly inner: KvCacheTransceiver;
    readonly name: string;
    readonly place: { readonly rank: number; readonly ranks: number };
    readonly process: SimProcess;
    readonly cache: WatchedCache;
    readonly bounds: Bounds;
    readonly journal: Journal;
    readonly onSettled: (note: SettleNote) => void;
    /** Of the first tokens of a prompt, in the pages that it has here. */
    readonly wrongWords: (request: LlmRequest, tokens: number) => number;
  }) {
    this.#inner = options.inner;
    this.#name = options.name;
    this.#place = options.place;
    this.#process = options.process;
    this.#cache = options.cache;
    this.#bounds = options.bounds;
    this.#journal = options.journal;
    this.#onSettled = options.onSettled;
    this.#wrongWords = options.wrongWords;
    options.cache.onUnpin = (request) => this.#unpinned(request);
    options.inner.observe({
      onStarted: ({ request, side }) => {
        if (side === 'context') this.#sending.add(request);
        return undefined;
      },
      onSettled: ({ request }) => this.#ended(request),
      onCounted: (name) => {
        if (name === 'released_unproven') this.#unproven += 1;
      },
    });
  }

  get ledger(): TransferLedger {
    return this.#inner.ledger;
  }

  /** An operator was told. */
  releasedUnproven(key: string): void {
    this.#unprovenKeys.add(key);
  }

  /** Every request that had a transfer here. */
  get requests(): readonly LlmRequest[] {
    return [...this.#transfers.keys()];
  }

  get unsettled(): readonly LlmRequest[] {
    return [...this.#transfers.values()].filter((transfer) => transfer.settled === null).map(({ request }) => request);
  }

  respondAndSendAsync(request: LlmRequest, options: { readonly after: ReadyEvent | null }): SendReceipt | null {
    return this.#sent(request, () => this.#inner.respondAndSendAsync(request, options));
  }

  sendEarlyPrefix(request: LlmRequest, options: { readonly after: ReadyEvent | null }): SendReceipt | null {
    return this.#sent(request, () => this.#inner.sendEarlyPrefix(request, options));
  }

  requestAndReceiveAsync(request: LlmRequest): void {
    this.#inner.requestAndReceiveAsync(request);
    this.#track(request);
    this.#say(request, 5, 'asks for its pages');
  }

  receiverReady(request: LlmRequest): boolean {
    if (this.#asked.has(request)) return this.#inner.receiverReady(request);
    this.#asked.add(request);
    const ready = this.#inner.receiverReady(request);
    // One that was cancelled before keeps no session, and has no outcome but the executor's.
    if (ready || this.#sending.has(request)) this.#track(request);
    return ready;
  }

  cancelRequest(request: LlmRequest, reason: string): boolean {
    const over = this.#inner.cancelRequest(request, reason);
    this.#say(request, 6, `is cancelled: ${reason}${over ? '' : ' (pages still held)'}`);
    // What ranks share is over here when this rank's transfer is.
    if (over && this.#cache.isPinned(request.id) && !this.ledger.isShared(request.id))
      this.#journal.violation('I1 cancel', `${this.#name}: cancel of ${request.id} said over, its pages are held`);
    return over;
  }

  firstTokensKnown(): void {
    this.#inner.firstTokensKnown();
  }

  takeSettled(): readonly Settled[] {
    const batch = this.#inner.takeSettled();
    for (const settled of batch) this.#note(settled);
    return batch;
  }

  onActivity(listener: () => void): void {
    this.#inner.onActivity(listener);
  }

  /** The executor takes no outcomes any more: they are noted as they come. */
  takeItself(): void {
    this.#inner.onActivity(() => void this.takeSettled());
    this.takeSettled();
  }

  /** Outcomes that are later than their clocks allow. */
  checkBounds(): void {
    for (const transfer of this.#transfers.values()) {
      const { request, startedAtMs, lostMsAtStart, lastActMs, slices } = transfer;
      const { transferQueueTimeoutMs, noProgressTimeoutMs, kvTransferTimeoutMs } = this.#bounds;
      const lost = this.#process.lostMs - lostMsAtStart;
      const allowed =
        transferQueueTimeoutMs + kvTransferTimeoutMs + (slices + 2) * noProgressTimeoutMs + lost + SLACK_MS;
      const until = transfer.settled === null ? this.#process.now() : transfer.settledAtMs;
      // The executor may take its time between two slices; the transfer's clocks count from its last act.
      if (until - Math.max(startedAtMs, lastActMs) <= allowed) continue;
      this.#transfers.delete(request);
      this.#journal.violation('I2 bound', `${this.#name}: request ${request.id} has no outcome ${allowed} ms after`);
    }
  }

  /**
   * Only for runs in which nothing is broken or slow: who may write is told in one hop, and says that it stopped.
   * @param awaited ranks that share the hold and that may end later than this one, for a reason that is in the plan
   */
  checkReleases(withinMs: number, awaited: readonly WatchedTransceiver[]): void {
    for (const { request, settled, settledAtMs, releasedAtMs } of this.#transfers.values()) {
      if (settled?.side !== 'generation' || releasedAtMs === null) continue;
      const endedAtMs = Math.max(...[this, ...awaited].map((rank) => rank.#endedAtMs(request.id)));
      if (releasedAtMs - this.#process.offsetMs - endedAtMs <= withinMs) continue;
      const lateMs = Math.round(releasedAtMs - settledAtMs);
      this.#journal.violation(
        'I1 late release',
        `${this.#name}: the pages of request ${request.id} are held ${lateMs} ms after it ${settled.outcome}`,
      );
    }
  }

  /** By the clock of the run. */
  #endedAtMs(id: number): number {
    const transfer = this.#byId.get(id);
    return transfer?.settled == null ? Number.NEGATIVE_INFINITY : transfer.settledAtMs - this.#process.offsetMs;
  }

  #sent(request: LlmRequest, send: () => SendReceipt | null): SendReceipt | null {
    const asked = this.#cache.rangeBlocks;
    const receipt = send();
    if (receipt === null) return null;
    const transfer = this.#track(request);
    transfer.slices += 1;
    transfer.lastActMs = this.#process.now();
    transfer.lastSliceSent = receipt.isLast;
    const { beginBlock, endBlock, isLast } = receipt;
    const cost = this.#cache.rangeBlocks - asked;
    if (cost > (endBlock - beginBlock) * this.#cache.layerGroups.length)
      this.#journal.violation('I5 cost', `${this.#name}: a slice of ${endBlock - beginBlock} blocks looked at ${cost}`);
    this.#say(request, 7, `sends blocks [${beginBlock}, ${endBlock})${isLast ? ', the last' : ''}`);
    return receipt;
  }

  #track(request: LlmRequest): Transfer {
    let transfer = this.#transfers.get(request);
    if (transfer === undefined) {
      const now = this.#process.now();
      transfer = {
        request,
        startedAtMs: now,
        lostMsAtStart: this.#process.lostMs,
        slices: 0,
        lastSliceSent: false,
        settled: null,
        settledAtMs: 0,
        endedAtMs: null,
        releasedAtMs: null,
        lastActMs: now,
      };
      this.#transfers.set(request, transfer);
      this.#byId.set(request.id, transfer);
    }
    return transfer;
  }

  #ended(request: LlmRequest): void {
    this.#sending.delete(request);
    const transfer = this.#transfers.get(request);
    if (transfer !== undefined) transfer.endedAtMs ??= this.#process.now();
  }

  #note(settled: Settled): void {
    const { request, outcome, error, side } = settled;
    const transfer = this.#transfers.get(request);
    if (transfer?.settled != null)
      this.#journal.violation(
        'I2 twice',
        `${this.#name}: request ${request.id} settled as ${transfer.settled.outcome}, then ${outcome}`,
      );
    if ((error === null) !== (outcome === 'completed'))
      this.#journal.violation(
        'I2 error',
        `${this.#name}: request ${request.id} ${outcome} with error ${error?.message}`,
      );
    if (transfer !== undefined) {
      transfer.settled = settled;
      transfer.settledAtMs = this.#process.now();
      if (outcome === 'completed' && side === 'context' && !transfer.lastSliceSent)
        this.#journal.violation('I4 early', `${this.#name}: request ${request.id} completed before its last slice`);
    }
    // An executor that gave its pages back before has no use for them.
    if (settled.salvageableTokens > 0 && this.#cache.isResident(request.id))
      this.#checkSalvage(request, settled.salvageableTokens);
    this.#say(request, 8, `${outcome}${error === null ? '' : ` (${error.code}: ${error.message})`}`);
    const startedAtMs = (transfer?.startedAtMs ?? 0) - this.#process.offsetMs;
    this.#onSettled({
      server: this.#name,
      ...this.#place,
      endpoint: this.#inner.endpoint,
      settled,
      startedAtMs,
      promptOutAtMs: transfer?.lastSliceSent === true ? transfer.lastActMs - this.#process.offsetMs : null,
    });
  }

  #checkSalvage(request: LlmRequest, tokens: number): void {
    const wrong = this.#wrongWords(request, tokens);
    if (wrong > 0)
      this.#journal.violation(
        'I3 salvage',
        `${this.#name}: ${wrong} wrong words in the first ${tokens} tokens of request ${request.id}, which are said to be complete`,
      );
  }

  /** The ledger lets go. Without proof it may only after one more transfer timeout. */
  #unpinned(request: number): void {
    const ended = this.#byId.get(request);
    if (ended !== undefined) ended.releasedAtMs = this.#process.now();
    const shared = this.#place.ranks > 1;
    if (!shared && this.#unproven === this.#unprovenSeen) return;
    this.#unprovenSeen = this.#unproven;
    if (shared && !this.#unprovenKeys.has(String(this.#keyOf(request)))) return;
    const transfer = this.#byId.get(request);
    const now = this.#process.now();
    // Each rank retains from its own end on: nothing writes here for longer because its siblings are late to hear of it.
    const retainedMs = now - (transfer?.endedAtMs ?? Number.NEGATIVE_INFINITY);
    if (retainedMs < this.#bounds.kvTransferTimeoutMs)
      this.#journal.violation(
        'I1 retention',
        `${this.#name}: request ${request} released without proof after ${retainedMs} ms`,
      );
    this.#cache.markUnproven(request, now + 30_000);
  }

  #keyOf(request: number): bigint | null {
    const transfer = this.#byId.get(request);
    return transfer === undefined ? null : requestKey(transfer.request);
  }

  #say(request: LlmRequest, kind: number, what: string): void {
    this.#journal.note(kind, request.id, 0, () => `${this.#name}: request ${request.id} ${what}`);
  }
}
