import { UsageError } from '../../usage-error.js';
import { checkPoolsFit } from '../memory-guard.js';
import { bytesPerToken, type ModelPreset } from '../presets/model-preset.js';
import { sum } from '../statistics.js';
import type { TtftOptions } from './ttft-options.js';
import type { RequestGroup } from './workload.js';

/** Blocks beyond the prompt that one request may hold: the first generated tokens and the block a chunk ends in. */
const EXTRA_BLOCKS_PER_REQUEST = 2;

/**
 * Slots of every layer group on each server: room for the longest requests that can be in flight together.
 * Windowed groups get as many: a pinned request keeps also the blocks that left the window until its transfer has drained.
 * @throws UsageError for a prompt longer than `--pool-tokens`, and for pools that do not fit this machine's memory
 */
export function slotCountFor(
  options: TtftOptions,
  concurrency: number,
  preset: ModelPreset,
  groups: readonly RequestGroup[],
): number {
  const lengths = groups.flatMap((group) => group.requests.map((request) => request.prompt.tokenCount));
  const blocksTogether = groups.map((group) => {
    const longestFirst = group.requests.map((request) => request.prompt.tokenCount).sort((a, b) => b - a);
    return sum(longestFirst.slice(0, concurrency).map((length) => blocksOf(length, options.blockSize)));
  });
  const slots =
    options.poolTokens === null ? Math.max(...blocksTogether) : Math.floor(options.poolTokens / options.blockSize);

  const longestPrompt = Math.max(...lengths);
  if (options.poolTokens !== null && slots < blocksOf(longestPrompt, options.blockSize)) {
    const option = options.trace === null ? '--prompt-tokens' : '--trace';
    const needed = blocksOf(longestPrompt, options.blockSize) * options.blockSize;
    throw new UsageError(
      `${option}: a prompt of ${longestPrompt} tokens needs pages for ${needed}, the pool has ${options.poolTokens}; ` +
        'raise --pool-tokens or shorten the prompt',
    );
  }
  checkPoolsFit(
    slots * options.blockSize * bytesPerToken(preset),
    2,
    options.trace === null
      ? 'shorten --prompt-tokens, lower --concurrency or choose a --model with a smaller cache'
      : `lower --concurrency (${concurrency}), take fewer --requests or choose a --model with a smaller cache`,
  );
  return slots;
}

function blocksOf(promptTokens: number, tokensPerBlock: number): number {
  return Math.ceil(promptTokens / tokensPerBlock) + EXTRA_BLOCKS_PER_REQUEST;
}
