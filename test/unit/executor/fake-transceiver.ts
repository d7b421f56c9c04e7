import type { ReadyEvent } from '../../../src/agent/transfer-agent.js';
import type { KvTransceiverError } from '../../../src/errors.js';
import type { LlmRequest } from '../../../src/executor/request.js';
import {
  type CacheTransceiver,
  NO_TAIL,
  type SendReceipt,
  type Settled,
} from '../../../src/session/cache-transceiver.js';

/** Says what the executor called, in order, and plays whatever outcome a test scripts. */
export class FakeTransceiver implements CacheTransceiver {
  readonly #log: string[];
  readonly #settled: Settled[] = [];
  #listener: () => void = () => {};
  /** Events the slices were sent behind, in order. */
  readonly after: (ReadyEvent | null)[] = [];
  readonly ready = new Set<number>();
  allReady = true;
  readyCalls = 0;
  cancelResult = true;
  sendFailure: ((request: LlmRequest) => Error | null) | null = null;
  prefixFailure: Error | null = null;
  receiveFailure: Error | null = null;
  onFirstTokens: () => void = () => {};
  receipt: SendReceipt | null = { beginBlock: 0, endBlock: 1, isLast: true };

  constructor(log: string[]) {
    this.#log = log;
  }

  respondAndSendAsync(request: LlmRequest, options: { readonly after: ReadyEvent | null }): SendReceipt | null {
    const failure = this.sendFailure?.(request) ?? null;
    if (failure !== null) throw failure;
    this.after.push(options.after);
    this.#log.push(`send ${request.id} [${request.chunkStart},${request.chunkEnd})`);
    return this.receipt;
  }

  sendEarlyPrefix(request: LlmRequest): SendReceipt | null {
    if (this.prefixFailure !== null) throw this.prefixFailure;
    this.#log.push(`prefix ${request.id} ${request.prepopulatedLen}`);
    return { beginBlock: 0, endBlock: 1, isLast: false };
  }

  requestAndReceiveAsync(request: LlmRequest): void {
    if (this.receiveFailure !== null) throw this.receiveFailure;
    this.#log.push(`receive ${request.id} ${request.prepopulatedLen}`);
  }

  receiverReady(request: LlmRequest): boolean {
    this.readyCalls += 1;
    return this.allReady || this.ready.has(request.id);
  }

  cancelRequest(request: LlmRequest, reason: string): boolean {
    this.#log.push(`cancel ${request.id} ${reason}`);
    return this.cancelResult;
  }

  firstTokensKnown(): void {
    this.onFirstTokens();
  }

  takeSettled(): readonly Settled[] {
    return this.#settled.splice(0);
  }

  onActivity(listener: () => void): void {
    this.#listener = listener;
  }

  activity(): void {
    this.#listener();
  }

  settle(
    request: LlmRequest,
    outcome: Settled['outcome'] = 'completed',
    rest: { error?: KvTransceiverError; firstTokens?: readonly number[] } = {},
  ): void {
    this.#settled.push({
      request,
      side: request.disagg?.requestType === 'generation_only' ? 'generation' : 'context',
      outcome,
      error: rest.error ?? null,
      firstTokens: rest.firstTokens ?? [],
      salvageableTokens: 0,
      timings: {
        startedAtMs: 0,
        firstPostAtMs: null,
        lastSliceSubmittedAtMs: null,
        settledAtMs: 0,
        slices: 0,
        bytesPlanned: 0,
        bytesDone: 0,
        perSlice: [],
        tail: NO_TAIL,
      },
    });
    this.#listener();
  }
}
