import { SeededRandom } from '../../../cache/seeded-random.js';
import { checkTinyModel, type TinyModelConfig } from './tiny-config.js';

/** Weights of one layer. Matrices are rows of outputs: `[outputs][inputs]`. */
export interface TinyLayerWeights {
  readonly attentionNorm: Float32Array;
  /** `[attentionHeads * headDim][modelDim]` */
  readonly query: Float32Array;
  /** `[kvHeads * headDim][modelDim]` */
  readonly key: Float32Array;
  readonly value: Float32Array;
  /** `[modelDim][attentionHeads * headDim]` */
  readonly output: Float32Array;
  readonly mlpNorm: Float32Array;
  /** `[mlpDim][modelDim]` */
  readonly gate: Float32Array;
  readonly up: Float32Array;
  /** `[modelDim][mlpDim]` */
  readonly down: Float32Array;
}

/** All numbers of a model. */
export interface TinyWeights {
  /** `[vocabularySize][modelDim]` */
  readonly embedding: Float32Array;
  readonly layers: readonly TinyLayerWeights[];
  readonly finalNorm: Float32Array;
  /** `[vocabularySize][modelDim]` */
  readonly head: Float32Array;
}

/**
 * Standard deviations of what a matrix makes of inputs of 1. What attention adds to a token outweighs the token's own embedding, so that
 * the tokens that come out depend on every page of the cache and not on the newest token alone.
 */
const GAIN = { query: 1.3, key: 1.3, value: 2, output: 4, gate: 1.5, up: 1.5, down: 2, head: 1, embedding: 1 } as const;

/** Draws a model's weights; the same config always gives the same ones. @throws ConfigError for a config out of range */
export function drawTinyWeights(config: TinyModelConfig): TinyWeights {
  checkTinyModel(config);
  const random = new SeededRandom(config.seed);
  const { vocabularySize, modelDim, attentionHeads, kvHeads, headDim, mlpDim } = config;
  const matrix = (outputs: number, inputs: number, gain: number): Float32Array => {
    // Uniform numbers in [-1, 1) have a variance of 1/3.
    const scale = gain * Math.sqrt(3 / inputs);
    return Float32Array.from({ length: outputs * inputs }, () => (random.below(2 ** 24) / 2 ** 23 - 1) * scale);
  };
  const norm = (): Float32Array =>
    Float32Array.from({ length: modelDim }, () => 0.75 + random.below(2 ** 24) / 2 ** 25);
  const embedding = matrix(vocabularySize, modelDim, GAIN.embedding * Math.sqrt(modelDim));
  const layers = config.layers.map(
    (): TinyLayerWeights => ({
      attentionNorm: norm(),
      query: matrix(attentionHeads * headDim, modelDim, GAIN.query),
      key: matrix(kvHeads * headDim, modelDim, GAIN.key),
      value: matrix(kvHeads * headDim, modelDim, GAIN.value),
      output: matrix(modelDim, attentionHeads * headDim, GAIN.output),
      mlpNorm: norm(),
      gate: matrix(mlpDim, modelDim, GAIN.gate),
      up: matrix(mlpDim, modelDim, GAIN.up),
      down: matrix(modelDim, mlpDim, GAIN.down),
    }),
  );
  return { embedding, layers, finalNorm: norm(), head: matrix(vocabularySize, modelDim, GAIN.head) };
}
