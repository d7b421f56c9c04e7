import type { LlmRequest } from './request.js';

/** Signed, so that the value of a long prompt is a small integer all the way. */
const FNV_OFFSET = 0x811c9dc5 | 0;
const FNV_PRIME = 0x01000193;

/** FNV-1a over 32-bit words: cheap, and enough to notice what was not meant to happen. */
export class WordHash {
  #value = FNV_OFFSET;

  /** Unsigned 32 bits. */
  get value(): number {
    return this.#value >>> 0;
  }

  add(word: number): void {
    this.#value = Math.imul(this.#value ^ word, FNV_PRIME);
  }
}

const TYPES = ['context_only', 'generation_only', 'context_and_generation'] as const;

/** Of everything that decides how a request is scheduled: equal on every rank that was given the same request. */
export function requestDigest(request: LlmRequest): number {
  const { disagg, transferPolicy: policy, promptTokens } = request;
  const hash = new WordHash();
  hash.add(promptTokens.length);
  for (const token of promptTokens) hash.add(token);
  hash.add(request.maxTokens);
  hash.add(request.stopTokens.length);
  for (const token of request.stopTokens) hash.add(token);
  hash.add((policy.pipelined ? 1 : 0) + (policy.earlyPrefix ? 2 : 0));
  hash.add(disagg === null ? -1 : TYPES.indexOf(disagg.requestType));
  hash.add(disagg?.scheduleStyle === 'generation_first' ? 1 : 0);
  return hash.value;
}
