import type { TinyModelConfig } from './tiny-config.js';
import { drawTinyWeights, type TinyLayerWeights, type TinyWeights } from './tiny-weights.js';

const NORM_EPSILON = 1e-6;
/** Low: every pair of elements turns visibly within the few hundred tokens such a model is run on. */
const ROTARY_BASE = 100;

/** Heads `[begin, end)`. */
export interface HeadRange {
  readonly begin: number;
  readonly end: number;
}

/**
 * Role: the arithmetic of one token in a decoder of RMSNorm, rotary positions, grouped queries and a gated MLP. Holds weights, no state.
 * Ordering: each function handles one token and sums in one fixed order in double precision, rounded to float32 once per element. What
 *   comes out for a token therefore does not depend on which other tokens, chunks or ranks there are.
 */
export class TinyModel {
  readonly config: TinyModelConfig;
  readonly weights: TinyWeights;
  readonly #frequencies: readonly number[];
  /** By position: cosine and sine of each pair. */
  readonly #turns: Float64Array[] = [];
  readonly #normed: Float32Array;
  readonly #hidden: Float32Array;

  /** @throws ConfigError for a config out of range */
  constructor(config: TinyModelConfig) {
    this.config = config;
    this.weights = drawTinyWeights(config);
    const { headDim, modelDim, mlpDim } = config;
    this.#frequencies = Array.from({ length: headDim / 2 }, (_, pair) => ROTARY_BASE ** ((-2 * pair) / headDim));
    this.#normed = new Float32Array(modelDim);
    this.#hidden = new Float32Array(mlpDim);
  }

  /** Writes the residual stream that a token starts with, `modelDim` elements. */
  embed(token: number, x: Float32Array): void {
    const { modelDim, vocabularySize } = this.config;
    const row = (token % vocabularySize) * modelDim;
    x.set(this.weights.embedding.subarray(row, row + modelDim));
  }

  /** Rotated queries of some heads, keys (not rotated yet) and values of some KV heads, `heads * headDim` elements each. */
  project(
    layer: number,
    position: number,
    x: Float32Array,
    heads: HeadRange,
    kvHeads: HeadRange,
    out: { readonly query: Float32Array; readonly key: Float32Array; readonly value: Float32Array },
  ): void {
    const { headDim } = this.config;
    const weights = this.#layer(layer);
    normalize(x, weights.attentionNorm, this.#normed);
    multiply(weights.query, this.#normed, out.query, heads.begin * headDim);
    multiply(weights.key, this.#normed, out.key, kvHeads.begin * headDim);
    multiply(weights.value, this.#normed, out.value, kvHeads.begin * headDim);
    this.rotate(out.query, position);
  }

  /** Turns elements `i` and `i + headDim / 2` of each head by an angle that grows with the position. */
  rotate(vectors: Float32Array, position: number): void {
    const { headDim } = this.config;
    const pairs = headDim / 2;
    const turns = this.#turnsAt(position);
    for (let head = 0; head < vectors.length; head += headDim)
      for (let pair = 0; pair < pairs; pair++) {
        const [cos, sin] = [turns[2 * pair] as number, turns[2 * pair + 1] as number];
        const [low, high] = [head + pair, head + pair + pairs];
        const [a, b] = [vectors[low] as number, vectors[high] as number];
        vectors[low] = a * cos - b * sin;
        vectors[high] = a * sin + b * cos;
      }
  }

  /** Adds to the residual stream what the heads attended to (all heads, in order), then the MLP. */
  finishLayer(layer: number, attended: Float32Array, x: Float32Array): void {
    const { output, mlpNorm, gate, up, down } = this.#layer(layer);
    addProduct(output, attended, x);
    normalize(x, mlpNorm, this.#normed);
    for (let unit = 0; unit < this.#hidden.length; unit++) {
      const gated = dot(gate, unit, this.#normed);
      this.#hidden[unit] = (gated / (1 + Math.exp(-gated))) * dot(up, unit, this.#normed);
    }
    addProduct(down, this.#hidden, x);
  }

  /** One score per token of the vocabulary. */
  logits(x: Float32Array): Float32Array {
    const scores = new Float32Array(this.config.vocabularySize);
    normalize(x, this.weights.finalNorm, this.#normed);
    multiply(this.weights.head, this.#normed, scores, 0);
    return scores;
  }

  #layer(layer: number): TinyLayerWeights {
    return this.weights.layers[layer] as TinyLayerWeights;
  }

  #turnsAt(position: number): Float64Array {
    let turns = this.#turns[position];
    if (turns === undefined) {
      turns = Float64Array.from(this.#frequencies.flatMap((f) => [Math.cos(position * f), Math.sin(position * f)]));
      this.#turns[position] = turns;
    }
    return turns;
  }
}

function normalize(x: Float32Array, weight: Float32Array, out: Float32Array): void {
  let squares = 0;
  for (let i = 0; i < x.length; i++) squares += (x[i] as number) ** 2;
  const scale = 1 / Math.sqrt(squares / x.length + NORM_EPSILON);
  for (let i = 0; i < x.length; i++) out[i] = (x[i] as number) * scale * (weight[i] as number);
}

/** `out` = rows of the matrix from `firstRow` on, times `x`. */
function multiply(matrix: Float32Array, x: Float32Array, out: Float32Array, firstRow: number): void {
  for (let row = 0; row < out.length; row++) out[row] = dot(matrix, firstRow + row, x);
}

function addProduct(matrix: Float32Array, x: Float32Array, out: Float32Array): void {
  for (let row = 0; row < out.length; row++) out[row] = (out[row] as number) + dot(matrix, row, x);
}

function dot(matrix: Float32Array, row: number, x: Float32Array): number {
  const base = row * x.length;
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += (matrix[base + i] as number) * (x[i] as number);
  return sum;
}
