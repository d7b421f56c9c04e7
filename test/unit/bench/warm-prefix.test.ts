import { expect, it } from 'vitest';
import { chainBlockHashes } from '../../../src/cache/block-hash.js';
import { GrowingCacheManager } from '../../../src/cache/growing-cache-manager.js';
import { warmPrefix } from '../../../src/cli/bench/ttft/warm-prefix.js';
import { ResourceError } from '../../../src/errors.js';

async function messageWith(heldRequests: number): Promise<string> {
  const cache = new GrowingCacheManager({
    tokensPerBlock: 32,
    layerGroups: [{ kind: 'attention', windowSize: null, tokensPerBlock: 32, layers: [0], slotCount: 8 }],
    seed: 1,
  });
  cache.addRequest(2, { promptLen: 128, blockHashes: chainBlockHashes(new Uint32Array(128), 32) });
  expect(cache.ensureCapacity(2, 128)).toBe(true);
  const failure = await warmPrefix(
    // Half the pool is taken, so that neither content nor pages are looked at.
    {
      cache,
      heldRequests,
      content: undefined as never,
      pageTable: undefined as never,
      contentPlace: { firstHead: 0 },
      owner: { cpSize: 1, cpRank: 0 },
    },
    1,
    Uint32Array.from({ length: 256 }, (_, token) => token),
    192,
    'exact',
  ).then(
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
