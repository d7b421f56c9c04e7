import type { RecurrentState } from './recurrent-state.js';

/** What one layer keeps per token. */
export type LayerCache =
  | { readonly kind: 'attention'; readonly kvHeads: number; readonly headDim: number }
  /**
   * MLA: one compressed vector shared by all heads (`kv_lora_rank`) and the rotary part of the key (`qk_rope_head_dim`). `indexDim`: width of
   * the key by which sparse attention picks tokens (`index_head_dim`); absent where the model attends to all.
   */
  | { readonly kind: 'latent'; readonly latentDim: number; readonly ropeDim: number; readonly indexDim?: number };

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
  /** Sliding windows: the window's tokens and which layers have it. Null: every attention layer sees the whole prompt. */
  readonly sliding: { readonly windowSize: number; readonly layers: readonly number[] } | null;
  /** Hybrid models: which layers attend, and what the recurrent ones keep. Null: every layer attends. */
  readonly hybrid: { readonly attentionLayers: readonly number[]; readonly state: RecurrentState } | null;
  readonly parameterCount: number;
  /** Parameters one token passes through; smaller than `parameterCount` for mixtures of experts. */
  readonly activeParameterCount: number;
  readonly sources: readonly string[];
}

/** Layers of one life cycle, in the order of the cache manager's groups. */
export interface PresetLayerGroup {
  readonly kind: 'attention' | 'latent' | 'state';
  readonly windowSize: number | null;
  readonly layers: readonly number[];
}

/** Groups that have a layer: full attention, windowed, recurrent state. Layers without a cache (plain MLPs) are in none. */
export function layerGroupsOf(preset: ModelPreset): readonly PresetLayerGroup[] {
  const { kind } = preset.cache;
  const windowed = new Set(preset.sliding?.layers ?? []);
  const attending = attentionLayersOf(preset);
  const groups: PresetLayerGroup[] = [
    { kind, windowSize: null, layers: attending.filter((layer) => !windowed.has(layer)) },
    { kind, windowSize: preset.sliding?.windowSize ?? null, layers: attending.filter((layer) => windowed.has(layer)) },
    { kind: 'state', windowSize: null, layers: preset.hybrid?.state.layers ?? [] },
  ];
  return groups.filter(({ layers }) => layers.length > 0);
}

function attentionLayersOf({ layerCount, hybrid }: ModelPreset): readonly number[] {
  return hybrid?.attentionLayers ?? Array.from({ length: layerCount }, (_, layer) => layer);
}

/** KV cache bytes of one token in one attention layer. */
export function bytesPerTokenAndLayer(preset: ModelPreset): number {
  const { cache } = preset;
  const values =
    cache.kind === 'attention'
      ? 2 * cache.kvHeads * cache.headDim
      : cache.latentDim + cache.ropeDim + (cache.indexDim ?? 0);
  return values * preset.dtypeBytes;
}

/** KV cache bytes of one token over all layers, as long as it lies inside every window. Recurrent state does not grow and is not in it. */
export function bytesPerToken(preset: ModelPreset): number {
  return attentionLayersOf(preset).length * bytesPerTokenAndLayer(preset);
}
