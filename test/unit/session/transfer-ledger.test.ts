import { describe, expect, it } from 'vitest';
import { GrowingCacheManager } from '../../../src/cache/growing-cache-manager.js';
import type { KvCacheManager } from '../../../src/cache/kv-cache-manager.js';
import { ReservingCacheManager } from '../../../src/cache/reserving-cache-manager.js';
import { TransferLedger } from '../../../src/session/transfer-ledger.js';
import { TableCache } from '../../sim-lite/table-cache.js';

const TPB = 4;
const FULL = { kind: 'attention', windowSize: null, tokensPerBlock: TPB, layers: [0], slotCount: 32 } as const;
const WINDOWED = { ...FULL, layers: [1], windowSize: 8 } as const;
const pinnedOf = (cache: GrowingCacheManager | ReservingCacheManager): number[] =>
  cache.stats().map(({ pinned }) => pinned);

describe('what the ledger holds', () => {
  for (const Manager of [GrowingCacheManager, ReservingCacheManager]) {
    it(`is what runs of the prompt can name: ${Manager.name}`, () => {
      const cache = new Manager({ tokensPerBlock: TPB, layerGroups: [FULL, WINDOWED], speculativeTokens: 9 });
      const ledger = new TransferLedger(cache);
      cache.addRequest(1, { promptLen: 30, blockHashes: ['a', 'b', 'c', 'd', 'e', 'f', 'g'] });
      expect(cache.ensureCapacity(1, 8)).toBe(true);
      ledger.acquire(1, 30);
      for (let end = 16; end < 30; end += 8) {
        cache.markComputed(1, end - 8);
        expect(cache.ensureCapacity(1, end)).toBe(true);
      }
      expect(cache.ensureCapacity(1, 30)).toBe(true);
      cache.markComputed(1, 30);
      // B = 8; the token after the prompt sees [23, 30], so that the final window begins with block 5.
      expect(pinnedOf(cache)).toEqual([8, 3]);
      expect(cache.ensureCapacity(1, 40)).toBe(true);
      cache.freeRequest(1);
      expect(pinnedOf(cache)).toEqual([8, 3]);
      ledger.settle(1);
      expect(pinnedOf(cache)).toEqual([0, 0]);
    });
  }

  it('is counted in its own blocks on a context parallel rank', () => {
    const pins: (readonly number[] | undefined)[] = [];
    const cache: KvCacheManager = new TableCache([FULL, WINDOWED, { ...FULL, kind: 'state' }], TPB);
    cache.pin = (_, firstBlocks) => void pins.push(firstBlocks);
    for (const cpRank of [0, 1]) new TransferLedger(cache, () => {}, { cpRank, cpSize: 2 }).acquire(1, 30);
    // Block 5 is the third of rank 1 (1, 3, 5); rank 0 begins with block 6, its fourth.
    expect(pins).toEqual([
      [0, 3, 0],
      [0, 2, 0],
    ]);
  });
});

describe('a hold that ranks share', () => {
  it('ends when the transfer has drained and the ranks let go, whichever comes last', () => {
    const cache = new TableCache([], TPB);
    const released: number[] = [];
    const ledger = new TransferLedger(cache, () => void released.push(cache.history.length));
    const drained: number[] = [];
    ledger.onDrained((request) => void drained.push(request));
    ledger.share(1);
    ledger.acquire(1);
    ledger.complete(1);
    ledger.settle(1);
    expect([drained, ledger.heldCount, ledger.isShared(1), cache.history]).toEqual([[1], 0, true, ['pin 1']]);
    ledger.unshare(1);
    ledger.unshare(1);
    ledger.acquire(2);
    ledger.share(2);
    ledger.unshare(2);
    expect(cache.history).toEqual(['pin 1', 'unpin 1', 'pin 2']);
    ledger.settle(2);
    expect(cache.history).toEqual(['pin 1', 'unpin 1', 'pin 2', 'unpin 2']);
    expect([drained, released]).toEqual([[1], [2, 4]]);
  });
});
