import { expect, it } from 'vitest';
import { allocatedBytes } from '../../../src/cli/bench/scale/allocated-bytes.js';
import { PromptTail } from '../../../src/cli/bench/scale/prompt-tail.js';

const shape = { chunkTokens: 256, layers: 4, windowTokens: 128 };

it.each(['growing', 'reserving'] as const)(
  '%s: plans the last chunk only, whatever the length of the prompt',
  (manager) => {
    const [short, long] = [512, 65_536].map((promptTokens) =>
      new PromptTail({ ...shape, manager, promptTokens }).planLastSlice(),
    );
    // 8 blocks of the full layers; of the windowed ones the blocks that the first generated token still sees.
    expect(short?.groups.map(({ group, slotPairs }) => [group, slotPairs.length / 2])).toEqual([
      [0, 8],
      [1, 4],
    ]);
    expect(long?.groups.map(({ slotPairs }) => slotPairs.length)).toEqual([16, 8]);
    expect(long?.stats.bytes).toBe(12 * 2 * 2 * 8 * 32 * 128 * 2);
    expect(long?.stats.bytes).toBe(short?.stats.bytes);
  },
);

it('a prompt need not be a multiple of the chunk', () => {
  const plan = new PromptTail({ ...shape, promptTokens: 600 }).planLastSlice();
  expect(plan.groups[0]?.slotPairs.length).toBe(2 * 3);
});

it('tells what a task allocates, to a few bytes, and nothing for one that allocates nothing', () => {
  const kept: unknown[] = new Array(4).fill(null);
  let turn = 0;
  const [none, some, double] = allocatedBytes(
    [
      () => turn++,
      () => {
        kept[turn++ & 3] = new Uint8Array(10_000);
      },
      () => {
        kept[turn++ & 3] = [new Uint8Array(10_000), new Uint8Array(10_000)];
      },
    ],
    7,
  ) as [number, number, number];
  expect(none).toBeLessThan(100);
  expect(some).toBeGreaterThan(10_000);
  expect(double / some).toBeGreaterThan(1.9);
  expect(double / some).toBeLessThan(2.1);
});
