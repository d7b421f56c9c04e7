import type { TinyModelConfig } from '../../../src/executor/engines/tiny/tiny-config.js';
import type { TinyWeights } from '../../../src/executor/engines/tiny/tiny-weights.js';

/** Keys (before rotation) and values of one layer: `[token][kvHead][element]`. */
export interface DenseLayerKv {
  readonly keys: readonly (readonly (readonly number[])[])[];
  readonly values: readonly (readonly (readonly number[])[])[];
}

export interface DenseResult {
  readonly layers: readonly DenseLayerKv[];
  /** After the last token. */
  readonly logits: readonly number[];
}

/**
 * The same model written down once more, for a whole sequence at a time: matrices over all tokens, attention with a mask over all pairs,
 * everything in double precision, no pages, no chunks, no cache.
 * @param roundKv what storing does to an element of a key or value
 */
export function denseForward(
  config: TinyModelConfig,
  weights: TinyWeights,
  tokens: readonly number[],
  roundKv: (value: number) => number,
): DenseResult {
  const { attentionHeads, kvHeads, headDim, modelDim, vocabularySize } = config;
  let stream = tokens.map((token) => rowOf(weights.embedding, token % vocabularySize, modelDim));
  const layers = config.layers.map(({ windowSize, sinkTokens = 0 }, layer): DenseLayerKv => {
    const w = weights.layers[layer];
    if (w === undefined) throw new Error(`no layer ${layer}`);
    const normed = stream.map((x) => rmsNorm(x, w.attentionNorm));
    const heads = (matrix: Float32Array): number[][][] => normed.map((x) => split(times(matrix, x), headDim));
    const queries = heads(w.query);
    const keys = heads(w.key).map((token) => token.map((head) => head.map(roundKv)));
    const values = heads(w.value).map((token) => token.map((head) => head.map(roundKv)));
    const attended = queries.map((query, p) =>
      query.flatMap((q, head) => {
        const kvHead = Math.floor(head / (attentionHeads / kvHeads));
        const sees = tokens.map((_, j) => j <= p && (windowSize === null || j > p - windowSize || j < sinkTokens));
        const scores = tokens.map((_, j) =>
          sees[j] === true
            ? inner(rotated(q, p), rotated(keys[j]?.[kvHead] ?? [], j)) / Math.sqrt(headDim)
            : Number.NEGATIVE_INFINITY,
        );
        const highest = Math.max(...scores);
        const shares = scores.map((score) => Math.exp(score - highest));
        const total = shares.reduce((a, b) => a + b);
        return q.map(
          (_, i) =>
            inner(
              shares,
              values.map((token) => token[kvHead]?.[i] ?? 0),
            ) / total,
        );
      }),
    );
    stream = stream.map((x, t) => plus(x, times(w.output, attended[t] ?? [])));
    stream = stream.map((x) => {
      const n = rmsNorm(x, w.mlpNorm);
      const up = times(w.up, n);
      const hidden = times(w.gate, n).map((g, i) => (g / (1 + Math.exp(-g))) * (up[i] ?? 0));
      return plus(x, times(w.down, hidden));
    });
    return { keys, values };
  });
  return { layers, logits: times(weights.head, rmsNorm(stream.at(-1) ?? [], weights.finalNorm)) };
}

/** Greedy continuation of a prompt. */
export function denseGreedy(
  config: TinyModelConfig,
  weights: TinyWeights,
  prompt: readonly number[],
  count: number,
  roundKv: (value: number) => number,
): number[] {
  const tokens = [...prompt];
  for (let i = 0; i < count; i++) {
    const { logits } = denseForward(config, weights, tokens, roundKv);
    tokens.push(logits.indexOf(Math.max(...logits)));
  }
  return tokens.slice(prompt.length);
}

function rowOf(matrix: Float32Array, row: number, width: number): number[] {
  return [...matrix.subarray(row * width, (row + 1) * width)];
}

const rowsOf = new WeakMap<Float32Array, number[][]>();

function times(matrix: Float32Array, x: readonly number[]): number[] {
  let rows = rowsOf.get(matrix);
  if (rows === undefined) {
    rows = Array.from({ length: matrix.length / x.length }, (_, row) => rowOf(matrix, row, x.length));
    rowsOf.set(matrix, rows);
  }
  return rows.map((row) => inner(row, x));
}

function inner(a: readonly number[], b: readonly number[]): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += (a[i] ?? 0) * (b[i] ?? 0);
  return sum;
}

function plus(a: readonly number[], b: readonly number[]): number[] {
  return a.map((value, i) => value + (b[i] ?? 0));
}

function split(values: readonly number[], width: number): number[][] {
  return Array.from({ length: values.length / width }, (_, i) => values.slice(i * width, (i + 1) * width));
}

function rmsNorm(x: readonly number[], weight: Float32Array): number[] {
  const rms = Math.sqrt(inner(x, x) / x.length + 1e-6);
  return x.map((value, i) => (value / rms) * (weight[i] ?? 0));
}

/** As a complex number, element i + i * element (i + half), turned by `position * 100 ** (-2i / headDim)`. */
function rotated(vector: readonly number[], position: number): number[] {
  const half = vector.length / 2;
  const turned = [...vector];
  for (let i = 0; i < half; i++) {
    const angle = position * 100 ** ((-2 * i) / vector.length);
    const [re, im] = [vector[i] ?? 0, vector[i + half] ?? 0];
    turned[i] = re * Math.cos(angle) - im * Math.sin(angle);
    turned[i + half] = re * Math.sin(angle) + im * Math.cos(angle);
  }
  return turned;
}
