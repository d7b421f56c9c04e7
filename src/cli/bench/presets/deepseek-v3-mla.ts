import type { ModelPreset } from './model-preset.js';

export const DEEPSEEK_V3_MLA: ModelPreset = {
  name: 'deepseek-v3-mla',
  layerCount: 61,
  attentionHeads: 128,
  attentionHeadDim: 192,
  cache: { kind: 'latent', latentDim: 512, ropeDim: 64 },
  dtype: 'bfloat16',
  dtypeBytes: 2,
  sliding: null,
  hybrid: null,
  parameterCount: 671e9,
  activeParameterCount: 37e9,
  sources: [
    'deepseek-ai/DeepSeek-V3 config.json: num_hidden_layers 61, num_attention_heads 128, torch_dtype bfloat16',
    'deepseek-ai/DeepSeek-V3 config.json: kv_lora_rank 512, qk_rope_head_dim 64, qk_nope_head_dim 128',
    'deepseek-ai/DeepSeek-V3 model card: 671 B parameters, 37 B activated per token',
  ],
};
