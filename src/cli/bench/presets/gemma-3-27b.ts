import type { ModelPreset } from './model-preset.js';
import { slidingLayers } from './sliding-layers.js';

const LAYER_COUNT = 62;
const SLIDING_WINDOW_PATTERN = 6;

export const GEMMA_3_27B: ModelPreset = {
  name: 'gemma-3-27b',
  layerCount: LAYER_COUNT,
  attentionHeads: 32,
  attentionHeadDim: 128,
  cache: { kind: 'attention', kvHeads: 16, headDim: 128 },
  dtype: 'bfloat16',
  dtypeBytes: 2,
  // Layer i attends to the whole prompt iff (i + 1) is a multiple of the pattern: ten of 62.
  sliding: {
    windowSize: 1024,
    layers: slidingLayers(LAYER_COUNT, (layer) => (layer + 1) % SLIDING_WINDOW_PATTERN !== 0),
  },
  hybrid: null,
  parameterCount: 27e9,
  activeParameterCount: 27e9,
  sources: [
    'google/gemma-3-27b-it config.json: text_config.num_hidden_layers 62, num_attention_heads 32, num_key_value_heads 16, head_dim 128',
    'google/gemma-3-27b-it config.json: sliding_window 1024, torch_dtype bfloat16; Gemma3TextConfig: sliding_window_pattern 6 by default',
    'google/gemma-3-27b-it model card: 27 B parameters',
  ],
};
