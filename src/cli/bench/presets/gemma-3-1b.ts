import type { ModelPreset } from './model-preset.js';
import { slidingLayers } from './sliding-layers.js';

const LAYER_COUNT = 26;
const SLIDING_WINDOW_PATTERN = 6;

export const GEMMA_3_1B: ModelPreset = {
  name: 'gemma-3-1b',
  layerCount: LAYER_COUNT,
  attentionHeads: 4,
  attentionHeadDim: 256,
  cache: { kind: 'attention', kvHeads: 1, headDim: 256 },
  dtype: 'bfloat16',
  dtypeBytes: 2,
  // Layer i attends to the whole prompt iff (i + 1) is a multiple of the pattern: layers 5, 11, 17 and 23.
  sliding: {
    windowSize: 512,
    layers: slidingLayers(LAYER_COUNT, (layer) => (layer + 1) % SLIDING_WINDOW_PATTERN !== 0),
  },
  hybrid: null,
  parameterCount: 1.0e9,
  activeParameterCount: 1.0e9,
  sources: [
    'google/gemma-3-1b-it config.json: num_hidden_layers 26, num_attention_heads 4, num_key_value_heads 1, head_dim 256',
    'google/gemma-3-1b-it config.json: sliding_window 512, sliding_window_pattern 6, torch_dtype bfloat16',
    'google/gemma-3-1b-it model card: 1 B parameters (1.00 B with embeddings)',
  ],
};
