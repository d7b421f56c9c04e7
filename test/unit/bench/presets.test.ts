import { describe, expect, it } from 'vitest';
import { PRESET_NAMES, PRESETS, presetNamed } from '../../../src/cli/bench/presets/index.js';
import { bytesPerToken, layerGroupsOf } from '../../../src/cli/bench/presets/model-preset.js';

describe('model presets', () => {
  // Recomputed from the published shapes, independently of the presets' own arithmetic.
  it.each([
    ['llama-3.1-8b', 32 * 2 * 8 * 128 * 2, 131_072],
    ['qwen3-32b', 64 * 2 * 8 * 128 * 2, 262_144],
    ['gemma-3-1b', 26 * 2 * 1 * 256 * 2, 26_624],
    ['deepseek-v3-mla', 61 * (512 + 64) * 2, 70_272],
  ])('%s keeps %i bytes a token', (name, computed, published) => {
    expect(computed).toBe(published);
    expect(bytesPerToken(presetNamed(name))).toBe(published);
  });

  it.each(PRESETS)('$name puts every layer into exactly one group', (preset) => {
    const layers = layerGroupsOf(preset).flatMap((group) => group.layers);
    expect([...layers].sort((a, b) => a - b)).toEqual(Array.from({ length: preset.layerCount }, (_, layer) => layer));
    for (const group of layerGroupsOf(preset))
      expect([...group.layers]).toEqual([...group.layers].sort((a, b) => a - b));
  });

  it.each(PRESETS)('$name states where its figures come from', (preset) => {
    expect(preset.sources.join(' ')).toMatch(/config\.json: .*num_hidden_layers/);
    expect(preset.sources.join(' ')).toMatch(/model card: .*parameters/);
    expect(preset.activeParameterCount).toBeLessThanOrEqual(preset.parameterCount);
  });

  it('gemma-3-1b sees the whole prompt in every sixth layer only', () => {
    const [full, windowed] = layerGroupsOf(presetNamed('gemma-3-1b'));
    expect(full).toEqual({ windowSize: null, layers: [5, 11, 17, 23] });
    expect(windowed?.windowSize).toBe(512);
    expect(windowed?.layers).toHaveLength(22);
  });

  it('deepseek-v3-mla keeps one latent vector and the rotary key', () => {
    expect(presetNamed('deepseek-v3-mla').cache).toEqual({ kind: 'latent', latentDim: 512, ropeDim: 64 });
  });

  it('refuses a name that no preset has', () => {
    expect(PRESET_NAMES).toEqual(['llama-3.1-8b', 'qwen3-32b', 'gemma-3-1b', 'deepseek-v3-mla']);
    expect(() => presetNamed('gpt')).toThrow("no preset 'gpt'; presets are llama-3.1-8b, ");
  });
});
