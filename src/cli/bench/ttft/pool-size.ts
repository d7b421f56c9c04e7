import { UsageError } from '../../usage-error.js';
import { checkMemory } from '../memory-guard.js';
import type { ModelPreset } from '../presets/model-preset.js';
import { rankLayout, type SlotCounts } from '../shape/rank-layout.js';
import type { Shapes } from '../shape/shapes-of.js';
import { rankCount, ranksOf, type SideShape, stripeTokens } from '../shape/side-shape.js';
import { sum } from '../statistics.js';
import { formatBytes } from '../text-table.js';
import type { TtftOptions } from './ttft-options.js';
import type { RequestGroup } from './workload.js';

/** Blocks beyond the prompt that one request may hold: the first generated tokens and the block a chunk ends in. */
const EXTRA_BLOCKS_PER_REQUEST = 2;
/** States beyond the requests in flight: that of a request that ended is kept until it is verified. */
const EXTRA_STATES = 1;

/** Pools of one side. */
export interface SidePools {
  readonly slots: SlotCounts;
  /** Of all ranks together. */
  readonly bytes: number;
}

export interface PoolSizes {
  readonly context: SidePools;
  readonly generation: SidePools;
}

/**
 * Slots of every layer group on each rank: room for the longest requests that can be in flight together.
 * Windowed groups get as many: a pinned request keeps also the blocks that left the window until its transfer has drained.
 * @throws UsageError for a prompt longer than `--pool-tokens`, and for pools that do not fit this machine's memory
 */
export function poolSizes(
  options: TtftOptions,
  concurrency: number,
  preset: ModelPreset,
  shapes: Shapes,
  groups: readonly RequestGroup[],
): PoolSizes {
  const sizes = {
    context: sidePools(options, concurrency, preset, shapes.context, groups),
    generation: sidePools(options, concurrency, preset, shapes.generation, groups),
  };
  // A GPU says itself what it has not the memory for.
  if (options.memory === 'device') return sizes;
  checkMemory(
    sizes.context.bytes + sizes.generation.bytes,
    describePools(sizes, shapes),
    options.trace === null
      ? 'shorten --prompt-tokens, lower --concurrency or choose a --model with a smaller cache'
      : `lower --concurrency (${concurrency}), take fewer --requests or choose a --model with a smaller cache`,
  );
  return sizes;
}

/** `2 pools of 1.00 GiB`, or each side's where they differ or have several ranks. */
export function describePools({ context, generation }: PoolSizes, shapes: Shapes): string {
  const [writers, readers] = [rankCount(shapes.context), rankCount(shapes.generation)];
  if (writers === 1 && readers === 1 && context.bytes === generation.bytes)
    return `2 pools of ${formatBytes(context.bytes)}`;
  const side = (name: string, ranks: number, bytes: number): string =>
    `${formatBytes(bytes)} on the ${name} server (${ranks} rank${ranks === 1 ? '' : 's'})`;
  return `pools of ${side('context', writers, context.bytes)} and ${side('generation', readers, generation.bytes)}`;
}

function sidePools(
  options: TtftOptions,
  concurrency: number,
  preset: ModelPreset,
  shape: SideShape,
  groups: readonly RequestGroup[],
): SidePools {
  return sidePoolsOf(preset, shape, blockSlots(options, concurrency, shape, groups), concurrency);
}

/** Pools of one side with room for `blocks` blocks on each rank. */
export function sidePoolsOf(preset: ModelPreset, shape: SideShape, blocks: number, concurrency: number): SidePools {
  const slots = { blocks, states: concurrency + EXTRA_STATES };
  const bytes = sum(ranksOf(shape).map((place) => rankLayout(preset, shape, place, slots).layout.sizeBytes));
  return { slots, bytes };
}

function blockSlots(
  options: TtftOptions,
  concurrency: number,
  shape: SideShape,
  groups: readonly RequestGroup[],
): number {
  // A context parallel rank has one slot for each stripe of blocks.
  const tokensPerSlot = stripeTokens(shape);
  const lengths = groups.map((group) => group.requests.map((request) => request.prompt.tokenCount));
  if (options.poolTokens === null) {
    return Math.max(
      ...lengths.map((together) => {
        const longestFirst = [...together].sort((a, b) => b - a);
        return sum(longestFirst.slice(0, concurrency).map((length) => slotsOf(length, tokensPerSlot)));
      }),
    );
  }
  const slots = Math.floor(options.poolTokens / tokensPerSlot);
  const longestPrompt = Math.max(...lengths.flat());
  const needed = slotsOf(longestPrompt, tokensPerSlot);
  if (slots >= needed) return slots;
  const option = options.trace === null ? '--prompt-tokens' : '--trace';
  throw new UsageError(
    `${option}: a prompt of ${longestPrompt} tokens needs pages for ${needed * tokensPerSlot}, the pool has ${options.poolTokens}; ` +
      'raise --pool-tokens or shorten the prompt',
  );
}

function slotsOf(promptTokens: number, tokensPerSlot: number): number {
  return Math.ceil(promptTokens / tokensPerSlot) + EXTRA_BLOCKS_PER_REQUEST;
}
