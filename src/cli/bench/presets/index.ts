import { DEEPSEEK_V3_2 } from './deepseek-v3.2.js';
import { DEEPSEEK_V3_MLA } from './deepseek-v3-mla.js';
import { GEMMA_3_1B } from './gemma-3-1b.js';
import { GEMMA_3_27B } from './gemma-3-27b.js';
import { GPT_OSS_120B } from './gpt-oss-120b.js';
import { LLAMA_3_1_8B } from './llama-3.1-8b.js';
import { LLAMA_3_3_70B, LLAMA_3_3_70B_TP8_RANK } from './llama-3.3-70b.js';
import { MISTRAL_7B } from './mistral-7b.js';
import type { ModelPreset } from './model-preset.js';
import { NEMOTRON_H_8B } from './nemotron-h-8b.js';
import { QWEN3_32B } from './qwen3-32b.js';

export const PRESETS: readonly ModelPreset[] = [
  LLAMA_3_1_8B,
  LLAMA_3_3_70B,
  LLAMA_3_3_70B_TP8_RANK,
  QWEN3_32B,
  MISTRAL_7B,
  GEMMA_3_1B,
  GEMMA_3_27B,
  GPT_OSS_120B,
  DEEPSEEK_V3_MLA,
  DEEPSEEK_V3_2,
  NEMOTRON_H_8B,
];

export const PRESET_NAMES: readonly string[] = PRESETS.map((preset) => preset.name);

/** @throws RangeError for a name that no preset has; the command line checks names before */
export function presetNamed(name: string): ModelPreset {
  const preset = PRESETS.find((candidate) => candidate.name === name);
  if (preset === undefined) throw new RangeError(`no preset '${name}'; presets are ${PRESET_NAMES.join(', ')}`);
  return preset;
}
