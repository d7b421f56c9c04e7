import { createRequest, MONOLITHIC } from '../executor/create-request.js';
import type { Executor } from '../executor/executor.js';
import type { TransferPolicy } from '../executor/request.js';
import type { DisaggServer, ServerCall, ServerEvents, ServerRequest, ServerResult } from './disagg-server.js';
import { LiveIds } from './live-ids.js';
import { resultOf } from './server-result.js';

/** Parts of a server that lives in this process. */
export interface LocalServerOptions {
  readonly name: string;
  readonly executor: Executor;
  readonly infoEndpoint: string | null;
  /** Of requests that bring none. Context-first requests cannot be pipelined and are sent whole. */
  readonly transferPolicy: TransferPolicy;
  /** Told once when the default policy does not apply to a request. Default: a process warning. */
  readonly onNotice?: (message: string) => void;
}

/** A server in this process: an executor behind the coordinator's interface. */
export class LocalServer implements DisaggServer {
  readonly name: string;
  readonly infoEndpoint: string | null;
  readonly #o: LocalServerOptions;
  readonly #ids = new LiveIds();
  #nextId = 1;
  #noticed = false;

  constructor(options: LocalServerOptions) {
    this.name = options.name;
    this.infoEndpoint = options.infoEndpoint;
    this.#o = options;
  }

  /** @throws as `Executor.submit`, and ResourceError for an id that another request has */
  submit(request: ServerRequest, events: ServerEvents): ServerCall {
    const { executor } = this.#o;
    const leave = this.#ids.enter(request.params);
    const llmRequest = createRequest({
      id: this.#nextId++,
      promptTokens: request.promptTokens,
      maxTokens: request.maxTokens,
      disagg: request.params,
      transferPolicy: request.transferPolicy ?? this.#defaultPolicy(request),
      sampling: request.sampling ?? null,
      stopTokens: request.stopTokens ?? [],
    });
    let resolveDone: (result: ServerResult) => void = () => {};
    const done = new Promise<ServerResult>((resolve) => {
      resolveDone = resolve;
    });
    try {
      executor.submit(llmRequest, {
        onContextAnswer: (_, params) => events.onContextAnswer?.(params),
        onToken: (_, token, index) => events.onToken?.(token, index),
        onFinished: (ended, outcome) => {
          leave();
          resolveDone(resultOf(ended, outcome));
        },
      });
    } catch (error) {
      leave();
      throw error;
    }
    return { done, cancel: () => void executor.cancel(llmRequest.id) };
  }

  #defaultPolicy({ params }: ServerRequest): TransferPolicy {
    const { transferPolicy, onNotice = (message) => process.emitWarning(message) } = this.#o;
    if (params.scheduleStyle === 'generation_first' || !transferPolicy.pipelined) return transferPolicy;
    if (!this.#noticed && params.requestType === 'context_only') {
      this.#noticed = true;
      onNotice(
        `${this.name}: context-first requests are sent whole after their last chunk; use schedule style 'generation_first' to pipeline them`,
      );
    }
    return MONOLITHIC;
  }
}
