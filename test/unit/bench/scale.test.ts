import { expect, it } from 'vitest';
import { PromptTail } from '../../../src/cli/bench/scale/prompt-tail.js';

const shape = { chunkTokens: 256, layers: 4, windowTokens: 128 };

it('plans the last chunk only, whatever the length of the prompt', () => {
  const [short, long] = [512, 65_536].map((promptTokens) => new PromptTail({ ...shape, promptTokens }).planLastSlice());
  // 8 blocks of the full layers; of the windowed ones the blocks that the first generated token still sees.
  expect(short?.groups.map(({ group, slotPairs }) => [group, slotPairs.length / 2])).toEqual([
    [0, 8],
    [1, 4],
  ]);
  expect(long?.groups.map(({ slotPairs }) => slotPairs.length)).toEqual([16, 8]);
  expect(long?.stats.bytes).toBe(12 * 2 * 2 * 8 * 32 * 128 * 2);
  expect(long?.stats.bytes).toBe(short?.stats.bytes);
});

it('a prompt need not be a multiple of the chunk', () => {
  const plan = new PromptTail({ ...shape, promptTokens: 600 }).planLastSlice();
  expect(plan.groups[0]?.slotPairs.length).toBe(2 * 3);
});
