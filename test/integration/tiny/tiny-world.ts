import { createRequest, MONOLITHIC } from '../../../src/executor/create-request.js';
import { TinyModel, type TinyModelConfig } from '../../../src/executor/engines/tiny/index.js';
import type { DisaggregatedParams, LlmRequest } from '../../../src/executor/request.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { FakeNetwork } from '../../sim-lite/fake-messenger.js';
import { SimFabric } from '../../sim-lite/sim-agent.js';
import { Choices, type TinyCase, type TinyPrompt } from './tiny-case.js';
import { TinyInstance, type TinyWorldParts } from './tiny-instance.js';

const LIMIT_MS = 20_000;
const models = new Map<TinyModelConfig, TinyModel>();

/** What came of one prompt. */
export interface TinyAnswer {
  readonly outcome: string;
  readonly tokens: readonly number[];
}

/** Runs the prompts of a case on a context and a generation server. */
export class TinyWorld {
  readonly context: TinyInstance;
  readonly generation: TinyInstance;
  readonly #case: TinyCase;
  readonly #clock: FakeClock;
  readonly #draw: Choices;
  #nextId = 1;

  private constructor(tinyCase: TinyCase, clock: FakeClock, context: TinyInstance, generation: TinyInstance) {
    this.#case = tinyCase;
    this.#clock = clock;
    this.#draw = new Choices(tinyCase.seed + 1);
    this.context = context;
    this.generation = generation;
  }

  static async create(tinyCase: TinyCase, more: Pick<TinyWorldParts, 'wrapEngine'> = {}): Promise<TinyWorld> {
    const parts = worldParts(tinyCase);
    const context = await TinyInstance.create(parts, 'context', tinyCase.context);
    const generation = await TinyInstance.create({ ...parts, ...more }, 'generation', tinyCase.generation);
    return new TinyWorld(tinyCase, parts.clock, context, generation);
  }

  /** Runs the prompts together, to the end of all of them. */
  async run(prompts: readonly TinyPrompt[]): Promise<TinyAnswer[]> {
    const answers = prompts.map((prompt) => this.#submit(prompt));
    const instances = [this.context, this.generation];
    await runUntil(
      this.#clock,
      instances,
      () => answers.every(({ outcome }) => outcome !== ''),
      () => this.#draw.random() < this.#case.idleShare,
    );
    // Also the pages of the last transfer come free, and ranks that are a step behind end it, too.
    const held = (): boolean =>
      instances.some(({ ranks }) =>
        ranks.some(({ transceiver, executor }) => transceiver.stats().held > 0 || executor.stats().live > 0),
      );
    await runUntil(
      this.#clock,
      instances,
      () => !held(),
      () => false,
    );
    return answers.map(({ outcome, tokens }) => ({ outcome, tokens }));
  }

  #submit({ tokens: promptTokens, maxTokens, stopTokens = [] }: TinyPrompt): {
    outcome: string;
    tokens: readonly number[];
  } {
    const { scheduleStyle, transferPolicy } = this.#case;
    const id = this.#nextId++;
    const answer = { outcome: '', tokens: [] as readonly number[] };
    const base: DisaggregatedParams = {
      requestType: 'context_only',
      scheduleStyle,
      ctxRequestId: null,
      disaggRequestId: (1n << 41n) + BigInt(id),
      ctxDpRank: null,
      ctxInfoEndpoint: this.context.endpoint,
      firstGenTokens: [],
      draftTokens: [],
      traceparent: '',
    };
    const make = (disagg: DisaggregatedParams) => (): LlmRequest =>
      createRequest({
        id,
        promptTokens,
        maxTokens,
        stopTokens,
        disagg,
        transferPolicy: disagg.requestType === 'context_only' ? transferPolicy : MONOLITHIC,
      });
    const generate = (disagg: DisaggregatedParams): void =>
      this.generation.submit(make(disagg), {
        onFinished: ({ outputTokens, error }, outcome) => {
          answer.tokens = [...outputTokens];
          answer.outcome = error === null ? outcome : `${outcome}: ${error.message}`;
        },
      });
    if (scheduleStyle === 'generation_first') generate({ ...base, requestType: 'generation_only' });
    this.context.submit(make(base), {
      onContextAnswer: (_, params) => generate(params),
      onFinished: ({ error }, outcome) => {
        if (outcome !== 'completed' && answer.outcome === '') answer.outcome = `context ${outcome}: ${error?.message}`;
      },
    });
    return answer;
  }
}

/** The same prompts on one server that neither reuses nor transfers anything. */
export async function aggregateAnswers(tinyCase: TinyCase): Promise<TinyAnswer[][]> {
  const parts = worldParts(tinyCase);
  const instance = await TinyInstance.create(parts, 'aggregate', tinyCase.aggregate);
  let nextId = 1;
  const answers: TinyAnswer[][] = [];
  for (const wave of tinyCase.waves) {
    const running = wave.map(({ tokens: promptTokens, maxTokens }) => {
      const answer = { outcome: '', tokens: [] as readonly number[] };
      const id = nextId++;
      instance.submit(() => createRequest({ id, promptTokens, maxTokens }), {
        onFinished: ({ outputTokens, error }, outcome) => {
          answer.tokens = [...outputTokens];
          answer.outcome = error === null ? outcome : `${outcome}: ${error.message}`;
        },
      });
      return answer;
    });
    await runUntil(
      parts.clock,
      [instance],
      () => running.every(({ outcome }) => outcome !== ''),
      () => false,
    );
    answers.push(running);
  }
  return answers;
}

function worldParts({ model, dtype, sampling }: TinyCase): TinyWorldParts & { readonly clock: FakeClock } {
  const clock = new FakeClock();
  const drawn = models.get(model) ?? new TinyModel(model);
  models.set(model, drawn);
  return { clock, network: new FakeNetwork(clock), fabric: new SimFabric(clock), model: drawn, dtype, sampling };
}

async function runUntil(
  clock: FakeClock,
  instances: readonly TinyInstance[],
  isDone: () => boolean,
  isIdle: () => boolean,
): Promise<void> {
  const ranks = instances.flatMap((instance) => instance.ranks);
  for (let ms = 0; !isDone(); ms++) {
    if (ms === LIMIT_MS) {
      const state = instances.map((instance) => JSON.stringify(instance.leftovers())).join('\n');
      throw new Error(`not done within ${LIMIT_MS} ms of virtual time:\n${state}`);
    }
    clock.advance(1);
    await clock.turn();
    for (const { agent } of ranks) if (!isIdle()) agent.run();
  }
}
