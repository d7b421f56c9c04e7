import type { CacheAllocation, KvCacheManager, LayerGroup } from '../cache/kv-cache-manager.js';
import { staleBlockEnd } from '../geometry/stale-block-end.js';
import type { LlmRequest } from './request.js';
import { roleOf } from './request-states.js';

/** A manager that says nothing of how it allocates. */
const GROWS: CacheAllocation = { reservesPrompt: false, speculativeTokens: 0 };

export interface BlockDemandOptions {
  readonly cache: KvCacheManager;
  /** Most tokens that one forward adds to a prompt. */
  readonly chunkTokens: number;
  /** Most forwards of one request that are enqueued and not read: what left a window is given up only when they are. Default 1. */
  readonly stepsInFlight?: number;
}

/**
 * Role: how many blocks of a layer group a request holds at once, as its cache manager takes them and lets them go (`CacheAllocation`).
 * Why two answers: `least` decides whether a request can ever end, `most` what is set aside for it so that it never waits for others. In between
 *   it runs by itself, its steps one at a time and its chunks as long as the pool allows.
 */
export class BlockDemand {
  readonly #cache: KvCacheManager;
  readonly #chunkTokens: number;
  readonly #stepsInFlight: number;

  constructor({ cache, chunkTokens, stepsInFlight = 1 }: BlockDemandOptions) {
    this.#cache = cache;
    this.#chunkTokens = chunkTokens;
    this.#stepsInFlight = stepsInFlight;
  }

  /** Blocks of `group` without which the request can never end: it runs alone, one step at a time, each of one token. */
  least(request: LlmRequest, group: LayerGroup): number {
    const { windowSize } = group;
    if (group.kind === 'state' || windowSize === null || this.#allocation.reservesPrompt)
      return this.#kept(request, group);
    const { speculativeTokens } = this.#allocation;
    const promptLen = request.promptTokens.length;
    const last = demandTokens(request) - 1;
    if (roleOf(request) !== 'generation') {
      // Speculative tokens come with the last one of the prompt.
      return Math.max(
        mostOfSteps(group, windowSize, 0, promptLen - 2, 0),
        mostOfSteps(group, windowSize, promptLen - 1, last, speculativeTokens),
      );
    }
    return Math.max(
      resident(group, windowSize, promptLen, promptLen + speculativeTokens),
      mostOfSteps(group, windowSize, promptLen, last, speculativeTokens),
    );
  }

  /** Blocks of `group` that are set aside for the request: most that it holds when nothing hinders it, and no more than there are. */
  most(request: LlmRequest, group: LayerGroup): number {
    const kept = this.#kept(request, group);
    const { windowSize, tokensPerBlock, slotCount } = group;
    const { reservesPrompt, speculativeTokens } = this.#allocation;
    if (group.kind === 'state' || windowSize === null || reservesPrompt) return kept;
    // A transfer holds nothing that leaves the window before the prompt ends (see the ledger): it sends the final window only.
    const tokensOfStep = roleOf(request) === 'generation' ? 1 : this.#chunkTokens;
    const added = this.#stepsInFlight * tokensOfStep + speculativeTokens;
    // A window that starts inside a block spans one more.
    const most = sinkBlocks(group) + Math.ceil((windowSize + added) / tokensPerBlock) + 1;
    return Math.min(most, kept, slotCount);
  }

  /** The end of the longest chunk up to `chunkEnd` that a pool can hold beside its window, when every step before it was read. */
  longestChunk(request: LlmRequest, chunkStart: number, chunkEnd: number): number {
    const { reservesPrompt, speculativeTokens } = this.#allocation;
    if (reservesPrompt) return chunkEnd;
    const promptLen = request.promptTokens.length;
    let end = chunkEnd;
    for (const group of this.#cache.layerGroups) {
      const { kind, windowSize, tokensPerBlock, slotCount } = group;
      if (kind === 'state' || windowSize === null) continue;
      const sinks = sinkBlocks(group);
      const stale = Math.max(sinks, staleBlockEnd(chunkStart, windowSize, tokensPerBlock));
      const room = (stale - sinks + slotCount) * tokensPerBlock;
      if (end >= promptLen && promptLen + speculativeTokens > room) end = promptLen - 1;
      end = Math.min(end, room);
    }
    // What cannot hold one token more was refused (`least`).
    return Math.max(end, chunkStart + 1);
  }

  get #allocation(): CacheAllocation {
    return this.#cache.allocation ?? GROWS;
  }

  /** Blocks of the whole request; where what it takes is kept to its end, all that it ever holds. */
  #kept(request: LlmRequest, group: LayerGroup): number {
    if (group.kind === 'state') return 1;
    const { windowSize, tokensPerBlock } = group;
    const { reservesPrompt, speculativeTokens } = this.#allocation;
    const all = Math.ceil((demandTokens(request) + speculativeTokens) / tokensPerBlock);
    if (!reservesPrompt || windowSize === null || roleOf(request) !== 'generation') return all;
    // What was received is kept from the final window on.
    const unseen = staleBlockEnd(request.promptTokens.length, windowSize, tokensPerBlock);
    return all - Math.max(0, unseen - sinkBlocks(group));
  }
}

/** Tokens whose KV this server holds at most: the last generated token is never fed back. */
export function demandTokens(request: LlmRequest): number {
  return request.promptTokens.length + (roleOf(request) === 'context' ? 0 : request.maxTokens - 1);
}

function sinkBlocks({ sinkTokens = 0, tokensPerBlock }: LayerGroup): number {
  return Math.ceil(sinkTokens / tokensPerBlock);
}

/** Blocks up to `endToken` that exist when the next token comes after `tokens` tokens. */
function resident(group: LayerGroup, windowSize: number, tokens: number, endToken: number): number {
  const { tokensPerBlock } = group;
  const end = Math.ceil(endToken / tokensPerBlock);
  const sinks = sinkBlocks(group);
  const begin = Math.max(sinks, staleBlockEnd(tokens, windowSize, tokensPerBlock));
  return Math.min(sinks, end) + Math.max(0, end - begin);
}

/** Most blocks that one of the steps holds which add one token each, the tokens at `first` to `last`, with `extra` tokens behind it. */
function mostOfSteps(group: LayerGroup, windowSize: number, first: number, last: number, extra: number): number {
  if (last < first) return 0;
  // More with each token until the window begins a block further on, and then the same again: either the last step holds most, or the last one
  // whose window begins with the last token of a block.
  const straddling = last - modulo(last - windowSize + 2, group.tokensPerBlock);
  return Math.max(
    resident(group, windowSize, last, last + 1 + extra),
    straddling < first ? 0 : resident(group, windowSize, straddling, straddling + 1 + extra),
  );
}

function modulo(value: number, by: number): number {
  return ((value % by) + by) % by;
}
