import type { ModelPreset } from './model-preset.js';
import { slidingLayers } from './sliding-layers.js';

const LAYER_COUNT = 32;

export const MISTRAL_7B: ModelPreset = {
  name: 'mistral-7b',
  layerCount: LAYER_COUNT,
  attentionHeads: 32,
  attentionHeadDim: 128,
  cache: { kind: 'attention', kvHeads: 8, headDim: 128 },
  dtype: 'bfloat16',
  dtypeBytes: 2,
  // Version 0.1: every layer has the window; later versions have none.
  sliding: { windowSize: 4096, layers: slidingLayers(LAYER_COUNT, () => true) },
  hybrid: null,
  parameterCount: 7.24e9,
  activeParameterCount: 7.24e9,
  sources: [
    'mistralai/Mistral-7B-v0.1 config.json: num_hidden_layers 32, num_attention_heads 32, num_key_value_heads 8, sliding_window 4096',
    'mistralai/Mistral-7B-v0.1 config.json: hidden_size 4096 (4096 / 32 = head dim 128), torch_dtype bfloat16',
    'mistralai/Mistral-7B-v0.1 model card: 7.24 B parameters (safetensors)',
  ],
};
