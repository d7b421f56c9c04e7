import type { ModelPreset } from './model-preset.js';

export const LLAMA_3_3_70B: ModelPreset = {
  name: 'llama-3.3-70b',
  layerCount: 80,
  attentionHeads: 64,
  attentionHeadDim: 128,
  cache: { kind: 'attention', kvHeads: 8, headDim: 128 },
  dtype: 'bfloat16',
  dtypeBytes: 2,
  sliding: null,
  hybrid: null,
  parameterCount: 70.6e9,
  activeParameterCount: 70.6e9,
  sources: [
    'meta-llama/Llama-3.3-70B-Instruct config.json: num_hidden_layers 80, num_attention_heads 64, num_key_value_heads 8',
    'meta-llama/Llama-3.3-70B-Instruct config.json: hidden_size 8192 (8192 / 64 = head dim 128), torch_dtype bfloat16',
    'meta-llama/Llama-3.3-70B-Instruct model card: 70.6 B parameters (safetensors)',
  ],
};

/** What one of eight tensor parallel ranks holds: the figures of one GPU of such a server, on a machine with room for one. */
export const LLAMA_3_3_70B_TP8_RANK: ModelPreset = {
  ...LLAMA_3_3_70B,
  name: 'llama-3.3-70b-tp8-rank',
  attentionHeads: 8,
  cache: { kind: 'attention', kvHeads: 1, headDim: 128 },
  parameterCount: 70.6e9 / 8,
  activeParameterCount: 70.6e9 / 8,
  sources: [...LLAMA_3_3_70B.sources, 'one tensor parallel rank of eight: heads, KV heads and parameters / 8'],
};
