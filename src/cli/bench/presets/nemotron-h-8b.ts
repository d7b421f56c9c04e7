import type { ModelPreset } from './model-preset.js';

/** `hybrid_override_pattern`: M = Mamba 2, * = attention, - = MLP, which keeps nothing. */
const PATTERN = 'M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-';

function layersWith(letter: 'M' | '*'): readonly number[] {
  return [...PATTERN].flatMap((found, layer) => (found === letter ? [layer] : []));
}

export const NEMOTRON_H_8B: ModelPreset = {
  name: 'nemotron-h-8b',
  layerCount: PATTERN.length,
  attentionHeads: 32,
  attentionHeadDim: 128,
  cache: { kind: 'attention', kvHeads: 8, headDim: 128 },
  dtype: 'bfloat16',
  dtypeBytes: 2,
  sliding: null,
  hybrid: {
    attentionLayers: layersWith('*'),
    state: {
      layers: layersWith('M'),
      convWidth: 4 - 1,
      convSections: [
        { name: 'x', units: 128, channelsPerUnit: 64 },
        { name: 'B', units: 8, channelsPerUnit: 128 },
        { name: 'C', units: 8, channelsPerUnit: 128 },
      ],
      ssmHeads: 128,
      ssmHeadElements: 64 * 128,
    },
  },
  parameterCount: 8.1e9,
  activeParameterCount: 8.1e9,
  sources: [
    'nvidia/Nemotron-H-8B-Base-8K config.json: num_hidden_layers 52, hybrid_override_pattern (24 M, 4 *, 24 -), torch_dtype bfloat16',
    'nvidia/Nemotron-H-8B-Base-8K config.json: num_attention_heads 32, num_key_value_heads 8, attention_head_dim 128',
    'nvidia/Nemotron-H-8B-Base-8K config.json: mamba_num_heads 128, mamba_head_dim 64, ssm_state_size 128, n_groups 8, conv_kernel 4',
    'nvidia/Nemotron-H-8B-Base-8K model card: 8.1 B parameters (safetensors)',
  ],
};
