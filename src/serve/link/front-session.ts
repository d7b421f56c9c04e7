import type { Clock } from '../../clock.js';
import type { DisaggServer, ServerCall, ServerResult } from '../../coordinator/disagg-server.js';
import { ResourceError } from '../../errors.js';
import { typedError } from '../../executor/typed-error.js';
import type { Messenger } from '../../wire/messenger.js';
import { toLink } from './link-error.js';
import { MAX_CALLS } from './link-limits.js';
import type { FrontMessage, IdOrigin, LinkFrame, WorkerMessage, WorkerPhase } from './link-message.js';
import { LinkOutbox } from './link-outbox.js';

export interface FrontSessionOptions {
  readonly clock: Clock;
  readonly messenger: Messenger;
  readonly endpoint: string;
  readonly session: bigint;
  readonly ids: IdOrigin;
  readonly server: Pick<DisaggServer, 'submit'>;
  readonly metrics: () => Promise<string>;
}

/** Role: one front at a worker: its requests, and what they are answered. `end` cancels what is left of them. */
export class FrontSession {
  readonly endpoint: string;
  lastHeardMs: number;
  /** Those of its requests. */
  ids: IdOrigin;
  readonly #o: FrontSessionOptions;
  readonly #outbox: LinkOutbox<WorkerMessage>;
  readonly #calls = new Map<number, ServerCall>();
  #sequence = 0;

  constructor(options: FrontSessionOptions) {
    this.#o = options;
    this.endpoint = options.endpoint;
    this.ids = options.ids;
    this.lastHeardMs = options.clock.now();
    this.#outbox = new LinkOutbox<WorkerMessage>(options);
  }

  get liveCalls(): number {
    return this.#calls.size;
  }

  /** False: the session is over, because the front said so or because a frame is missing. */
  receive({ sequence, messages }: LinkFrame<FrontMessage>, phase: WorkerPhase): boolean {
    this.lastHeardMs = this.#o.clock.now();
    if (sequence !== ++this.#sequence) return false;
    for (const message of messages) {
      switch (message.type) {
        case 'submit':
          this.#submit(message);
          break;
        case 'cancel':
          this.#calls.get(message.call)?.cancel();
          break;
        case 'ping':
          this.sayPhase(phase);
          break;
        case 'metrics':
          void this.#sayMetrics(message.query);
          break;
        case 'bye':
          return false;
        case 'hello':
          break;
      }
    }
    return true;
  }

  sayPhase(phase: WorkerPhase): void {
    this.#outbox.say({ type: 'pong', phase });
  }

  flush(): void {
    this.#outbox.flush();
  }

  end(): void {
    this.#outbox.close();
    for (const call of this.#calls.values()) call.cancel();
    this.#calls.clear();
  }

  #submit(message: Extract<FrontMessage, { type: 'submit' }>): void {
    const { call, promptTokens, maxTokens, params, transferPolicy, sampling, stopTokens } = message;
    let count = 0;
    const onToken = (token: number, index: number): void => {
      count = index + 1;
      this.#outbox.say({ type: 'tokens', call, index, tokens: [token] });
    };
    const finish = (result: ServerResult, refused: boolean): void => {
      this.#calls.delete(call);
      const { outcome, error, usage = null } = result;
      const linkError = error === null ? null : toLink(error);
      this.#outbox.say({ type: 'done', call, outcome, tokenCount: count, error: linkError, usage, refused });
    };
    try {
      if (this.#calls.size >= MAX_CALLS || this.#calls.has(call))
        throw new ResourceError(`this front has ${this.#calls.size} requests here, more than it may`);
      const request = { promptTokens, maxTokens, params, transferPolicy, sampling, stopTokens };
      const live = this.#o.server.submit(request, {
        onToken,
        onContextAnswer: (answer) => this.#outbox.say({ type: 'answer', call, params: answer }),
      });
      this.#calls.set(call, live);
      void live.done.then((result) => finish(result, false));
    } catch (error) {
      const refusal = typedError(error, 'the request was refused');
      finish({ outcome: 'failed', outputTokens: [], error: refusal }, true);
    }
  }

  async #sayMetrics(query: number): Promise<void> {
    let text = '';
    try {
      text = await this.#o.metrics();
    } catch (error) {
      text = `# ${typedError(error, 'metrics').message.replaceAll('\n', ' ')}\n`;
    }
    this.#outbox.say({ type: 'metrics', query, text }, text.length);
  }
}
