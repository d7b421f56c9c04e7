import { createRequest } from '../../../src/executor/create-request.js';
import type { DisaggregatedParams, LlmRequest } from '../../../src/executor/request.js';
import type { Settled } from '../../../src/session/cache-transceiver.js';
import { Random } from '../core/random.js';
import type { Scheduler } from '../core/scheduler.js';
import { blockHashesOf, promptOf, tokenAt } from '../parts/prompts.js';
import type { RequestItem } from '../plan.js';
import type { SimServer } from './sim-server.js';

/** Ids that no executor gives out. */
const FIRST_ID = 1_000_000;
const CAPACITY_TRIES = 40;

/**
 * Role: a context request that another engine drives: it calls the transceiver's verbs itself, chunk by chunk, without waiting for its
 *   receivers.
 * Why: our executor starts a pipelined prompt only when its receivers have asked, so that late receivers, and several slices without aux,
 *   would never be simulated.
 */
export class BareContext {
  readonly request: LlmRequest;
  readonly #server: SimServer;
  readonly #scheduler: Scheduler;
  readonly #item: RequestItem;
  readonly #random: Random;
  readonly #onAnswer: () => void;
  readonly #onEnd: (outcome: string, error: string | null, code: string | null) => void;
  #computing = false;
  #sending = false;
  #resident = false;
  #cancelled = false;
  #ended = false;
  #outcome: Settled | null = null;
  #tries = 0;
  #starved = false;

  constructor(options: {
    readonly server: SimServer;
    readonly scheduler: Scheduler;
    readonly item: RequestItem;
    readonly seed: number;
    readonly params: DisaggregatedParams;
    /** The first token is known. */
    readonly onAnswer: () => void;
    readonly onEnd: (outcome: string, error: string | null, code: string | null) => void;
  }) {
    const { item } = options;
    this.#server = options.server;
    this.#scheduler = options.scheduler;
    this.#item = item;
    this.#random = new Random(options.seed, 7, item.number);
    this.#onAnswer = options.onAnswer;
    this.#onEnd = options.onEnd;
    this.request = createRequest({
      id: FIRST_ID + item.number,
      promptTokens: promptOf(item.family, item.promptLen),
      maxTokens: 1,
      disagg: options.params,
      transferPolicy: { pipelined: item.pipelined, earlyPrefix: item.earlyPrefix },
    });
  }

  start(): void {
    if (this.#ended) return;
    this.#server.bare.set(this.request, this);
    try {
      const { prepopulatedLen } = this.#server.cache.addRequest(this.request.id, {
        promptLen: this.#item.promptLen,
        blockHashes: blockHashesOf(this.request),
      });
      this.#resident = true;
      Object.assign(this.request, { prepopulatedLen, chunkStart: prepopulatedLen, chunkEnd: prepopulatedLen });
    } catch (error) {
      this.#end('failed', String(error), 'ERR_KVT_RESOURCE');
      return;
    }
    if (this.#attempt(() => this.#sendPrefix())) this.#chunk();
  }

  /** As the process itself would: later, when it is stopped now. */
  cancelSoon(): void {
    this.#scheduler.at(0.1, this.#server.process, () => this.cancel());
  }

  cancel(): void {
    if (this.#ended || this.#cancelled) return;
    this.#cancelled = true;
    this.request.cancelRequested = true;
    const over = this.#server.watched.cancelRequest(this.request, 'cancelled by its user');
    // A request that the transceiver never saw has no outcome to wait for.
    if (over && !this.#sending) this.#finish('cancelled');
  }

  settled(settled: Settled): void {
    this.#outcome = settled;
    if (!this.#computing) this.#finish(settled.outcome);
  }

  #sendPrefix(): void {
    if (this.request.prepopulatedLen === 0 || !this.request.transferPolicy.earlyPrefix) return;
    this.#sending = true;
    this.#server.watched.sendEarlyPrefix(this.request, { after: null });
  }

  #chunk(): void {
    if (this.#ended || this.#cancelled || this.#outcome !== null) return;
    const { request } = this;
    const { cache, agent, pages, process, watched } = this.#server;
    const begin = request.chunkEnd;
    const end = Math.min(this.#item.promptLen, begin + this.#random.between(1, 14));
    if (!cache.ensureCapacity(request.id, end)) {
      this.#tries += 1;
      if (this.#tries > CAPACITY_TRIES) {
        this.#starved = true;
        this.cancel();
      } else this.#later(10, () => this.#chunk());
      return;
    }
    const runs = pages.runsOf(request, begin, end);
    request.chunkStart = begin;
    request.chunkEnd = end;
    const event = agent.createEvent();
    this.#sending = true;
    this.#computing = true;
    if (!this.#attempt(() => void watched.respondAndSendAsync(request, { after: event }))) return;
    this.#scheduler.at(
      this.#random.real(0.1, 8),
      process,
      () => {
        pages.compute(request, runs, begin, end);
        const isComputed = end === this.#item.promptLen;
        if (isComputed) request.outputTokens.push(tokenAt(request.promptTokens, 0));
        event.signal();
        this.#computing = false;
        if (isComputed) this.#onAnswer();
        if (this.#resident) cache.markComputed(request.id, end);
        if (this.#outcome !== null) this.#finish(this.#outcome.outcome);
        else if (end < this.#item.promptLen) this.#later(this.#random.chance(0.2) ? 60 : 4, () => this.#chunk());
      },
      'hardware',
    );
  }

  #later(mostMs: number, run: () => void): void {
    this.#scheduler.at(this.#random.real(0.1, mostMs), this.#server.process, run);
  }

  /** False: the transceiver refuses, e.g. because the session has ended; then nothing more is sent. */
  #attempt(send: () => void): boolean {
    try {
      send();
      return true;
    } catch (error) {
      this.#computing = false;
      this.#end('failed', error instanceof Error ? error.message : String(error), 'ERR_KVT_SESSION_RETIRED');
      return false;
    }
  }

  #finish(outcome: string): void {
    const code = this.#starved ? 'ERR_KVT_RESOURCE' : (this.#outcome?.error?.code ?? null);
    this.#end(outcome, this.#outcome?.error?.message ?? null, code);
  }

  #end(outcome: string, error: string | null, code: string | null): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#server.bare.delete(this.request);
    if (this.#resident) this.#server.cache.freeRequest(this.request.id);
    this.#resident = false;
    this.#onEnd(outcome, error, code);
  }
}
