import type { Clock } from '../../../clock.js';
import type { ForwardResult, ModelEngine, ScheduledBatch } from '../../../executor/model-engine.js';
import type { LlmRequest } from '../../../executor/request.js';

/** One chunk of a prompt as the engine ran it. CLOCK_MONOTONIC ms. */
export interface ClockedChunk {
  readonly tokenBegin: number;
  readonly tokenEnd: number;
  /** The executor handed the forward over; its slice is submitted right after. */
  readonly enqueuedMs: number;
  /** Not before the forward in front of it had ended. */
  readonly startMs: number;
  readonly endMs: number;
}

/** What one request's chunks did. */
export interface ClockedPrefill {
  /** The first chunk was handed over. */
  readonly startMs: number;
  readonly chunks: readonly ClockedChunk[];
}

/** Passes forwards through and notes when each request's chunks began and ended. */
export class ChunkClock implements ModelEngine {
  readonly #inner: ModelEngine;
  readonly #clock: Clock;
  readonly #startMs = new WeakMap<LlmRequest, number>();
  readonly #chunks = new WeakMap<LlmRequest, ClockedChunk[]>();
  #lastEndMs = 0;

  get feedsItself(): boolean {
    return this.#inner.feedsItself === true;
  }

  constructor(inner: ModelEngine, clock: Clock) {
    this.#inner = inner;
    this.#clock = clock;
  }

  async forward(batch: ScheduledBatch): Promise<ForwardResult> {
    const enqueuedMs = this.#clock.now();
    for (const { request } of batch.context) {
      if (!this.#startMs.has(request)) this.#startMs.set(request, enqueuedMs);
    }
    const result = await this.#inner.forward(batch);
    const tokens = result.tokens.then((sampled) => {
      const endMs = this.#clock.now();
      // Forwards run one after another, also where the next one was enqueued before this one had ended.
      const startMs = Math.max(enqueuedMs, this.#lastEndMs);
      this.#lastEndMs = endMs;
      for (const { request, chunkStart, chunkEnd } of batch.context) {
        const chunks = this.#chunks.get(request) ?? [];
        chunks.push({ tokenBegin: chunkStart, tokenEnd: chunkEnd, enqueuedMs, startMs, endMs });
        this.#chunks.set(request, chunks);
      }
      return sampled;
    });
    return { event: result.event, tokens };
  }

  /** Null before the request's first forward. */
  prefillOf(request: LlmRequest): ClockedPrefill | null {
    const startMs = this.#startMs.get(request);
    return startMs === undefined ? null : { startMs, chunks: this.#chunks.get(request) ?? [] };
  }
}
