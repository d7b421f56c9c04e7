import type { ModelPreset } from './model-preset.js';

export const QWEN3_32B: ModelPreset = {
  name: 'qwen3-32b',
  layerCount: 64,
  attentionHeads: 64,
  attentionHeadDim: 128,
  cache: { kind: 'attention', kvHeads: 8, headDim: 128 },
  dtype: 'bfloat16',
  dtypeBytes: 2,
  sliding: null,
  hybrid: null,
  parameterCount: 32.8e9,
  activeParameterCount: 32.8e9,
  sources: [
    'Qwen/Qwen3-32B config.json: num_hidden_layers 64, num_attention_heads 64, num_key_value_heads 8, head_dim 128',
    'Qwen/Qwen3-32B config.json: torch_dtype bfloat16, use_sliding_window false',
    'Qwen/Qwen3-32B model card: 32.8 B parameters',
  ],
};
