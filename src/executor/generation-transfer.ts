import type { KvCacheManager } from '../cache/kv-cache-manager.js';
import { ProtocolError } from '../errors.js';
import type { CacheTransceiver } from '../session/cache-transceiver.js';
import type { TurnBudget } from '../turn-budget.js';
import type { CacheAdmission } from './cache-admission.js';
import type { PageMoves } from './page-moves.js';
import type { LlmRequest } from './request.js';
import type { RequestEndings } from './request-endings.js';
import type { Entry, RequestTable } from './request-table.js';
import { planReceives, type SchedulerLimits } from './scheduler.js';
import type { TokenDelivery } from './token-delivery.js';
import { typedError } from './typed-error.js';

/** Receives that one step lets in: a flood of requests must not hold up the event loop. */
const RECEIVES_PER_STEP = 64;
/** Blocks of a prompt that are made known as content between two looks at the clock: a fraction of a millisecond. */
const BLOCKS_PER_LOOK = 512;

/** A prompt that is here, and whose blocks are not known as content yet. */
interface Arrival {
  readonly entry: Entry;
  /** Its last token was among those that came with it. */
  readonly isOver: boolean;
}

export interface GenerationTransferOptions {
  readonly turns: TurnBudget;
  readonly table: RequestTable;
  readonly cache: KvCacheManager;
  readonly admission: CacheAdmission;
  readonly limits: SchedulerLimits;
  readonly transceiver: CacheTransceiver;
  readonly endings: RequestEndings;
  readonly tokens: TokenDelivery;
  readonly moves: PageMoves;
  /** Several ranks: told of every receive that the plan lets in, before it is posted. Null on a server of one rank. */
  readonly ranks: { receivesPlanned(requests: readonly LlmRequest[]): void; share(request: LlmRequest): void } | null;
}

/** Role: the generation side's talk with the transceiver: posts receives as the buffer and the pool allow, and turns arrivals into decode. */
export class GenerationTransfer {
  readonly #o: GenerationTransferOptions;
  /** One rank: receives that were let in and whose pages are still being moved. They are let in again by the next step. */
  readonly #delayed = new Set<Entry>();
  /** Several ranks: receives that all ranks count as posted while pages of this one are still being moved. */
  readonly #unposted = new Set<Entry>();
  #arrivals: Arrival[] = [];

  constructor(options: GenerationTransferOptions) {
    this.#o = options;
  }

  /** There are receives that were not let in. */
  get hasWaiting(): boolean {
    return this.#o.table.in('DISAGG_GENERATION_INIT').size > 0;
  }

  /** Posts what waited for its pages only. @returns whether there are others that `postReceives` may let in */
  mayPost(): boolean {
    this.postDelayed();
    if (this.hasWaiting) return true;
    this.#o.ranks?.receivesPlanned([]);
    return false;
  }

