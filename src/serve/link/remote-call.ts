import type { ServerCall, ServerEvents, ServerResult } from '../../coordinator/disagg-server.js';
import { type KvTransceiverError, ProtocolError, ResourceError } from '../../errors.js';
import type { CallbackGuard } from '../../session/callback-guard.js';
import { fromLink } from './link-error.js';
import type { LinkError, WorkerMessage } from './link-message.js';

/**
 * Role: one request at a worker, seen from the front.
 * Errors: what a handler of it throws ends this request, and is not the link's business.
 */
export class RemoteCall implements ServerCall {
  readonly done: Promise<ServerResult>;
  readonly #worker: string;
  readonly #events: ServerEvents;
  readonly #guard: CallbackGuard;
  readonly #onCancel: () => void;
  readonly #tokens: number[] = [];
  #resolve: (result: ServerResult) => void = () => {};
  #phase: 'running' | 'cancelling' | 'done' = 'running';

  constructor(worker: string, events: ServerEvents, guard: CallbackGuard, onCancel: () => void) {
    this.#worker = worker;
    this.#events = events;
    this.#guard = guard;
    this.#onCancel = onCancel;
    this.done = new Promise((resolve) => {
      this.#resolve = resolve;
    });
  }

  cancel(): void {
    if (this.#phase !== 'running') return;
    this.#phase = 'cancelling';
    this.#onCancel();
  }

  answered({ params }: Extract<WorkerMessage, { type: 'answer' }>): void {
    this.#tell('onContextAnswer', () => this.#events.onContextAnswer?.(params));
  }

  /** @throws ProtocolError for tokens that do not follow those before */
  arrived({ index, tokens }: Extract<WorkerMessage, { type: 'tokens' }>): void {
    if (this.#phase === 'done') return;
    if (index !== this.#tokens.length)
      throw new ProtocolError(`${this.#worker} sent token ${index} after ${this.#tokens.length} tokens`);
    for (const token of tokens) {
      const at = this.#tokens.push(token) - 1;
      this.#tell('onToken', () => this.#events.onToken?.(token, at));
    }
  }

  /** @throws ProtocolError when tokens are missing */
  ended({ outcome, tokenCount, error, usage, contextUsage, refused }: Extract<WorkerMessage, { type: 'done' }>): void {
    if (this.#phase === 'done') return;
    if (tokenCount !== this.#tokens.length)
      throw new ProtocolError(`${this.#worker} counts ${tokenCount} tokens, ${this.#tokens.length} came`);
    this.#end({
      outcome,
      outputTokens: this.#tokens,
      error: error === null ? null : this.#errorOf(error, refused),
      ...(usage === null ? {} : { usage }),
      ...(contextUsage === null ? {} : { contextUsage }),
    });
  }

  fail(error: KvTransceiverError): void {
    this.#end({ outcome: 'failed', outputTokens: this.#tokens, error });
  }

  /** Who is refused may go elsewhere: a worker that is about to end takes nothing, and another one does. */
  #errorOf(error: LinkError, refused: boolean): KvTransceiverError {
    if (refused && error.code === 'ERR_KVT_STATE')
      return new ResourceError(`${this.#worker} takes no requests: ${error.message}`);
    return fromLink(error, this.#worker);
  }

  #tell(handler: string, call: () => void): void {
    if (this.#phase === 'done') return;
    const error = this.#guard.run(`${handler} of a request at ${this.#worker}`, call);
    if (error === null) return;
    // The worker goes on with it until it hears of this.
    this.cancel();
    this.fail(error);
  }

  #end(result: ServerResult): void {
    this.#phase = 'done';
    this.#resolve(result);
  }
}
