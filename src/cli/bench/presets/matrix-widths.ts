import type { ModelPreset } from './model-preset.js';

/** Widths of a dense model's matrices that its cache says nothing about; both are fields of its config.json. */
export interface MatrixWidths {
  readonly hiddenSize: number;
  readonly intermediateSize: number;
}

/** Models whose layers are all the same: attention and one gated MLP. */
const WIDTHS: Readonly<Record<string, MatrixWidths>> = {
  'llama-3.1-8b': { hiddenSize: 4096, intermediateSize: 14336 },
  'llama-3.3-70b': { hiddenSize: 8192, intermediateSize: 28672 },
  'qwen3-32b': { hiddenSize: 5120, intermediateSize: 25600 },
  'mistral-7b': { hiddenSize: 4096, intermediateSize: 14336 },
};

/** Presets that have widths. */
export const DENSE_PRESET_NAMES: readonly string[] = Object.keys(WIDTHS);

/** Null for a model of another kind. */
export function matrixWidthsOf({ name }: ModelPreset): MatrixWidths | null {
  return WIDTHS[name] ?? null;
}
