import type { ServerCall, ServerResult } from '../../../src/coordinator/disagg-server.js';
import type { CoordinatorCall, DisaggCoordinator } from '../../../src/coordinator/index.js';
import type { DisaggregatedParams } from '../../../src/executor/request.js';
import type { Journal } from '../core/journal.js';
import type { Scheduler } from '../core/scheduler.js';
import { promptOf, tokenAt } from '../parts/prompts.js';
import type { RequestItem, Side } from '../plan.js';
import type { SimHost } from './sim-host.js';

/** Ids of requests that no coordinator numbered. */
const DIRECT_ID_BASE = 1n << 42n;

export interface LifeOptions {
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
  readonly outcomes: string[] = [];
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
    else this.#bothHalves();
  }

  cancel(by: Side | 'user'): void {
    this.#o.journal.note(31, this.item.number, 0, () => `request ${this.item.number} is cancelled by ${by}`);
    this.#call?.cancel();
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
      this.#ended('coordinator', result.outcome, result.outputTokens, result.error?.message ?? null);
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
      this.#ended(side, outcome, tokens, error?.message ?? null);
    });
  }

  #ended(who: string, outcome: string, tokens: readonly number[], why: string | null): void {
    const { item } = this;
    this.outcomes.push(`${who}: ${outcome}`);
    this.#o.journal.note(
      32,
      item.number,
      tokens.length,
      () => `request ${item.number}, ${who}: ${outcome}${why === null ? '' : ` (${why})`}`,
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
      // A generation half that comes without an answer brings what the answer would have said.
      firstGenTokens: this.item.style === 'context_first' ? [tokenAt(this.#prompt, 0)] : [],
      draftTokens: [],
      traceparent: '',
    };
  }
}
