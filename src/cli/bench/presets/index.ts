import { DEEPSEEK_V3_MLA } from './deepseek-v3-mla.js';
import { GEMMA_3_1B } from './gemma-3-1b.js';
import { LLAMA_3_1_8B } from './llama-3.1-8b.js';
import type { ModelPreset } from './model-preset.js';
import { QWEN3_32B } from './qwen3-32b.js';

export const PRESETS: readonly ModelPreset[] = [LLAMA_3_1_8B, QWEN3_32B, GEMMA_3_1B, DEEPSEEK_V3_MLA];

export const PRESET_NAMES: readonly string[] = PRESETS.map((preset) => preset.name);

/** @throws RangeError for a name that no preset has; the command line checks names before */
export function presetNamed(name: string): ModelPreset {
  const preset = PRESETS.find((candidate) => candidate.name === name);
  if (preset === undefined) throw new RangeError(`no preset '${name}'; presets are ${PRESET_NAMES.join(', ')}`);
  return preset;
}
