import type { ServerCall, ServerResult } from '../../../src/coordinator/disagg-server.js';
import type { CoordinatorCall, DisaggCoordinator } from '../../../src/coordinator/index.js';
import type { DisaggregatedParams } from '../../../src/executor/request.js';
import type { Journal } from '../core/journal.js';
import type { Scheduler } from '../core/scheduler.js';
import { promptOf, tokenAt } from '../parts/prompts.js';
import type { RequestItem, Side } from '../plan.js';
import { BareContext } from './bare-context.js';
import type { SimHost } from './sim-host.js';

/** Ids of requests that no coordinator numbered. */
const DIRECT_ID_BASE = 1n << 42n;

/** How one side of a request ended. */
export interface Ending {
  readonly who: string;
  readonly outcome: string;
  readonly code: string | null;
  readonly message: string | null;
  readonly atMs: number;
}

export interface LifeOptions {
  readonly seed: number;
  readonly item: RequestItem;
  readonly context: SimHost;
  readonly generation: SimHost;
  readonly coordinator: DisaggCoordinator;
  readonly scheduler: Scheduler;
  readonly journal: Journal;
}

/** Role: one request of the plan from its arrival to the last word of every server that took it. */
export class Life {
  readonly item: RequestItem;
  /** Halves or calls whose end is awaited. */
  open = 0;
  readonly endings: Ending[] = [];
  cancelled = false;
  #bare: BareContext | null = null;
  readonly #o: LifeOptions;
  readonly #prompt: Uint32Array;
  readonly #halves = new Map<Side, ServerCall>();
  #call: CoordinatorCall | null = null;

  constructor(options: LifeOptions) {
    this.#o = options;
    this.item = options.item;
    this.#prompt = promptOf(options.item.family, options.item.promptLen);
  }

  start(): void {
    const { item } = this;
    this.#o.journal.note(30, item.number, 0, () => `request ${item.number} comes in`);
    if (item.entrance === 'coordinated') this.#coordinate();
    else if (item.entrance === 'context-only') this.#half('context', this.#params('context_only'));
    else if (item.entrance === 'generation-only') this.#half('generation', this.#params('generation_only'));
    else if (item.entrance === 'bare') this.#bareHalves();
    else this.#bothHalves();
  }

  /** What both sides call it; null before a coordinator numbered it. */
  get rid(): bigint | null {
    if (this.item.entrance === 'coordinated') return this.#call?.id ?? null;
    return DIRECT_ID_BASE + BigInt(this.item.number);
  }

  /** What somebody was told, in short. */
  get completed(): boolean {
    return this.endings.some(({ outcome }) => outcome === 'completed');
  }

  cancel(by: Side | 'user'): void {
    this.#o.journal.note(31, this.item.number, 0, () => `request ${this.item.number} is cancelled by ${by}`);
    this.cancelled = true;
    this.#call?.cancel();
    if (by !== 'generation') this.#bare?.cancelSoon();
    if (by !== 'generation') this.#halves.get('context')?.cancel();
    if (by !== 'context') this.#halves.get('generation')?.cancel();
  }

