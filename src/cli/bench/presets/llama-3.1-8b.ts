import type { ModelPreset } from './model-preset.js';

export const LLAMA_3_1_8B: ModelPreset = {
  name: 'llama-3.1-8b',
  layerCount: 32,
  attentionHeads: 32,
  attentionHeadDim: 128,
  cache: { kind: 'attention', kvHeads: 8, headDim: 128 },
  dtype: 'bfloat16',
  dtypeBytes: 2,
  sliding: null,
  hybrid: null,
  parameterCount: 8.03e9,
  activeParameterCount: 8.03e9,
  sources: [
    'meta-llama/Llama-3.1-8B config.json: num_hidden_layers 32, num_attention_heads 32, num_key_value_heads 8',
    'meta-llama/Llama-3.1-8B config.json: hidden_size 4096 (4096 / 32 = head dim 128), torch_dtype bfloat16',
    'meta-llama/Llama-3.1-8B model card: 8.03 B parameters',
  ],
};
