import type { ModelPreset } from './model-preset.js';
import { slidingLayers } from './sliding-layers.js';

const LAYER_COUNT = 36;

export const GPT_OSS_120B: ModelPreset = {
  name: 'gpt-oss-120b',
  layerCount: LAYER_COUNT,
  attentionHeads: 64,
  attentionHeadDim: 64,
  cache: { kind: 'attention', kvHeads: 8, headDim: 64 },
  // The weights of the experts are MXFP4; attention and its cache are not quantised (modules_to_not_convert).
  dtype: 'bfloat16',
  dtypeBytes: 2,
  // layer_types alternates: sliding_attention first, full_attention second.
  sliding: { windowSize: 128, layers: slidingLayers(LAYER_COUNT, (layer) => layer % 2 === 0) },
  hybrid: null,
  parameterCount: 117e9,
  activeParameterCount: 5.1e9,
  sources: [
    'openai/gpt-oss-120b config.json: num_hidden_layers 36, num_attention_heads 64, num_key_value_heads 8, head_dim 64',
    'openai/gpt-oss-120b config.json: sliding_window 128, layer_types sliding_attention, full_attention, ... in turn',
    'openai/gpt-oss-120b model card: 117 B parameters with 5.1 B active parameters',
  ],
};
