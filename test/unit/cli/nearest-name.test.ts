import { expect, it } from 'vitest';
import { nearestName } from '../../../src/cli/nearest-name.js';

it.each([
  ['gemma3-1b', 'gemma-3-1b'],
  ['GEMMA-3-1B', 'gemma-3-1b'],
  ['qwen', 'qwen3-32b'],
  ['qwen3', 'qwen3-32b'],
  ['deepseekv3mla', 'deepseek-v3-mla'],
  ['x', null],
])('%s -> %s', (name, expected) => {
  expect(nearestName(name, ['llama-3.1-8b', 'qwen3-32b', 'gemma-3-1b', 'deepseek-v3-mla'])).toBe(expected);
});

it('has nothing to offer without candidates', () => {
  expect(nearestName('a', [])).toBeNull();
});
