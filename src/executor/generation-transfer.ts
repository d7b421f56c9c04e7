import type { KvCacheManager } from '../cache/kv-cache-manager.js';
import { ProtocolError } from '../errors.js';
import type { CacheTransceiver, Settled } from '../session/cache-transceiver.js';
import type { CacheAdmission } from './cache-admission.js';
import type { RequestEndings } from './request-endings.js';
import type { Entry, RequestTable } from './request-table.js';
import { planReceives, promptBlocks, type SchedulerLimits } from './scheduler.js';
import type { TokenDelivery } from './token-delivery.js';
import { typedError } from './typed-error.js';

export interface GenerationTransferOptions {
  readonly table: RequestTable;
  readonly cache: KvCacheManager;
  readonly admission: CacheAdmission;
  readonly limits: SchedulerLimits;
  readonly transceiver: CacheTransceiver;
  readonly endings: RequestEndings;
  readonly tokens: TokenDelivery;
  /** A receive that waited for its pages may be posted now. */
  readonly onPagesReady: () => void;
}

/** Role: the generation side's talk with the transceiver: posts receives as the buffer and the pool allow, and turns arrivals into decode. */
export class GenerationTransfer {
  readonly #o: GenerationTransferOptions;

  constructor(options: GenerationTransferOptions) {
    this.#o = options;
  }

  postReceives(): void {
    const { table, cache, admission, limits } = this.#o;
    const waiting = table.in('DISAGG_GENERATION_INIT');
    if (waiting.size === 0) return;
    let bufferBlocks = 0;
    for (const { request } of table.in('DISAGG_GENERATION_TRANS_IN_PROGRESS')) {
      bufferBlocks += promptBlocks(request, cache.tokensPerBlock);
    }
    const requests = [...waiting].map((entry) => entry.request);
    for (const request of planReceives(limits, requests, bufferBlocks, cache.tokensPerBlock, admission)) {
      const entry = table.find(request);
      if (entry !== undefined && this.#mayBeWritten(entry)) this.#post(entry);
    }
  }

  /** A peer writes at once when it is asked: not before the pages' old content was saved and their kept content is there. */
  #mayBeWritten(entry: Entry): boolean {
    try {
      const pagesReady = this.#o.cache.pagesReady?.(entry.request.id) ?? null;
      // A failure is met by the next look.
      pagesReady?.done.then(this.#o.onPagesReady, this.#o.onPagesReady);
      return pagesReady === null;
    } catch (error) {
      this.#o.endings.abandon(entry, typedError(error, 'pagesReady failed'));
      return false;
    }
  }

  /** The whole prompt is here: the context server's first token is the first one the user sees. */
  arrived(entry: Entry, settled: Settled): void {
    const { request } = entry;
    const { table, cache, endings, tokens } = this.#o;
    // Generation first brings the tokens beside the pages; context first brought them with the request.
    const firstTokens = settled.firstTokens.length > 0 ? settled.firstTokens : (request.disagg?.firstGenTokens ?? []);
    if (firstTokens.length === 0) {
      endings.fail(entry, new ProtocolError(`request ${request.id}: the cache arrived without a first token`));
      return;
    }
    table.advance(entry, 'transfer_completed');
    const promptLen = request.promptTokens.length;
    request.chunkEnd = promptLen;
    cache.markComputed(request.id, promptLen);
    for (const token of firstTokens) {
      if (request.outputTokens.length < request.maxTokens) tokens.deliver(entry, token);
    }
    table.advance(entry, 'decode_started');
    if (request.outputTokens.length >= request.maxTokens) endings.complete(entry);
  }

  #post(entry: Entry): void {
    try {
      this.#o.transceiver.requestAndReceiveAsync(entry.request);
      this.#o.table.advance(entry, 'receive_posted');
    } catch (error) {
      this.#o.endings.fail(entry, typedError(error, 'requestAndReceiveAsync failed'));
    }
  }
}
