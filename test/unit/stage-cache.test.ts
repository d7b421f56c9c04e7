import { describe, expect, it } from 'vitest';
import { chainBlockHashes } from '../../src/cache/block-hash.js';
import { GrowingCacheManager } from '../../src/cache/growing-cache-manager.js';
import type { LayerGroup } from '../../src/cache/kv-cache-manager.js';
import { StageCache } from '../../src/cache/stage-cache.js';
import { ArgumentError } from '../../src/errors.js';
import { TransferLedger } from '../../src/session/transfer-ledger.js';

const TPB = 4;
const GROUPS: readonly LayerGroup[] = [
  { kind: 'attention', windowSize: null, tokensPerBlock: TPB, layers: [1, 3], slotCount: 16 },
  { kind: 'attention', windowSize: 8, tokensPerBlock: TPB, layers: [0, 2], slotCount: 16 },
];

function stages() {
  const whole = () => new GrowingCacheManager({ tokensPerBlock: TPB, layerGroups: GROUPS, seed: 7 });
  return [new StageCache(whole(), { begin: 0, end: 1 }), new StageCache(whole(), { begin: 1, end: 4 })] as const;
}

function prompt(promptLen: number) {
  return { promptLen, blockHashes: chainBlockHashes(new Uint32Array(promptLen), TPB) };
}

describe('StageCache', () => {
  it('shows the groups of the stage, with the layers in it', () => {
    const [first, second] = stages();
    expect(first.layerGroups).toEqual([{ ...GROUPS[1], layers: [0] }]);
    expect(second.layerGroups).toEqual([
      { ...GROUPS[0], layers: [1, 3] },
      { ...GROUPS[1], layers: [2] },
    ]);
    expect(first.stats()).toHaveLength(1);
    expect(first.whole.layerGroups).toEqual(GROUPS);
  });

  it('names blocks by its own groups', () => {
    const [first] = stages();
    first.addRequest(1, prompt(32));
    expect(first.ensureCapacity(1, 32)).toBe(true);
    expect(first.getBlockIdsRange(1, 0, 6, 8)).toEqual(first.whole.getBlockIdsRange(1, 1, 6, 8));
    expect(() => first.getBlockIdsRange(1, 1, 6, 8)).toThrow(RangeError);
    first.freeRequest(1);
  });

  it('ranks of different stages hold alike while a transfer runs, and after it', () => {
    const free = stages().map((stage) => {
      const ledger = new TransferLedger(stage);
      const used: number[][] = [];
      const note = () => used.push(stage.whole.stats().map(({ free: slots, reusable }) => slots + reusable));
      stage.addRequest(1, prompt(40));
      for (let end = 8; end <= 40; end += 8) {
        expect(stage.ensureCapacity(1, end)).toBe(true);
        if (end === 8) ledger.acquire(1, 40);
        stage.markComputed(1, end);
        note();
      }
      stage.freeRequest(1);
      note();
      ledger.complete(1);
      ledger.settle(1);
      note();
      return used;
    });
    expect(free[0]).toEqual(free[1]);
    expect(free[0]?.at(-1)).toEqual([16, 16]);
    // All ten blocks of full attention, and the final window of the other group.
    expect(free[0]?.at(-2)).toEqual([6, 14]);
  });

  it('a direct pin holds the blocks it is told, and all of a group that it does not show', () => {
    const [first] = stages();
    first.addRequest(1, prompt(16));
    first.ensureCapacity(1, 16);
    first.pin(1, [3]);
    expect(first.isPinned(1)).toBe(true);
    first.freeRequest(1);
    expect(first.whole.stats().map(({ pinned }) => pinned)).toEqual([4, 1]);
    first.unpin(1);
    expect(first.whole.stats().map(({ pinned }) => pinned)).toEqual([0, 0]);
  });

  it('refuses a stage without a layer', () => {
    expect(() => new StageCache(stages()[0].whole, { begin: 4, end: 8 })).toThrow(ArgumentError);
  });
});
