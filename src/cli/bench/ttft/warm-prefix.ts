import { setTimeout as sleep } from 'node:timers/promises';
import type { PageContent } from '../../../agent/page-content.js';
import { chainBlockHashes } from '../../../cache/block-hash.js';
import type { KvCacheManager, RequestId } from '../../../cache/kv-cache-manager.js';
import { InternalError, ResourceError } from '../../../errors.js';
import { type BlockOwner, ownedRun } from '../../../executor/engines/owned-run.js';
import type { PageTable } from '../../../mapping/page-table.js';
import type { ContentPlace } from '../shape/rank-layout.js';

/** The rank that is to hold the prefix. */
export interface WarmPrefixParts {
  readonly cache: KvCacheManager;
  readonly content: PageContent;
  readonly pageTable: PageTable;
  readonly contentPlace: ContentPlace;
  readonly owner: BlockOwner;
  /** Requests whose pages a transfer may still touch. */
  readonly heldRequests: number;
}

/** How long the request before may take to give its pages back: it has its outcome while its last writer still may be on its way. */
const ROOM_WAIT_MS = 10_000;

/** Whether a longer prefix than was asked for may be there already: of prompts that share theirs with others. */
export type WarmBound = 'exact' | 'at-least';

/**
 * Makes the rank hold the first `warmTokens` tokens of a prompt, as a request before would have left them: real pages with the right
 * content, matchable by hash, owned by nobody.
 * @param warmTokens whole blocks (of all context parallel ranks), less than the prompt
 * @param waitMs how long to wait for room
 * @throws ResourceError when the pool has no room by then
 */
export async function warmPrefix(
  parts: WarmPrefixParts,
  id: RequestId,
  tokens: Uint32Array,
  warmTokens: number,
  bound: WarmBound,
  waitMs = ROOM_WAIT_MS,
): Promise<void> {
  if (warmTokens === 0) return;
  const { cache, content, pageTable, contentPlace, owner } = parts;
  const blockHashes = chainBlockHashes(tokens, cache.tokensPerBlock);
  const { prepopulatedLen } = cache.addRequest(id, { promptLen: tokens.length, blockHashes });
  try {
    const deadline = performance.now() + waitMs;
    while (!cache.ensureCapacity(id, warmTokens)) {
      if (performance.now() >= deadline) {
        const remedy = remedyFor(parts.heldRequests);
        throw new ResourceError(`no room for a cached prefix of ${warmTokens} tokens; ${remedy}`);
      }
      await sleep(1);
    }
    const tokenSeeds = content.chainTokenSeeds(tokens);
    const begin = prepopulatedLen / cache.tokensPerBlock;
    const end = warmTokens / cache.tokensPerBlock;
    if (begin >= end) return;
    await Promise.all(
      cache.layerGroups.map(async (_, group) => {
        const run = ownedRun(cache, id, group, begin, end, owner);
        const tokenBegin = run.begin * cache.tokensPerBlock;
        await content.fill({
          table: pageTable,
          group,
          run,
          tokenBegin,
          tokenEnd: warmTokens,
          tokenSeeds,
          ...contentPlace,
        });
      }),
    );
    cache.markComputed(id, warmTokens);
  } finally {
    cache.freeRequest(id);
  }
  // The next request of this prompt must find it, or the bench would measure something else than it says.
  const probe = cache.addRequest(id, { promptLen: tokens.length, blockHashes });
  cache.freeRequest(id);
  const found = probe.prepopulatedLen;
  if (bound === 'exact' ? found !== warmTokens : found < warmTokens) {
    throw new InternalError(`a prefix of ${warmTokens} tokens was cached, ${found} were found`);
  }
}

function remedyFor(heldRequests: number): string {
  if (heldRequests === 0) return 'raise --pool-tokens';
  return (
    `pages of ${heldRequests} earlier requests are kept, because their transfers failed and may still be under way: ` +
    'find out why the other server did not answer, and run again'
  );
}
