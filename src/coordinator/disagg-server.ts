import type { KvTransceiverError } from '../errors.js';
import type { RequestOutcome } from '../executor/executor-events.js';
import type { DisaggregatedParams, PromptUsage, SamplingParams, TransferPolicy } from '../executor/request.js';

/** One request as the coordinator hands it to a server. */
export interface ServerRequest {
  readonly promptTokens: Uint32Array;
  /** Tokens to generate, the context server's first one included. */
  readonly maxTokens: number;
  readonly params: DisaggregatedParams;
  /** Null: the server's own default. */
  readonly transferPolicy: TransferPolicy | null;
  /** Null or absent: the engine's default. */
  readonly sampling?: SamplingParams | null;
  /** Tokens that end the answer when they are sampled. Left out: none. */
  readonly stopTokens?: readonly number[];
}

/** How a request ended at a server. */
export interface ServerResult {
  readonly outcome: RequestOutcome;
  readonly outputTokens: readonly number[];
  /** Null exactly unless failed. */
  readonly error: KvTransceiverError | null;
  /** Of this server. Left out by servers that do not count. */
  readonly usage?: PromptUsage;
  /**
   * Of a generation server: what the context server spent on the prompt, which came with the pages. The context server's own word may be long in
   * coming, because it is busy with other prompts. Left out: it is not known here.
   */
  readonly contextUsage?: PromptUsage;
}

/** Whether a server takes requests. */
export interface ServerCondition {
  readonly phase: 'ready' | 'draining' | 'down';
  /** Changes when another process answers under the server's name: what the earlier one had cached is gone. */
  readonly incarnation: bigint;
  /** For people; '' when ready. */
  readonly reason: string;
}

/** What a server tells the coordinator about one request. */
export interface ServerEvents {
  /** Context first: comes at most once, before the call is done. */
  onContextAnswer?(params: DisaggregatedParams): void;
  /** Tokens for the user, the first one (index 0) included. */
  onToken?(token: number, index: number): void;
}

/** One request on one server. */
export interface ServerCall {
  /** Resolves once; never rejects. */
  readonly done: Promise<ServerResult>;
  /** Idempotent; a no-op once done. */
  cancel(): void;
}

/** One context or generation server as a coordinator sees it, in this process or behind a connection. */
export interface DisaggServer {
  readonly name: string;
  /**
   * Control endpoint of one of its ranks: where a context server is asked for pages, and what names the instance that may ask for them. Null
   * when it is not known; pages that a server without one generates from are whoever's asks first.
   */
  readonly infoEndpoint: string | null;
  /** What is known of it right now, without asking it. Left out: always ready. */
  condition?(): ServerCondition;
  /** @throws KvTransceiverError when the server refuses the request at once; it then has no call */
  submit(request: ServerRequest, events: ServerEvents): ServerCall;
}
