import type { KvCacheManager } from '../cache/kv-cache-manager.js';
import type { Clock } from '../clock.js';
import type { KvTransceiverError } from '../errors.js';
import type { TurnBudget } from '../turn-budget.js';
import type { ContextTransfer } from './context-transfer.js';
import { readTokens, type SampledTokens } from './engine-tokens.js';
import type { EventSink } from './executor-events.js';
import type { ForwardResult, ModelEngine, ScheduledWork } from './model-engine.js';
import type { PageMoves } from './page-moves.js';
import { type DisaggregatedParams, type LlmRequest, requestKey } from './request.js';
import type { RequestEndings } from './request-endings.js';
import type { Entry, RequestTable } from './request-table.js';
import { decodePosition, type StepPlan } from './scheduler.js';
import type { TokenDelivery } from './token-delivery.js';
import { typedError } from './typed-error.js';

/** What a context server says of itself in its answers. */
export interface ContextIdentity {
  /** Control endpoint of this rank, `tcp://host:port`. */
  readonly endpoint: string | null;
  readonly dpRank: number | null;
}

/** Waits for something that may never come, and lets the loop do meanwhile what does not depend on it. */
export type Meanwhile = <T>(work: Promise<T>) => Promise<T>;

export interface ForwardStageOptions {
  readonly clock: Clock;
  readonly turns: TurnBudget;
  readonly cache: KvCacheManager;
  readonly engine: ModelEngine;
  readonly table: RequestTable;
  readonly transfer: ContextTransfer;
  readonly moves: PageMoves;
  readonly endings: RequestEndings;
  readonly events: EventSink;
  readonly tokens: TokenDelivery;
  readonly identity: ContextIdentity;
  /** Called at launch with each context request whose pages this step may hand to a transfer. */
  readonly onPagesLent: (request: LlmRequest) => void;
  readonly meanwhile: Meanwhile;
}

interface Work {
  readonly entry: Entry;
  readonly scheduled: ScheduledWork;
  /** It brings its request's user a token. */
  readonly delivers: boolean;
}

/** The token of each request, or why there are none. */
export type StepResult = SampledTokens | KvTransceiverError;

/** A forward that was enqueued. */
export interface StepInFlight {
  readonly context: readonly Work[];
  readonly generation: readonly Work[];
  /** Null: it could not be enqueued, nothing of it may be sent. */
  readonly forward: ForwardResult | null;
  /** Settles, never rejects, when the forward no longer writes pages. */
  readonly result: Promise<StepResult>;
}

/**
 * Role: runs one planned step in three parts, so that the next step can be launched between them.
 * Ordering: launch = early prefix, forward enqueued; send = `sendKvAsync` behind its event, once every step before it went well; judge = those
 *   that got no token end, when the results are read; retire = content marked, tokens out; several ranks agree before that on whether there are any.
 *   Nothing of a request is given up between the launch and the retirement of a step that has it.
 */
export class ForwardStage {
  readonly #o: ForwardStageOptions;

  constructor(options: ForwardStageOptions) {
    this.#o = options;
  }

