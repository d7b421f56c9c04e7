import { expect, it } from 'vitest';
import type { PageContent } from '../../../src/agent/page-content.js';
import { chainBlockHashes } from '../../../src/cache/block-hash.js';
import { GrowingCacheManager } from '../../../src/cache/growing-cache-manager.js';
import { warmPrefix } from '../../../src/cli/bench/ttft/warm-prefix.js';
import { ResourceError } from '../../../src/errors.js';

/** Of 8 blocks, of which request 2 has half. */
function halfTaken(): GrowingCacheManager {
  const cache = new GrowingCacheManager({
    tokensPerBlock: 32,
    layerGroups: [{ kind: 'attention', windowSize: null, tokensPerBlock: 32, layers: [0], slotCount: 8 }],
    seed: 1,
  });
  cache.addRequest(2, { promptLen: 128, blockHashes: chainBlockHashes(new Uint32Array(128), 32) });
  expect(cache.ensureCapacity(2, 128)).toBe(true);
  return cache;
}

function warm(cache: GrowingCacheManager, heldRequests: number, content: PageContent, waitMs: number): Promise<void> {
  const place = { pageTable: undefined as never, contentPlace: { firstHead: 0 }, owner: { cpSize: 1, cpRank: 0 } };
  const tokens = Uint32Array.from({ length: 256 }, (_, token) => token);
  return warmPrefix({ cache, heldRequests, content, ...place }, 1, tokens, 192, waitMs);
}

async function messageWith(heldRequests: number): Promise<string> {
  // Neither content nor pages are looked at.
  const failure = await warm(halfTaken(), heldRequests, undefined as never, 5).then(
    () => null,
    (error: unknown) => error,
  );
  expect(failure).toBeInstanceOf(ResourceError);
  return (failure as ResourceError).message;
}

it('a pool that is too small is told from one whose pages failed transfers keep', async () => {
  expect(await messageWith(0)).toBe('no room for a cached prefix of 192 tokens; raise --pool-tokens');
  const held = await messageWith(2);
  expect(held).toMatch(/pages of 2 earlier requests are kept, because their transfers failed/);
  expect(held).not.toContain('--pool-tokens');
});

it('waits for the pages of a request that has its outcome and has not yet given them back', async () => {
  const cache = halfTaken();
  const fills: number[] = [];
  const content = {
    chainTokenSeeds: () => new BigUint64Array(),
    fill: async ({ tokenEnd }: { tokenEnd: number }) => void fills.push(tokenEnd),
  };
  const warmed = warm(cache, 1, content as never, 60_000);
  await new Promise(setImmediate);
  expect(fills).toEqual([]);
  cache.freeRequest(2);
  await warmed;
  expect(fills).toEqual([192]);
});
