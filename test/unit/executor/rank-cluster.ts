import { GrowingCacheManager } from '../../../src/cache/growing-cache-manager.js';
import type { KvCacheManager } from '../../../src/cache/kv-cache-manager.js';
import { ReservingCacheManager } from '../../../src/cache/reserving-cache-manager.js';
import { type KvTransceiverError, TransferCancelledError } from '../../../src/errors.js';
import { Executor } from '../../../src/executor/executor.js';
import type { ExecutorOptions } from '../../../src/executor/executor-options.js';
import type { ForwardResult, ModelEngine, ScheduledBatch } from '../../../src/executor/model-engine.js';
import type { LlmRequest } from '../../../src/executor/request.js';
import type { RankGroup } from '../../../src/rank-group/rank-group.js';
import {
  type CacheTransceiver,
  NO_TAIL,
  type SendReceipt,
  type Settled,
} from '../../../src/session/cache-transceiver.js';
import { TransferLedger } from '../../../src/session/transfer-ledger.js';
import type { FakeClock } from '../../sim-lite/fake-clock.js';
import { seededRandom } from '../../sim-lite/seeded-random.js';

export const TPB = 4;

/** How long what happens to a request takes on this rank, in ms; drawn anew for each. Infinity: never. */
export type DelayOf = (what: 'ready' | 'transfer' | 'drain' | 'forward', request: LlmRequest | null) => number;

/** A transceiver whose transfers are nothing but delays, with a ledger of its own over the rank's cache manager. */
export class DelayedTransceiver implements CacheTransceiver {
  readonly ledger: TransferLedger;
  readonly #clock: FakeClock;
  readonly #delayOf: DelayOf;
  readonly #ready = new Map<LlmRequest, boolean>();
  readonly #open = new Set<LlmRequest>();
  readonly #settled: Settled[] = [];
  #listener: () => void = () => {};
  /** Requests whose next verb throws. */
  readonly refuse = new Map<number, KvTransceiverError>();
  /** Requests whose transfer fails instead of completing. */
  readonly fail = new Map<number, KvTransceiverError>();
  firstTokens: (request: LlmRequest) => readonly number[] = () => [7];

  constructor(clock: FakeClock, cache: KvCacheManager, delayOf: DelayOf) {
    this.#clock = clock;
    this.#delayOf = delayOf;
    this.ledger = new TransferLedger(cache, () => this.#listener());
  }

  respondAndSendAsync(request: LlmRequest): SendReceipt | null {
    this.#check(request);
    this.ledger.acquire(request.id);
    this.#open.add(request);
    const isLast = request.chunkEnd === request.promptTokens.length;
    if (isLast) {
      this.ledger.complete(request.id);
      this.#finishLater(request);
    }
    return { beginBlock: 0, endBlock: 1, isLast };
  }

  sendEarlyPrefix(request: LlmRequest): SendReceipt | null {
    this.#check(request);
    this.ledger.acquire(request.id);
    this.#open.add(request);
    return { beginBlock: 0, endBlock: 1, isLast: false };
  }

  requestAndReceiveAsync(request: LlmRequest): void {
    this.#check(request);
    this.ledger.acquire(request.id);
    this.#open.add(request);
    this.#finishLater(request);
  }

  receiverReady(request: LlmRequest): boolean {
    const known = this.#ready.get(request);
    if (known === undefined) {
      this.#ready.set(request, false);
      this.#after('ready', request, () => {
        this.#ready.set(request, true);
        this.#listener();
      });
    }
    return known ?? false;
  }

  cancelRequest(request: LlmRequest): boolean {
    const error = new TransferCancelledError(`request ${request.id} cancelled`);
    if (this.#open.has(request)) this.#end(request, 'cancelled', error);
    return !this.ledger.holds(request.id);
  }

  takeSettled(): readonly Settled[] {
    return this.#settled.splice(0);
  }

  onActivity(listener: () => void): void {
    this.#listener = listener;
  }

  #check(request: LlmRequest): void {
    const error = this.refuse.get(request.id);
    if (error !== undefined) throw error;
  }

  #finishLater(request: LlmRequest): void {
    this.#after('transfer', request, () => {
      const error = this.fail.get(request.id) ?? null;
      if (this.#open.has(request)) this.#end(request, error === null ? 'completed' : 'failed', error);
    });
  }

  #end(request: LlmRequest, outcome: Settled['outcome'], error: KvTransceiverError | null): void {
    this.#open.delete(request);
    const side = request.disagg?.requestType === 'generation_only' ? 'generation' : 'context';
    this.#settled.push({
      request,
      side,
      outcome,
      error,
      firstTokens: outcome === 'completed' && side === 'generation' ? this.firstTokens(request) : [],
      salvageableTokens: 0,
      timings: {
        startedAtMs: 0,
        firstPostAtMs: null,
        lastSliceSubmittedAtMs: null,
        settledAtMs: 0,
        slices: 0,
        bytesPlanned: 0,
        bytesDone: 0,
        perSlice: [],
        tail: NO_TAIL,
      },
    });
    this.#after('drain', request, () => {
      if (this.ledger.holds(request.id)) this.ledger.settle(request.id);
      this.#listener();
    });
    this.#listener();
  }

  #after(what: 'ready' | 'transfer' | 'drain', request: LlmRequest, act: () => void): void {
    const delayMs = this.#delayOf(what, request);
    if (delayMs === 0) act();
    else if (delayMs !== Infinity) this.#clock.setTimer(delayMs, act);
  }
}

