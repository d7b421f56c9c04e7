import type { Clock } from '../../../clock.js';
import type { ForwardResult, ModelEngine, ScheduledBatch } from '../../../executor/model-engine.js';
import type { LlmRequest } from '../../../executor/request.js';

/** Passes forwards through and notes when each request's chunks began and ended. */
export class ChunkClock implements ModelEngine {
  readonly #inner: ModelEngine;
  readonly #clock: Clock;
  readonly #startMs = new WeakMap<LlmRequest, number>();
  readonly #endsMs = new WeakMap<LlmRequest, number[]>();

  get feedsItself(): boolean {
    return this.#inner.feedsItself === true;
  }

  constructor(inner: ModelEngine, clock: Clock) {
    this.#inner = inner;
    this.#clock = clock;
  }

  async forward(batch: ScheduledBatch): Promise<ForwardResult> {
    const nowMs = this.#clock.now();
    for (const { request } of batch.context) {
      if (!this.#startMs.has(request)) this.#startMs.set(request, nowMs);
    }
    const result = await this.#inner.forward(batch);
    const tokens = result.tokens.then((sampled) => {
      const endMs = this.#clock.now();
      for (const { request } of batch.context) {
        const ends = this.#endsMs.get(request) ?? [];
        ends.push(endMs);
        this.#endsMs.set(request, ends);
      }
      return sampled;
    });
    return { event: result.event, tokens };
  }

  /** Null before the request's first forward. */
  prefillOf(request: LlmRequest): { readonly startMs: number; readonly chunkEndsMs: readonly number[] } | null {
    const startMs = this.#startMs.get(request);
    return startMs === undefined ? null : { startMs, chunkEndsMs: this.#endsMs.get(request) ?? [] };
  }
}
