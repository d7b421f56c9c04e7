import type { ReadyEvent } from '../../../src/agent/transfer-agent.js';
import type { ForwardResult, ModelEngine, ScheduledBatch } from '../../../src/executor/model-engine.js';
import type { LlmRequest } from '../../../src/executor/request.js';

export interface FakeEvent extends ReadyEvent {
  state: 'pending' | 'signalled' | 'failed';
}

interface Running {
  readonly batch: ScheduledBatch;
  readonly event: FakeEvent;
  readonly finish: () => void;
  readonly fail: (error: Error) => void;
}

/** A forward ends at once, or, with `manual`, when the test says so. Token of a request = 100 * id + tokens so far. */
export class FakeEngine implements ModelEngine {
  readonly feedsItself = true;
  readonly #log: string[];
  readonly batches: ScheduledBatch[] = [];
  readonly running: Running[] = [];
  manual = false;
  enqueueFailure: Error | null = null;
  dropTokens = false;
  /** What the engine hands over instead, from the tokens that it should. */
  spoil: ((tokens: ReadonlyMap<LlmRequest, number>) => unknown) | null = null;
  #nextHandle = 1;

  constructor(log: string[]) {
    this.#log = log;
  }

  async forward(batch: ScheduledBatch): Promise<ForwardResult> {
    if (this.enqueueFailure !== null) throw this.enqueueFailure;
    const context = batch.context.map((work) => `${work.request.id}[${work.chunkStart},${work.chunkEnd})`);
    const generation = batch.generation.map((work) => `${work.request.id}@${work.chunkStart}`);
    this.#log.push(`forward ${[...context, ...generation].join(' ')}`);
    this.batches.push(batch);
    const event: FakeEvent = {
      handle: this.#nextHandle++,
      state: 'pending',
      signal: () => {
        event.state = 'signalled';
      },
      fail: () => {
        event.state = 'failed';
      },
    };
    const tokens = new Promise<ReadonlyMap<LlmRequest, number>>((resolve, reject) => {
      const finish = (): void => {
        event.signal();
        this.#log.push('done');
        const sampled = this.dropTokens ? new Map() : this.#tokens(batch);
        resolve(this.spoil === null ? sampled : (this.spoil(sampled) as typeof sampled));
      };
      const fail = (error: Error): void => {
        event.fail(error.message);
        this.#log.push('engine failed');
        reject(error);
      };
      this.running.push({ batch, event, finish, fail });
    });
    if (!this.manual) this.finish();
    return { event, tokens };
  }

  finish(): void {
    this.#take().finish();
  }

  fail(error: Error): void {
    this.#take().fail(error);
  }

  #take(): Running {
    const running = this.running.shift();
    if (running === undefined) throw new Error('no forward is running');
    return running;
  }

  #tokens(batch: ScheduledBatch): ReadonlyMap<LlmRequest, number> {
    const tokens = new Map<LlmRequest, number>();
    for (const { request, chunkEnd } of batch.context) {
      if (chunkEnd === request.promptTokens.length) tokens.set(request, 100 * request.id);
    }
    for (const { request, chunkStart } of batch.generation) {
      tokens.set(request, 100 * request.id + chunkStart + 1 - request.promptTokens.length);
    }
    return tokens;
  }
}