  /** @returns true when more may be let in at once, by another step */
  async postReceives(): Promise<boolean> {
    const { turns, table, cache, admission, limits, ranks } = this.#o;
    const { receivingBlocks } = table;
    for (const entry of this.#delayed) if (entry.outcome !== null) this.#delayed.delete(entry);
    const before = this.#delayed.size;
    const most = RECEIVES_PER_STEP + before;
    let [posted, over] = [0, 0];
    const planned = await planReceives(
      limits,
      requestsOf(table.in('DISAGG_GENERATION_INIT')),
      receivingBlocks,
      cache.tokensPerBlock,
      admission,
      {
        mostRequests: most,
        turns,
      },
    );
    ranks?.receivesPlanned(planned);
    for (const request of planned) {
      if (turns.isSpent()) await turns.nextTurn();
      const entry = table.find(request);
      if (entry === undefined) continue;
      if (ranks === null) {
        if (this.#mayBeWritten(entry)) {
          this.#delayed.delete(entry);
          this.#post(entry);
          posted += 1;
        } else if (entry.outcome === null) this.#delayed.add(entry);
        if (entry.outcome !== null) over += 1;
        continue;
      }
      // When pages are ready differs from rank to rank; what the next plan counts must not.
      ranks.share(request);
      table.advance(entry, 'receive_posted');
      this.#unposted.add(entry);
    }
    this.postDelayed();
    // What a refused one was given is for those behind it.
    return over > 0 || (planned.length === most && (ranks !== null || posted > 0 || this.#delayed.size > before));
  }

  /** Several ranks: posts what waited for its pages only. */
  postDelayed(): void {
    for (const entry of this.#unposted) {
      if (entry.outcome === null && !this.#mayBeWritten(entry)) continue;
      this.#unposted.delete(entry);
      if (entry.outcome === null) this.#request(entry);
    }
  }

  /** A peer writes at once when it is asked: not before the pages' old content was saved and their kept content is there. */
  #mayBeWritten(entry: Entry): boolean {
    return !this.#o.moves.holdBack(entry);
  }

  /**
   * The whole prompt is here: the context server's first token is the first one the user sees. What else it takes, `finishArrivals` does, in the
   * same turn of the loop.
   */
  arrived(entry: Entry, arrivedTokens: readonly number[]): void {
    const { request } = entry;
    const { table, endings, tokens } = this.#o;
    // Generation first brings the tokens beside the pages; context first brought them with the request.
    const firstTokens = arrivedTokens.length > 0 ? arrivedTokens : (request.disagg?.firstGenTokens ?? []);
    if (firstTokens.length === 0) {
      endings.fail(entry, new ProtocolError(`request ${request.id}: the cache arrived without a first token`));
      return;
    }
    table.advance(entry, 'transfer_completed');
    request.chunkEnd = request.promptTokens.length;
    // What was drafted beyond the last token is nobody's.
    const isOver = firstTokens.some((token) => tokens.deliver(entry, token));
    this.#arrivals.push({ entry, isOver });
  }

  get hasArrivals(): boolean {
    return this.#arrivals.length > 0;
  }

  /** After the tokens, which somebody waits for: this costs time with each block of the prompts. */
  async finishArrivals(): Promise<void> {
    const { table, endings } = this.#o;
    const arrivals = this.#arrivals;
    this.#arrivals = [];
    for (const { entry, isOver } of arrivals) {
      if (entry.outcome !== null) continue;
      try {
        await this.#markPrompt(entry);
      } catch (error) {
        endings.fail(entry, typedError(error, `transfer of request ${entry.request.id}`));
      }
      // Several ranks: one that failed here alone goes on until all of them know.
      if (entry.outcome !== null) continue;
      table.advance(entry, 'decode_started');
      if (isOver) endings.complete(entry);
    }
  }

  /** In portions: the blocks of a long prompt are many. */
  async #markPrompt({ request }: Entry): Promise<void> {
    const { cache, turns } = this.#o;
    const promptLen = request.promptTokens.length;
    const step = BLOCKS_PER_LOOK * cache.tokensPerBlock;
    for (let end = request.prepopulatedLen + step; end < promptLen; end += step) {
      cache.markComputed(request.id, end);
      if (turns.isSpent()) await turns.nextTurn();
    }
    cache.markComputed(request.id, promptLen);
  }

  #post(entry: Entry): void {
    if (this.#request(entry)) this.#o.table.advance(entry, 'receive_posted');
  }

  #request(entry: Entry): boolean {
    try {
      this.#o.transceiver.requestAndReceiveAsync(entry.request);
      return true;
    } catch (error) {
      // Its context half waits for a receiver.
      this.#o.endings.abandon(entry, typedError(error, 'requestAndReceiveAsync failed'));
      return false;
    }
  }
}

function* requestsOf(entries: Iterable<Entry>): Iterable<LlmRequest> {
  for (const { request } of entries) yield request;
}
