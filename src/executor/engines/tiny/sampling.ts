import { SeededRandom } from '../../../cache/seeded-random.js';
import { ArgumentError } from '../../../errors.js';

/** How the next token is chosen. */
export type Sampling =
  | { readonly kind: 'greedy' }
  /** The same seed draws the same token at the same position, on whatever server the request is by then. */
  | {
      readonly kind: 'seeded';
      readonly seed: number;
      readonly temperature: number;
      /** The most likely tokens that together have this share are drawn from. Default 1: all. */
      readonly topP?: number;
    };

export const GREEDY: Sampling = Object.freeze({ kind: 'greedy' });

/**
 * The token that follows.
 * @param position of the sampled token in the whole sequence
 * @throws ArgumentError for a temperature that is not positive or a seed that is no integer
 */
export function sampleToken(logits: Float32Array, sampling: Sampling, position: number): number {
  let best = 0;
  for (let token = 1; token < logits.length; token++) {
    if ((logits[token] as number) > (logits[best] as number)) best = token;
  }
  if (sampling.kind === 'greedy') return best;
  const { seed, temperature } = sampling;
  if (!(temperature > 0) || !Number.isSafeInteger(seed)) {
    throw new ArgumentError(
      `sampling: temperature is ${temperature}, seed is ${seed}; they must be a positive number and an integer`,
    );
  }
  const highest = logits[best] as number;
  const weights = new Float64Array(logits.length);
  let total = 0;
  for (let token = 0; token < logits.length; token++) {
    const weight = Math.exp(((logits[token] as number) - highest) / temperature);
    weights[token] = weight;
    total += weight;
  }
  if (sampling.topP !== undefined && sampling.topP < 1) total = keepNucleus(weights, total * sampling.topP);
  const random = new SeededRandom(Math.imul(seed, 0x9e3779b1) ^ Math.imul(position + 1, 0x85ebca6b));
  let left = (random.below(2 ** 31) / 2 ** 31) * total;
  for (let token = 0; token < weights.length; token++) {
    left -= weights[token] as number;
    if (left < 0) return token;
  }
  // What rounding left over.
  return best;
}

/** Zeroes all but the heaviest that together reach `enough`, at least one. @returns the sum of what is left */
function keepNucleus(weights: Float64Array, enough: number): number {
  // Equal weights in the order of their tokens, so that every server draws alike.
  const order = Array.from(weights.keys()).sort((a, b) => (weights[b] as number) - (weights[a] as number) || a - b);
  let kept = 0;
  let count = 0;
  while (count < order.length && (count === 0 || kept < enough)) kept += weights[order[count++] as number] as number;
  for (const token of order.slice(count)) weights[token] = 0;
  return kept;
}
