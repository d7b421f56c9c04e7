import type { LayerGroup } from '../../../cache/kv-cache-manager.js';
import { ConfigError } from '../../../errors.js';

/** What one layer's attention sees. */
export interface TinyLayerSpan {
  /** Sliding window in tokens, the token itself included; null = the whole prompt. */
  readonly windowSize: number | null;
  /** First tokens that are seen beside the window. Default 0; only with a window. */
  readonly sinkTokens?: number;
}

/** Shape of a tiny model. Two models of equal shape and seed are the same model. */
export interface TinyModelConfig {
  readonly seed: number;
  /** Tokens that can be sampled; a prompt token stands for itself modulo this. */
  readonly vocabularySize: number;
  readonly modelDim: number;
  readonly attentionHeads: number;
  /** Divides `attentionHeads`. */
  readonly kvHeads: number;
  /** Even: rotary positions turn pairs of elements. */
  readonly headDim: number;
  readonly mlpDim: number;
  /** In order; the index is the global layer id. */
  readonly layers: readonly TinyLayerSpan[];
}

/** Four layers of two kinds, small enough that a token takes well under a millisecond on a CPU. */
export const TINY_MODEL: TinyModelConfig = Object.freeze({
  seed: 1,
  vocabularySize: 1024,
  modelDim: 32,
  attentionHeads: 4,
  kvHeads: 2,
  headDim: 8,
  mlpDim: 64,
  layers: Object.freeze([{ windowSize: null }, { windowSize: 12 }, { windowSize: null }, { windowSize: 12 }]),
});

/** @throws ConfigError naming the field and its range */
export function checkTinyModel(config: TinyModelConfig): void {
  const { seed, layers, ...sizes } = config;
  if (!Number.isSafeInteger(seed)) throw new ConfigError(`tiny model: seed is ${seed}; it must be an integer`);
  for (const [name, value] of Object.entries(sizes)) atLeastOne(name, value);
  if (config.headDim % 2 !== 0) throw new ConfigError(`tiny model: headDim is ${config.headDim}; it must be even`);
  if (config.attentionHeads % config.kvHeads !== 0) {
    throw new ConfigError(
      `tiny model: attentionHeads is ${config.attentionHeads}; it must be a multiple of kvHeads, ${config.kvHeads}`,
    );
  }
  if (layers.length === 0) throw new ConfigError('tiny model: layers is empty; a model needs at least one');
  layers.forEach(({ windowSize, sinkTokens = 0 }, index) => {
    if (windowSize !== null) atLeastOne(`layers[${index}].windowSize`, windowSize);
    if (!Number.isSafeInteger(sinkTokens) || sinkTokens < 0 || (sinkTokens > 0 && windowSize === null)) {
      throw new ConfigError(
        `tiny model: layers[${index}].sinkTokens is ${sinkTokens}; it must be a whole number, and 0 without a window`,
      );
    }
  });
}

/** The model's layers by what they see, each as the layer group of a cache manager, in the order of their first layers. */
export function tinyLayerGroups(
  config: TinyModelConfig,
  pages: { readonly tokensPerBlock: number; readonly slotCount: number },
): readonly LayerGroup[] {
  const groups = new Map<string, { readonly span: TinyLayerSpan; readonly layers: number[] }>();
  config.layers.forEach((span, layer) => {
    const key = `${span.windowSize} ${span.sinkTokens ?? 0}`;
    const group = groups.get(key) ?? { span, layers: [] };
    group.layers.push(layer);
    groups.set(key, group);
  });
  return [...groups.values()].map(({ span: { windowSize, sinkTokens = 0 }, layers }) => ({
    kind: 'attention',
    windowSize,
    ...(sinkTokens === 0 ? {} : { sinkTokens }),
    layers,
    ...pages,
  }));
}

function atLeastOne(name: string, value: number): void {
  if (!Number.isSafeInteger(value) || value < 1) {
    throw new ConfigError(`tiny model: ${name} is ${value}; it must be an integer of at least 1`);
  }
}