  #coordinate(): void {
    const { item } = this;
    const call = this.#o.coordinator.submit({
      promptTokens: this.#prompt,
      maxTokens: item.maxTokens,
      scheduleStyle: item.style,
      transferPolicy: { pipelined: item.pipelined, earlyPrefix: item.earlyPrefix },
    });
    this.#call = call;
    this.open += 2;
    void call.result.then((result) => {
      this.open -= 1;
      const { outcome, outputTokens, error } = result;
      this.#ended('coordinator', outcome, outputTokens, error?.message ?? null, error?.code ?? null);
    });
    void call.released.then(() => {
      this.open -= 1;
    });
  }

  #bothHalves(): void {
    const { style, lagMs } = this.item;
    if (style === 'context_first') {
      let answered = false;
      this.#half('context', this.#params('context_only'), (params) => {
        if (answered) this.#o.journal.violation('I2 twice', `request ${this.item.number} was answered twice`);
        answered = true;
        this.#later(Math.max(0, lagMs), () => this.#half('generation', params));
      });
      return;
    }
    // Both orders of arrival: receivers that ask before the request exists, and after.
    this.#later(Math.max(0, -lagMs), () => this.#half('generation', this.#params('generation_only')));
    this.#later(Math.max(0, lagMs), () => this.#half('context', this.#params('context_only')));
  }

  #bareHalves(): void {
    const { style, lagMs } = this.item;
    const generate = (): void =>
      this.#later(Math.max(0, -lagMs), () => this.#half('generation', this.#params('generation_only')));
    const isAnswered = style === 'context_first';
    if (!isAnswered) generate();
    this.#later(Math.max(0, lagMs), () => this.#bareHalf(isAnswered ? generate : () => {}));
  }

  #bareHalf(onAnswer: () => void): void {
    const { context, scheduler, seed } = this.#o;
    let over = false;
    this.open += 1;
    const onEnd = (outcome: string, message: string | null, code: string | null): void => {
      if (over) return;
      over = true;
      this.open -= 1;
      this.#ended('context', outcome, [], message, code);
    };
    if (!context.alive) {
      onEnd('failed', `${context.name} is down`, 'ERR_KVT_PEER_LOST');
      return;
    }
    const server = context.instance.nextLeader();
    const bare = new BareContext({
      server,
      scheduler,
      item: this.item,
      seed,
      params: this.#params('context_only'),
      onAnswer,
      onEnd,
    });
    this.#bare = bare;
    context.onDown(server, () => onEnd('failed', `${context.name} went down`, 'ERR_KVT_PEER_LOST'));
    scheduler.at(0.1, server.process, () => bare.start());
  }

  #later(ms: number, run: () => void): void {
    this.open += 1;
    this.#o.scheduler.at(ms, null, () => {
      this.open -= 1;
      run();
    });
  }

  #half(
    side: Side,
    params: DisaggregatedParams,
    onContextAnswer: (params: DisaggregatedParams) => void = () => {},
  ): void {
    const { item } = this;
    this.open += 1;
    const call = this.#o[side].submit(
      {
        promptTokens: this.#prompt,
        maxTokens: item.maxTokens,
        params,
        transferPolicy: { pipelined: item.pipelined, earlyPrefix: item.earlyPrefix },
      },
      { onContextAnswer },
    );
    this.#halves.set(side, call);
    void call.done.then(({ outcome, outputTokens, error }: ServerResult) => {
      this.open -= 1;
      const tokens = side === 'generation' ? outputTokens : [];
      this.#ended(side, outcome, tokens, error?.message ?? null, error?.code ?? null);
    });
  }

  #ended(who: string, outcome: string, tokens: readonly number[], message: string | null, code: string | null): void {
    const { item } = this;
    this.endings.push({ who, outcome, code, message, atMs: this.#o.scheduler.now });
    this.#o.journal.note(
      32,
      item.number,
      tokens.length,
      () => `request ${item.number}, ${who}: ${outcome}${message === null ? '' : ` (${message})`}`,
    );
    if (outcome !== 'completed' || who === 'context') return;
    const right = Array.from({ length: item.maxTokens }, (_, index) => tokenAt(this.#prompt, index));
    if (tokens.length !== right.length || tokens.some((token, index) => token !== right[index]))
      this.#o.journal.violation(
        'I3 answer',
        `request ${item.number}: ${tokens.join(' ')} instead of ${right.join(' ')}`,
      );
  }

  #params(requestType: 'context_only' | 'generation_only'): DisaggregatedParams {
    return {
      requestType,
      scheduleStyle: this.item.style,
      ctxRequestId: null,
      disaggRequestId: DIRECT_ID_BASE + BigInt(this.item.number),
      ctxDpRank: null,
      ctxInfoEndpoint: this.#o.context.infoEndpoint,
      // Whoever hands out requests may say whose they are, or not.
      genInfoEndpoint: this.item.number % 2 === 0 ? this.#o.generation.infoEndpoint : null,
      // A generation half that comes without an answer brings what the answer would have said.
      firstGenTokens: this.item.style === 'context_first' ? [tokenAt(this.#prompt, 0)] : [],
      draftTokens: [],
      traceparent: '',
    };
  }
}
