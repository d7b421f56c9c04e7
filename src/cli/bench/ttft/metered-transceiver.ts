import type { ReadyEvent } from '../../../agent/transfer-agent.js';
import type { LlmRequest } from '../../../executor/request.js';
import type { CacheTransceiver, SendReceipt, Settled } from '../../../session/cache-transceiver.js';
import type { TransferLedger } from '../../../session/transfer-ledger.js';

/** Passes every verb through, and keeps each request's outcome for the report: the executor takes outcomes only once. */
export class MeteredTransceiver implements CacheTransceiver {
  readonly ledger?: TransferLedger;
  readonly #inner: CacheTransceiver;
  readonly #onSettled: (settled: Settled) => void;

  constructor(inner: CacheTransceiver, onSettled: (settled: Settled) => void) {
    this.#inner = inner;
    this.#onSettled = onSettled;
    if (inner.ledger !== undefined) this.ledger = inner.ledger;
  }

  respondAndSendAsync(request: LlmRequest, options: { readonly after: ReadyEvent | null }): SendReceipt | null {
    return this.#inner.respondAndSendAsync(request, options);
  }

  sendEarlyPrefix(request: LlmRequest, options: { readonly after: ReadyEvent | null }): SendReceipt | null {
    return this.#inner.sendEarlyPrefix(request, options);
  }

  requestAndReceiveAsync(request: LlmRequest): void {
    this.#inner.requestAndReceiveAsync(request);
  }

  receiverReady(request: LlmRequest): boolean {
    return this.#inner.receiverReady(request);
  }

  cancelRequest(request: LlmRequest, reason: string): boolean {
    return this.#inner.cancelRequest(request, reason);
  }

  firstTokensKnown(): void {
    this.#inner.firstTokensKnown?.();
  }

  takeSettled(): readonly Settled[] {
    const settled = this.#inner.takeSettled();
    for (const one of settled) this.#onSettled(one);
    return settled;
  }

  onActivity(listener: () => void): void {
    this.#inner.onActivity(listener);
  }
}
