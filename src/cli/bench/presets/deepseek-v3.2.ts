import { DEEPSEEK_V3_MLA } from './deepseek-v3-mla.js';
import type { ModelPreset } from './model-preset.js';

/** DeepSeek V3 with sparse attention: an index key lies next to each latent vector. Both are kept in bfloat16 here. */
export const DEEPSEEK_V3_2: ModelPreset = {
  ...DEEPSEEK_V3_MLA,
  name: 'deepseek-v3.2',
  cache: { kind: 'latent', latentDim: 512, ropeDim: 64, indexDim: 128 },
  sources: [
    'deepseek-ai/DeepSeek-V3.2-Exp config.json: num_hidden_layers 61, num_attention_heads 128, kv_lora_rank 512, qk_rope_head_dim 64',
    'deepseek-ai/DeepSeek-V3.2-Exp config.json: index_head_dim 128, index_n_heads 64, index_topk 2048, torch_dtype bfloat16',
    'deepseek-ai/DeepSeek-V3.2-Exp model card: built upon V3.1-Terminus, 671 B parameters, 37 B activated per token',
  ],
};
