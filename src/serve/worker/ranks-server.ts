import type { ServerCall, ServerEvents, ServerRequest, ServerResult } from '../../coordinator/disagg-server.js';
import { LiveIds } from '../../coordinator/live-ids.js';
import { contextUsageOf, resultOf } from '../../coordinator/server-result.js';
import { createRequest, MONOLITHIC } from '../../executor/create-request.js';
import type { Executor } from '../../executor/executor.js';
import type { RequestOutcome } from '../../executor/executor-events.js';
import type { LlmRequest, PromptUsage, TransferPolicy } from '../../executor/request.js';

export interface RanksServerOptions {
  /** Of every rank, by rank. */
  readonly executors: readonly Executor[];
  /** Of generation-first requests that bring none; context-first ones are sent whole. */
  readonly transferPolicy: TransferPolicy;
}

/** Role: gives each request to every rank of this process under one id; the first rank speaks for all. */
export class RanksServer {
  readonly #o: RanksServerOptions;
  readonly #ids = new LiveIds();
  #nextId = 1;

  constructor(options: RanksServerOptions) {
    this.#o = options;
  }

  /** @throws as `Executor.submit`, and ResourceError for an id that another request has */
  submit(request: ServerRequest, events: ServerEvents): ServerCall {
    const leave = this.#ids.enter(request.params);
    const id = this.#nextId++;
    const { executors } = this.#o;
    let left = executors.length;
    let resolveDone: (result: ServerResult) => void = () => {};
    const done = new Promise<ServerResult>((resolve) => {
      resolveDone = resolve;
    });
    let first: ServerResult | null = null;
    let contextUsage: PromptUsage | null = null;
    const cancel = (): void => {
      for (const executor of executors) executor.cancel(id);
    };
    for (const [rank, executor] of executors.entries()) {
      const onFinished = (ended: LlmRequest, outcome: RequestOutcome): void => {
        if (rank === 0) first = resultOf(ended, outcome);
        // Only ranks that a context rank wrote its answer to have it.
        contextUsage ??= contextUsageOf(ended);
        left -= 1;
        if (left > 0) return;
        leave();
        if (first !== null) resolveDone({ ...first, ...(contextUsage === null ? {} : { contextUsage }) });
      };
      try {
        executor.submit(this.#requestOf(id, request), {
          onFinished,
          ...(rank > 0
            ? {}
            : {
                onContextAnswer: (_, params) => events.onContextAnswer?.(params),
                onToken: (_, token, index) => events.onToken?.(token, index),
              }),
        });
      } catch (error) {
        // Ranks refuse alike, so that this is the first one; a rank that differs must not leave the others waiting for it.
        cancel();
        leave();
        throw error;
      }
    }
    return { done, cancel };
  }

  #requestOf(id: number, request: ServerRequest): LlmRequest {
    const { promptTokens, maxTokens, params, sampling = null, stopTokens = [] } = request;
    const own = params.scheduleStyle === 'generation_first' ? this.#o.transferPolicy : MONOLITHIC;
    const transferPolicy = request.transferPolicy ?? own;
    return createRequest({ id, promptTokens, maxTokens, disagg: params, transferPolicy, sampling, stopTokens });
  }
}
