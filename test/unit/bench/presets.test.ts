import { describe, expect, it } from 'vitest';
import { PRESET_NAMES, PRESETS, presetNamed } from '../../../src/cli/bench/presets/index.js';
import { bytesPerToken, layerGroupsOf } from '../../../src/cli/bench/presets/model-preset.js';
import { stateElements } from '../../../src/cli/bench/presets/recurrent-state.js';

describe('model presets', () => {
  // Recomputed from the published shapes, independently of the presets' own arithmetic.
  it.each([
    ['llama-3.1-8b', 32 * 2 * 8 * 128 * 2, 131_072],
    ['qwen3-32b', 64 * 2 * 8 * 128 * 2, 262_144],
    ['gemma-3-1b', 26 * 2 * 1 * 256 * 2, 26_624],
    ['deepseek-v3-mla', 61 * (512 + 64) * 2, 70_272],
    ['deepseek-v3.2', 61 * (512 + 64 + 128) * 2, 85_888],
    ['llama-3.3-70b', 80 * 2 * 8 * 128 * 2, 327_680],
    ['llama-3.3-70b-tp8-rank', 80 * 2 * 128 * 2, 40_960],
    ['mistral-7b', 32 * 2 * 8 * 128 * 2, 131_072],
    ['gemma-3-27b', 62 * 2 * 16 * 128 * 2, 507_904],
    ['gpt-oss-120b', 36 * 2 * 8 * 64 * 2, 73_728],
    // Four of 52 layers attend.
    ['nemotron-h-8b', 4 * 2 * 8 * 128 * 2, 16_384],
  ])('%s keeps %i bytes a token', (name, computed, published) => {
    expect(computed).toBe(published);
    expect(bytesPerToken(presetNamed(name))).toBe(published);
  });

  it.each(PRESETS)('$name puts every layer that keeps something into exactly one group', (preset) => {
    const groups = layerGroupsOf(preset);
    const layers = groups.flatMap((group) => group.layers);
    expect(new Set(layers).size).toBe(layers.length);
    expect(layers.every((layer) => layer >= 0 && layer < preset.layerCount)).toBe(true);
    if (preset.hybrid === null) expect(layers).toHaveLength(preset.layerCount);
    for (const group of groups) expect([...group.layers]).toEqual([...group.layers].sort((a, b) => a - b));
    expect(groups.every((group) => group.layers.length > 0)).toBe(true);
  });

  it.each(PRESETS)('$name states where its figures come from', (preset) => {
    expect(preset.sources.join(' ')).toMatch(/config\.json: .*num_hidden_layers/);
    expect(preset.sources.join(' ')).toMatch(/model card: .*parameters/);
    expect(preset.activeParameterCount).toBeLessThanOrEqual(preset.parameterCount);
  });

  it('gemma-3-1b sees the whole prompt in every sixth layer only', () => {
    const [full, windowed] = layerGroupsOf(presetNamed('gemma-3-1b'));
    expect(full).toEqual({ kind: 'attention', windowSize: null, layers: [5, 11, 17, 23] });
    expect(windowed?.windowSize).toBe(512);
    expect(windowed?.layers).toHaveLength(22);
  });

  it('deepseek-v3-mla keeps one latent vector and the rotary key', () => {
    expect(presetNamed('deepseek-v3-mla').cache).toEqual({ kind: 'latent', latentDim: 512, ropeDim: 64 });
  });

  it('gemma-3-27b, gpt-oss-120b and mistral-7b have their windows', () => {
    const shapes = ['gemma-3-27b', 'gpt-oss-120b', 'mistral-7b'].map((name) =>
      layerGroupsOf(presetNamed(name)).map(({ windowSize, layers }) => [windowSize, layers.length, layers[0]]),
    );
    expect(shapes).toEqual([
      [
        [null, 10, 5],
        [1024, 52, 0],
      ],
      [
        [null, 18, 1],
        [128, 18, 0],
      ],
      [[4096, 32, 0]],
    ]);
  });

  it('nemotron-h-8b keeps 49.4 MiB of state beside four layers of KV', () => {
    const preset = presetNamed('nemotron-h-8b');
    const groups = layerGroupsOf(preset);
    expect(groups.map(({ kind, layers }) => [kind, layers.length])).toEqual([
      ['attention', 4],
      ['state', 24],
    ]);
    expect(groups[0]?.layers).toEqual([7, 18, 29, 40]);
    const state = preset.hybrid?.state as NonNullable<typeof preset.hybrid>['state'];
    // Per layer: 128 heads x 64 x 128, and 8192 + 2 x 8 x 128 channels x 3 columns.
    expect(stateElements(state)).toBe(128 * 64 * 128 + (8192 + 2048) * 3);
    expect(24 * 2 * stateElements(state)).toBe(51_806_208);
  });

  it('refuses a name that no preset has', () => {
    expect(PRESET_NAMES).toHaveLength(11);
    expect(() => presetNamed('gpt')).toThrow("no preset 'gpt'; presets are llama-3.1-8b, ");
  });
});
