/** Keys and values of the tokens that some rows of one request see, in a layer: `[token][head][element]`, of this rank's KV heads. */
export interface VisibleKv {
  readonly key: Float32Array;
  readonly value: Float32Array;
  readonly headDim: number;
  readonly kvHeads: number;
  /** Tokens `[0, sinkCount)` come first, then those from `begin` on. */
  readonly sinkCount: number;
  readonly begin: number;
}

/** What the token at `position` sees. */
export interface Sight {
  readonly position: number;
  readonly windowSize: number | null;
  readonly sinkTokens: number;
}

/** Of one call at a time; grows to the longest. */
let scratch = new Float64Array(256);

/**
 * Softmax-weighted sum of the values that one query sees, written to `out` at `offset`. Tokens are taken in the order of their positions,
 * whatever part of the cache holds them.
 */
export function attend(
  query: Float32Array,
  queryOffset: number,
  kvHead: number,
  kv: VisibleKv,
  { position, windowSize, sinkTokens }: Sight,
  out: Float32Array,
  offset: number,
): void {
  const { headDim, kvHeads, sinkCount, begin, key, value } = kv;
  const windowBegin = windowSize === null ? 0 : Math.max(0, position - windowSize + 1);
  const sinkEnd = Math.min(sinkTokens, windowBegin);
  const count = sinkEnd + position + 1 - windowBegin;
  const rowOf = (index: number): number => {
    const token = index < sinkEnd ? index : index - sinkEnd + windowBegin;
    const row = token < sinkCount ? token : token - begin + sinkCount;
    return (row * kvHeads + kvHead) * headDim;
  };
  if (scratch.length < count + headDim) scratch = new Float64Array(2 * (count + headDim));
  const scores = scratch;
  const scale = 1 / Math.sqrt(headDim);
  let highest = -Infinity;
  for (let index = 0; index < count; index++) {
    const row = rowOf(index);
    let score = 0;
    for (let i = 0; i < headDim; i++) score += (query[queryOffset + i] as number) * (key[row + i] as number);
    scores[index] = score * scale;
    highest = Math.max(highest, score * scale);
  }
  const sums = scores.subarray(count, count + headDim).fill(0);
  let total = 0;
  for (let index = 0; index < count; index++) {
    const row = rowOf(index);
    const weight = Math.exp((scores[index] as number) - highest);
    total += weight;
    for (let i = 0; i < headDim; i++) sums[i] = (sums[i] as number) + weight * (value[row + i] as number);
  }
  for (let i = 0; i < headDim; i++) out[offset + i] = (sums[i] as number) / total;
}
