/** A small real transformer on the CPU, to prove transfers by the tokens that come out. */
export type { Sampling } from './sampling.js';
export { LocalTensorGroup, type TensorForward, type TensorGroup } from './tensor-group.js';
export { TINY_MODEL, type TinyLayerSpan, type TinyModelConfig, tinyLayerGroups } from './tiny-config.js';
export { TinyEngine, type TinyEngineOptions } from './tiny-engine.js';
export { TinyModel } from './tiny-model.js';
export type { TinyLayerWeights, TinyWeights } from './tiny-weights.js';
