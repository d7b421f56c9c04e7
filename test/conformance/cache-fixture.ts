import { expect } from 'vitest';
import {
  type CacheManagerOptions,
  type CachePrompt,
  chainBlockHashes,
  type LayerGroup,
  type PagedCacheManager,
} from '../../src/cache/index.js';
import { CacheMemory } from './cache-memory.js';

export const TPB = 4;

export function group(slotCount: number, rest: Partial<LayerGroup> = {}): LayerGroup {
  return { kind: 'attention', windowSize: null, tokensPerBlock: TPB, layers: [0], slotCount, ...rest };
}

/** Tokens `base`, `base + 1`, ..., with `tail` in place of the last ones. */
export function prompt(length: number, base = 0, tail: readonly number[] = [], rootHash = ''): CachePrompt {
  const tokens = Uint32Array.from({ length }, (_, index) => base + index);
  tokens.set(tail, length - tail.length);
  return { promptLen: length, blockHashes: chainBlockHashes(tokens, TPB, rootHash), tokens, rootHash };
}

/** Makes a fresh manager. */
export type CreateManager = (options: CacheManagerOptions) => PagedCacheManager;

/** A manager that moves nothing. */
export function plainManager(create: CreateManager, ...layerGroups: LayerGroup[]): PagedCacheManager {
  return create({ tokensPerBlock: TPB, layerGroups });
}

/** A manager over pages that can be looked at. */
export function movingManager(
  create: CreateManager,
  layerGroups: readonly LayerGroup[],
  options: Partial<CacheManagerOptions> = {},
): { readonly cache: PagedCacheManager; readonly memory: CacheMemory } {
  const memory = new CacheMemory(
    TPB,
    layerGroups.map(({ slotCount }) => slotCount),
    layerGroups.map(({ hostSlotCount = 0 }) => hostSlotCount),
  );
  return { memory, cache: create({ tokensPerBlock: TPB, layerGroups, mover: memory, ...options }) };
}

export function compute(cache: PagedCacheManager, request: number, endToken: number): void {
  expect(cache.ensureCapacity(request, endToken)).toBe(true);
  cache.markComputed(request, endToken);
}

export function serve(cache: PagedCacheManager, request: number, content: CachePrompt): void {
  cache.addRequest(request, content);
  compute(cache, request, content.promptLen);
  cache.freeRequest(request);
}

export function slotsOf(cache: PagedCacheManager, request: number, begin: number, end: number, index = 0): number[] {
  return [...cache.getBlockIdsRange(request, index, begin, end).slots];
}
