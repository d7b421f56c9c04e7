import type { KvCacheManager } from '../cache/kv-cache-manager.js';
import type { StepCheck } from '../rank-group/rank-report.js';
import type { LlmRequest } from './request.js';
import { WordHash } from './request-digest.js';
import { decodePosition, type StepPlan } from './scheduler.js';

/**
 * Role: what a rank tells the others of its last step, so that ranks which parted notice at the next one and can say in what.
 * Why: ranks with different schedules would wait for each other in the model's collectives, and their pages would not match.
 */
export class ScheduleCheck {
  readonly #cache: KvCacheManager;
  readonly #hash = new WordHash();
  #prompts = 0;
  #promptTokens = 0;
  #decodes = 0;
  #receives = 0;

  constructor(cache: KvCacheManager) {
    this.#cache = cache;
  }

  planned({ context, generation }: StepPlan): void {
    this.#prompts = context.length;
    this.#decodes = generation.length;
    this.#promptTokens = 0;
    for (const { request, chunkStart, chunkEnd } of context) {
      this.#promptTokens += chunkEnd - chunkStart;
      this.#hash.add(request.id);
      this.#hash.add(chunkStart);
      this.#hash.add(chunkEnd);
    }
    for (const request of generation) {
      this.#hash.add(-request.id);
      this.#hash.add(decodePosition(request));
    }
  }

  receivesPlanned(requests: readonly LlmRequest[]): void {
    this.#receives = requests.length;
    for (const request of requests) this.#hash.add(~request.id);
  }

  /** `live`: requests that all ranks took. */
  snapshot(live: number): StepCheck {
    let freeSlots = 0;
    for (const { free, reusable } of this.#cache.stats()) freeSlots += free + reusable;
    return {
      planHash: this.#hash.value,
      prompts: this.#prompts,
      promptTokens: this.#promptTokens,
      decodes: this.#decodes,
      receives: this.#receives,
      freeSlots,
      live,
    };
  }
}
