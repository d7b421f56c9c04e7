/** What one layer keeps per token. */
export type LayerCache =
  | { readonly kind: 'attention'; readonly kvHeads: number; readonly headDim: number }
  /** MLA: one compressed vector shared by all heads (`kv_lora_rank`) and the rotary part of the key (`qk_rope_head_dim`). */
  | { readonly kind: 'latent'; readonly latentDim: number; readonly ropeDim: number };

/**
 * The shape of a real model, as far as its KV cache and the time of its prefill depend on it.
 * Every figure is a field of the model's published config.json or a statement of its model card; `sources` says which.
 */
export interface ModelPreset {
  readonly name: string;
  readonly layerCount: number;
  readonly attentionHeads: number;
  /** Width of one head in the attention product, for the modelled prefill time (MLA: nope + rope part of a key). */
  readonly attentionHeadDim: number;
  readonly cache: LayerCache;
  readonly dtype: 'bfloat16';
  readonly dtypeBytes: 2;
  /** Sliding windows: the window's tokens and which layers have it. Null: every layer attends to the whole prompt. */
  readonly sliding: { readonly windowSize: number; readonly layers: readonly number[] } | null;
  readonly parameterCount: number;
  /** Parameters one token passes through; smaller than `parameterCount` for mixtures of experts. */
  readonly activeParameterCount: number;
  readonly sources: readonly string[];
}

/** Layers of one life cycle, in the order of the cache manager's groups. */
export interface PresetLayerGroup {
  readonly windowSize: number | null;
  readonly layers: readonly number[];
}

export function layerGroupsOf(preset: ModelPreset): readonly PresetLayerGroup[] {
  const all = Array.from({ length: preset.layerCount }, (_, layer) => layer);
  if (preset.sliding === null) return [{ windowSize: null, layers: all }];
  const windowed = new Set(preset.sliding.layers);
  return [
    { windowSize: null, layers: all.filter((layer) => !windowed.has(layer)) },
    { windowSize: preset.sliding.windowSize, layers: all.filter((layer) => windowed.has(layer)) },
  ];
}

/** KV cache bytes of one token in one layer. */
export function bytesPerTokenAndLayer(preset: ModelPreset): number {
  const { cache } = preset;
  const values = cache.kind === 'attention' ? 2 * cache.kvHeads * cache.headDim : cache.latentDim + cache.ropeDim;
  return values * preset.dtypeBytes;
}

/** KV cache bytes of one token over all layers, as long as it lies inside every window. */
export function bytesPerToken(preset: ModelPreset): number {
  return preset.layerCount * bytesPerTokenAndLayer(preset);
}
