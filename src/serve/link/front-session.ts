import type { Clock } from '../../clock.js';
import type { DisaggServer, ServerCall, ServerResult } from '../../coordinator/disagg-server.js';
import { InternalError, type KvTransceiverError, ResourceError, WireError } from '../../errors.js';
import type { DisaggregatedParams } from '../../executor/request.js';
import { typedError } from '../../executor/typed-error.js';
import type { CallbackGuard } from '../../session/callback-guard.js';
import type { Messenger } from '../../wire/messenger.js';
import { checkWorkerMessage } from './link-codec.js';
import { toLink } from './link-error.js';
import { MAX_CALLS, MAX_METRICS_BYTES, MAX_TOKEN } from './link-limits.js';
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
  readonly guard: CallbackGuard;
  /** The front cannot be told something, and lacks a frame. */
  readonly onBroken: (error: KvTransceiverError) => void;
}

/** One of its requests: how the server's is cancelled, and how it ends for the front. */
interface OpenCall {
  readonly live: ServerCall;
  readonly finish: (result: ServerResult) => void;
}

/** Role: one front at a worker: its requests, and what they are answered. `end` cancels what is left of them. */
export class FrontSession {
  readonly endpoint: string;
  lastHeardMs: number;
  /** Those of its requests. */
  ids: IdOrigin;
  readonly #o: FrontSessionOptions;
  readonly #outbox: LinkOutbox<WorkerMessage>;
  readonly #calls = new Map<number, OpenCall>();
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
          this.#cancel(message.call);
          break;
        case 'ping':
          this.sayPhase(phase);
          break;
        case 'metrics':
          this.#sayMetrics(message.query);
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
    const { guard } = this.#o;
    for (const { live } of this.#calls.values()) guard.run('the cancel of a request', () => live.cancel());
    this.#calls.clear();
  }

  /** A server that cannot cancel it has lost it for the front: nobody waits for the rest. */
  #cancel(call: number): void {
    const open = this.#calls.get(call);
    if (open === undefined) return;
    const error = this.#o.guard.run('the cancel of a request', () => open.live.cancel());
    if (error !== null) open.finish(failed(error));
  }

  /** What the server said of it cannot be told to the front: the request ends. */
  #giveUp(call: number, error: KvTransceiverError): void {
    const open = this.#calls.get(call);
    if (open === undefined) return;
    open.finish(failed(this.#o.guard.caught('what a server said of a request', error)));
    this.#o.guard.run('the cancel of a request', () => open.live.cancel());
  }

  #submit(message: Extract<FrontMessage, { type: 'submit' }>): void {
    const { call, promptTokens, maxTokens, params, transferPolicy, sampling, stopTokens } = message;
    const { guard } = this.#o;
    let count = 0;
    const onToken = (token: number, index: number): void => {
      if (!Number.isInteger(token) || token < 0 || token > MAX_TOKEN)
        this.#giveUp(call, new InternalError(`token ${index} of the answer is ${token}, which is no token`));
      else {
        count = index + 1;
        this.#outbox.say({ type: 'tokens', call, index, tokens: [token] });
      }
    };
    const onContextAnswer = (params: DisaggregatedParams): void => {
      const answer = { type: 'answer', call, params } as const;
      const refusal = refusalOf(answer);
      if (refusal === null) this.#outbox.say(answer);
      else this.#giveUp(call, refusal);
    };
    const say = (result: ServerResult, refused: boolean): void => {
      const { outcome, error, usage = null, contextUsage = null } = result;
      const linkError = error === null ? null : toLink(error);
      const told = { type: 'done', call, tokenCount: count, refused } as const;
      const ended = { ...told, outcome, error: linkError, usage, contextUsage };
      const refusal = refusalOf(ended);
      if (refusal === null) this.#outbox.say(ended);
      else {
        const error = toLink(this.#o.guard.caught('what a server said of a request', refusal));
        this.#outbox.say({ ...told, outcome: 'failed', error, usage: null, contextUsage: null });
      }
    };
    const finish = (result: ServerResult): void => {
      if (this.#calls.delete(call)) say(result, false);
    };
    try {
      if (this.#calls.size >= MAX_CALLS || this.#calls.has(call))
        throw new ResourceError(`this front has ${this.#calls.size} requests here, more than it may`);
      const request = { promptTokens, maxTokens, params, transferPolicy, sampling, stopTokens };
      const live = this.#o.server.submit(request, { onToken, onContextAnswer });
      const ended = live.done.catch((cause: unknown) => failed(guard.caught('a request that a server took', cause)));
      this.#calls.set(call, { live, finish });
      guard.after('the end of a request', ended, finish);
    } catch (error) {
      say(failed(typedError(error, 'the request was refused')), true);
    }
  }

  #sayMetrics(query: number): void {
    const said = this.#metrics().catch((error: unknown) => comment(typedError(error, 'metrics').message));
    this.#o.guard.after('metrics', said, (text) => this.#outbox.say({ type: 'metrics', query, text }, text.length));
  }

  async #metrics(): Promise<string> {
    const text = await this.#o.metrics();
    const sizeBytes = Buffer.byteLength(text);
    return sizeBytes <= MAX_METRICS_BYTES ? text : comment(`${sizeBytes} bytes of metrics do not fit a frame`);
  }
}

/** A line of the Prometheus format that is no metric. */
function comment(text: string): string {
  return `# ${text.replaceAll('\n', ' ')}\n`;
}

/** What the front would refuse in it; null: nothing. */
function refusalOf(message: WorkerMessage): KvTransceiverError | null {
  try {
    checkWorkerMessage(message);
    return null;
  } catch (cause) {
    if (!(cause instanceof WireError)) throw cause;
    return new InternalError(`what the server said cannot be told: ${cause.message}`, { cause });
  }
}

function failed(error: KvTransceiverError): ServerResult {
  return { outcome: 'failed', outputTokens: [], error };
}