/** Notes each batch with the page tables of its requests; the token of a request depends on the request alone. */
export class NotingEngine implements ModelEngine {
  readonly feedsItself = true;
  readonly #clock: FakeClock;
  readonly #cache: KvCacheManager;
  readonly #delayOf: DelayOf;
  readonly batches: string[] = [];
  failure: Error | null = null;
  /** What requests get instead of their first token here. */
  readonly instead = new Map<number, unknown>();
  /** Forwards, counted from 0, that fail: before they are enqueued, or on the device. */
  readonly failuresAt = new Map<number, 'enqueue' | 'device'>();

  constructor(clock: FakeClock, cache: KvCacheManager, delayOf: DelayOf) {
    this.#clock = clock;
    this.#cache = cache;
    this.#delayOf = delayOf;
  }

  async forward(batch: ScheduledBatch): Promise<ForwardResult> {
    const work = [...batch.context, ...batch.generation].map(
      ({ request, chunkStart, chunkEnd }) =>
        `${request.id}[${chunkStart},${chunkEnd}) ${this.#pages(request, chunkEnd)}`,
    );
    const free = this.#cache.stats().map(({ free: count, reusable, pinned }) => `${count}/${reusable}/${pinned}`);
    this.batches.push(`${work.join(' ')} free ${free.join(' ')}`);
    if (this.failure !== null) throw this.failure;
    const failure = this.failuresAt.get(this.batches.length - 1);
    if (failure === 'enqueue') throw new Error('the device took no work');
    const tokens = new Map<LlmRequest, number>();
    for (const { request, chunkEnd } of batch.context)
      if (chunkEnd === request.promptTokens.length) tokens.set(request, request.id);
    for (const { request, chunkStart } of batch.generation)
      tokens.set(request, request.id + chunkStart + 1 - request.promptTokens.length);
    for (const request of tokens.keys())
      if (this.instead.has(request.id) && request.outputTokens.length === 0)
        tokens.set(request, this.instead.get(request.id) as number);
    const delayMs = this.#delayOf('forward', null);
    await new Promise<void>((resolve) => this.#clock.setTimer(delayMs, resolve));
    if (failure === 'device') return { event: null, tokens: Promise.reject(new Error('the device failed')) };
    return { event: null, tokens: Promise.resolve(tokens) };
  }

  #pages(request: LlmRequest, end: number): string {
    return this.#cache.layerGroups
      .map((_, group) => {
        const { begin, slots } = this.#cache.getBlockIdsRange(request.id, group, 0, Math.ceil(end / TPB));
        return `${begin}:${[...slots].join(',')}`;
      })
      .join('|');
  }
}

export interface ClusterOptions {
  readonly seed?: number;
  readonly slotCount?: number;
  readonly windowed?: boolean;
  readonly reserving?: boolean;
  readonly delayOf?: (rank: number) => DelayOf;
  readonly limits?: Partial<ExecutorOptions['limits']>;
  readonly schedule?: ExecutorOptions['schedule'];
  readonly kvTransferTimeoutMs?: number;
}

/** One rank of an instance under a fake clock. */
export class ClusterRank {
  readonly cache: KvCacheManager;
  readonly transceiver: DelayedTransceiver;
  readonly engine: NotingEngine;
  readonly executor: Executor;
  readonly outcomes: string[] = [];
  readonly tokens = new Map<number, number[]>();
  readonly warnings: string[] = [];
  readonly lost: KvTransceiverError[] = [];
  readonly errors = new Map<number, KvTransceiverError | null>();

  constructor(clock: FakeClock, rankGroup: RankGroup, options: ClusterOptions = {}) {
    const { slotCount = 64, windowed = false, seed = 1 } = options;
    const random = seededRandom(seed * 1000 + rankGroup.rank);
    const delayOf = options.delayOf?.(rankGroup.rank) ?? (() => Math.floor(random() * 40));
    const group = { kind: 'attention' as const, tokensPerBlock: TPB, layers: [0], slotCount, windowSize: null };
    const layerGroups = windowed ? [group, { ...group, layers: [1], windowSize: 8 }] : [group];
    const Manager = options.reserving === true ? ReservingCacheManager : GrowingCacheManager;
    this.cache = new Manager({ tokensPerBlock: TPB, layerGroups });
    this.transceiver = new DelayedTransceiver(clock, this.cache, delayOf);
    this.engine = new NotingEngine(clock, this.cache, delayOf);
    this.executor = new Executor({
      clock,
      cache: this.cache,
      transceiver: this.transceiver,
      engine: this.engine,
      limits: { chunkTokens: 8, tokenBudget: 24, maxTokensInBuffer: 64, ...options.limits },
      rankGroup,
      schedule: options.schedule ?? 'plain',
      ...(options.kvTransferTimeoutMs === undefined ? {} : { kvTransferTimeoutMs: options.kvTransferTimeoutMs }),
      events: {
        onToken: (request, token) => void this.tokensOf(request.id).push(token),
        onFinished: (request, outcome) => {
          this.outcomes.push(`${request.id} ${outcome}`);
          this.errors.set(request.id, request.error);
        },
        onWarning: (message) => void this.warnings.push(message),
        onRankGroupLost: (error) => void this.lost.push(error),
        onHandlerError: (error) => {
          throw error;
        },
      },
    });
  }

  tokensOf(id: number): number[] {
    const tokens = this.tokens.get(id) ?? [];
    this.tokens.set(id, tokens);
    return tokens;
  }
}

/** Lets `ms` of virtual time pass. */
export async function pass(clock: FakeClock, ms: number, stepMs = 1): Promise<void> {
  for (let passed = 0; passed < ms; passed += stepMs) {
    clock.advance(stepMs);
    await clock.turn();
  }
}