  async launch(plan: StepPlan): Promise<StepInFlight | null> {
    const context = plan.context.length === 0 ? [] : await this.#beginChunks(plan);
    const generation = plan.generation.length === 0 ? [] : await this.#beginDecodes(plan);
    if (context.length + generation.length === 0) return null;
    try {
      const enqueued = this.#o.engine.forward({
        context: context.map((work) => work.scheduled),
        generation: generation.map((work) => work.scheduled),
      });
      const forward = await this.#o.meanwhile(Promise.resolve(enqueued));
      // The tokens are in the requests as soon as they are known, whatever the loop does meanwhile.
      // A thenable will do, and so does what is there already.
      const result = Promise.resolve(forward.tokens).then(
        (tokens: unknown) => this.#noted(context, generation, tokens),
        engineError,
      );
      return { context, generation, forward, result };
    } catch (error) {
      return { context, generation, forward: null, result: Promise.resolve(engineError(error)) };
    }
  }

  /**
   * Before a later step is launched for the same requests: what is sent is the chunk they were given last.
   * A slice may hold tokens that an earlier chunk computed, also one that completed no block, or was not sent because the request is not
   * pipelined: that chunk's forward must have gone well, and the event of this one does not tell.
   */
  async send({ context, forward }: StepInFlight): Promise<void> {
    if (forward === null) return;
    const { turns, transfer } = this.#o;
    for (const { entry } of context) {
      if (turns.isSpent()) await turns.nextTurn();
      transfer.sendKvAsync(entry, forward.event);
    }
  }

  /**
   * The step was read. Who was to get a token and did not is given up, and nobody else. Several ranks: the others hear of it in the exchange in
   * which they agree on the step, before anybody plans the next token.
   */
  async judge(refused: SampledTokens['refused']): Promise<void> {
    const { turns, endings } = this.#o;
    for (const [entry, error] of refused) {
      if (turns.isSpent()) await turns.nextTurn();
      endings.abandon(entry, error);
      // An engine that finds no token may have written what leads to none. Several ranks mark alike: whether there is content is agreed by the forward.
      if (entry.outcome !== null) entry.hasLostContent = true;
    }
  }

  /** @param result what `step.result` came to; an error when the step does not count */
  async retire(step: StepInFlight, result: StepResult): Promise<void> {
    const { turns } = this.#o;
    for (const work of [...step.context, ...step.generation]) {
      if (turns.isSpentBySmall()) await turns.nextTurn();
      const { entry, delivers } = work;
      entry.stepsInFlight -= 1;
      if (delivers) entry.request.tokensInFlight -= 1;
      if (result instanceof Error) {
        entry.hasLostContent = true;
        this.#o.endings.abandon(entry, result);
      } else {
        // The request may have been in the step before, too, and that one may have failed.
        if (!entry.hasLostContent) this.#markComputed(work);
        // Its transfer can be over before the results of its last chunk are read.
        if (entry.outcome === 'completed' && entry.role === 'context' && isLastChunk(work)) this.#prefillDone(entry);
      }
      // It ended while its forwards ran: its pages were kept until the last of them.
      if (entry.outcome === null || entry.stepsInFlight > 0) continue;
      if (this.#o.table.find(entry.request) !== undefined) this.#o.endings.release(entry);
    }
    if (result instanceof Error) return;
    for (const work of step.context) {
      if (turns.isSpentBySmall()) await turns.nextTurn();
      if (work.entry.outcome === null && isLastChunk(work)) this.#finishPrompt(work.entry, result.tokens);
    }
    for (const { entry } of step.generation) {
      if (turns.isSpentBySmall()) await turns.nextTurn();
      if (entry.outcome === null) this.#finishDecode(entry, result.tokens);
    }
  }

  async #beginChunks(plan: StepPlan): Promise<Work[]> {
    const works: Work[] = [];
    const { turns } = this.#o;
    for (const { request, chunkStart, chunkEnd } of plan.context) {
      if (turns.isSpent()) await turns.nextTurn();
      const entry = this.#o.table.find(request);
      if (entry === undefined) continue;
      request.chunkStart = chunkStart;
      request.chunkEnd = chunkEnd;
      if (chunkStart === request.prepopulatedLen) {
        this.#o.events.emit(entry.events, 'onPrefillStarted', request, this.#o.clock.now());
      }
      const isLast = chunkEnd === request.promptTokens.length;
      const delivers = isLast && entry.role === 'aggregate';
      if (entry.role === 'context' && (isLast || request.transferPolicy.pipelined)) this.#o.onPagesLent(request);
      const pagesReady = this.#o.moves.of(entry);
      if (entry.outcome !== null) continue;
      this.#o.transfer.sendEarlyPrefix(entry);
      if (entry.outcome !== null) continue;
      // Its first decode step may be the next step's.
      if (delivers) this.#o.table.advance(entry, 'prompt_enqueued');
      works.push(begun({ entry, scheduled: { request, chunkStart, chunkEnd, pagesReady }, delivers }));
    }
    return works;
  }

  async #beginDecodes(plan: StepPlan): Promise<Work[]> {
    const works: Work[] = [];
    const { turns } = this.#o;
    for (const request of plan.generation) {
      if (turns.isSpentBySmall()) await turns.nextTurn();
      const entry = this.#o.table.find(request);
      if (entry === undefined) continue;
      const pagesReady = this.#o.moves.of(entry);
      if (entry.outcome !== null) continue;
      // Now and not when its token is read: the next step may be planned before that.
      this.#o.table.served(entry);
      const position = decodePosition(request);
      const scheduled = { request, chunkStart: position, chunkEnd: position, pagesReady };
      works.push(begun({ entry, scheduled, delivers: true }));
    }
    return works;
  }

  /** What the engine hands over may be anything. */
  #noted(context: readonly Work[], generation: readonly Work[], answer: unknown): StepResult {
    try {
      const sampled = readTokens(sampling(context, generation), answer);
      this.#noteContextTokens(context, sampled.tokens);
      return sampled;
    } catch (error) {
      return engineError(error);
    }
  }

  /** The aux buffer of the last slice carries the first token: it must be there before that slice can have been delivered. */
  #noteContextTokens(context: readonly Work[], tokens: ReadonlyMap<LlmRequest, number>): void {
    let isAny = false;
    for (const work of context) {
      const { entry } = work;
      const token = tokens.get(entry.request);
      if (entry.role !== 'context' || !isLastChunk(work) || token === undefined) continue;
      entry.outputCount = entry.request.outputTokens.push(token);
      isAny = true;
    }
    // Now, and not after the step was retired, which costs time with each block of the prompt.
    if (isAny) this.#o.transfer.firstTokensKnown();
  }

  #markComputed({ entry, scheduled }: Work): void {
    // A decode step wrote the token it was fed, at `chunkEnd`.
    const isDecode = scheduled.chunkStart === scheduled.chunkEnd;
    try {
      this.#o.cache.markComputed(entry.request.id, scheduled.chunkEnd + (isDecode ? 1 : 0));
    } catch (error) {
      this.#o.endings.abandon(entry, typedError(error, 'markComputed failed'));
    }
  }

  #finishPrompt(entry: Entry, tokens: ReadonlyMap<LlmRequest, number>): void {
    const { request } = entry;
    const { events, endings } = this.#o;
    const token = tokens.get(request);
    // Several ranks: it was given up, and goes on until all of them know.
    if (token === undefined) return;
    this.#prefillDone(entry);
    if (entry.role === 'context') {
      if (request.disagg?.scheduleStyle === 'context_first') {
        events.emit(entry.events, 'onContextAnswer', request, this.#answer(request, request.disagg));
      }
      return;
    }
    if (this.#o.tokens.deliver(entry, token)) endings.complete(entry);
  }

  #prefillDone({ events, request }: Entry): void {
    this.#o.events.emit(events, 'onPrefillDone', request, this.#o.clock.now());
  }

  #finishDecode(entry: Entry, tokens: ReadonlyMap<LlmRequest, number>): void {
    const token = tokens.get(entry.request);
    if (token !== undefined && this.#o.tokens.deliver(entry, token)) this.#o.endings.complete(entry);
  }

  #answer(request: LlmRequest, disagg: DisaggregatedParams): DisaggregatedParams {
    const { endpoint, dpRank } = this.#o.identity;
    return {
      ...disagg,
      requestType: 'generation_only',
      ctxRequestId: requestKey(request),
      ctxInfoEndpoint: endpoint ?? disagg.ctxInfoEndpoint,
      ctxDpRank: dpRank ?? disagg.ctxDpRank,
      firstGenTokens: [...request.outputTokens],
      firstGenLogProbs: [...(request.outputLogProbs ?? [])],
      ctxUsage: { promptTokens: request.promptTokens.length, cachedTokens: request.prepopulatedLen },
    };
  }
}

function begun(work: Work): Work {
  work.entry.stepsInFlight += 1;
  if (work.delivers) work.entry.request.tokensInFlight += 1;
  return work;
}

function isLastChunk({ entry, scheduled }: Work): boolean {
  return scheduled.chunkEnd === entry.request.promptTokens.length;
}

/** Of a forward, those that it samples a token for. */
function* sampling(context: readonly Work[], generation: readonly Work[]): Iterable<Entry> {
  for (const work of context) if (isLastChunk(work)) yield work.entry;
  for (const { entry } of generation) yield entry;
}

function engineError(error: unknown): KvTransceiverError {
  return typedError(error, 'the model engine failed');
}
