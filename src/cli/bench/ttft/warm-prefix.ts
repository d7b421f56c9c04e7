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
  waitMs = ROOM_WAIT_MS,
): Promise<void> {
  if (warmTokens === 0) return;
  const { cache } = parts;
  await restorePrompt(parts, id, tokens, {
    tokens: warmTokens,
    filledTokens: warmTokens,
    chunkTokens: warmTokens,
    waitMs,
  });
  // The next request of this prompt must find it, or the bench would measure something else than it says.
  const blockHashes = chainBlockHashes(tokens, cache.tokensPerBlock);
  const { prepopulatedLen } = cache.addRequest(id, { promptLen: tokens.length, blockHashes });
  cache.freeRequest(id);
  if (prepopulatedLen !== warmTokens) {
    throw new InternalError(`a prefix of ${warmTokens} tokens was cached, ${prepopulatedLen} were found`);
  }
}

/** How much of a prompt a rank is to hold. */
export interface RestoreBounds {
  /** Whole blocks (of all context parallel ranks). */
  readonly tokens: number;
  /** Of those, what gets its content and can be found. The rest takes its room, under names that no prompt has. Whole blocks. */
  readonly filledTokens: number;
  /** Most tokens that come at once: what left a window by then is as old as a request would have left it. */
  readonly chunkTokens: number;
  /** How long to wait for room. */
  readonly waitMs?: number;
}

/**
 * Does to the rank's cache what a request of this prompt does: finds what is there, takes blocks for the rest, and leaves all of it as what was
 * used last.
 * @param id prompts that are restored under one id share blocks without content, too
 * @throws ResourceError when the pool has no room
 */
export async function restorePrompt(
  parts: WarmPrefixParts,
  id: RequestId,
  tokens: Uint32Array,
  { tokens: endToken, filledTokens, chunkTokens, waitMs = ROOM_WAIT_MS }: RestoreBounds,
): Promise<void> {
  const { cache } = parts;
  const filledBlocks = filledTokens / cache.tokensPerBlock;
  const blockHashes = chainBlockHashes(tokens, cache.tokensPerBlock).map((hash, block) =>
    block < filledBlocks ? hash : `${id}/${hash}`,
  );
  const { prepopulatedLen } = cache.addRequest(id, { promptLen: tokens.length, blockHashes });
  try {
    // Chunks end where blocks do.
    const step = Math.max(1, Math.floor(chunkTokens / cache.tokensPerBlock)) * cache.tokensPerBlock;
    for (let begin = prepopulatedLen; begin < endToken; begin = Math.min(begin + step, endToken)) {
      const end = Math.min(begin + step, endToken);
      await takeRoom(parts, id, end, waitMs);
      if (begin < filledTokens) await fill(parts, id, tokens, begin, Math.min(end, filledTokens));
      cache.markComputed(id, end);
    }
  } finally {
    cache.freeRequest(id);
  }
}

async function takeRoom(
  { cache, heldRequests }: WarmPrefixParts,
  id: RequestId,
  endToken: number,
  waitMs: number,
): Promise<void> {
  const deadline = performance.now() + waitMs;
  while (!cache.ensureCapacity(id, endToken)) {
    if (performance.now() >= deadline) {
      throw new ResourceError(`no room for a cached prefix of ${endToken} tokens; ${remedyFor(heldRequests)}`);
    }
    await sleep(1);
  }
}

async function fill(
  { cache, content, pageTable, contentPlace, owner }: WarmPrefixParts,
  id: RequestId,
  tokens: Uint32Array,
  beginToken: number,
  tokenEnd: number,
): Promise<void> {
  const tokenSeeds = content.chainTokenSeeds(tokens);
  const [begin, end] = [beginToken / cache.tokensPerBlock, tokenEnd / cache.tokensPerBlock];
  await Promise.all(
    cache.layerGroups.map(async (_, group) => {
      const run = ownedRun(cache, id, group, begin, end, owner);
      const tokenBegin = run.begin * cache.tokensPerBlock;
      await content.fill({ table: pageTable, group, run, tokenBegin, tokenEnd, tokenSeeds, ...contentPlace });
    }),
  );
}

function remedyFor(heldRequests: number): string {
  if (heldRequests === 0) return 'raise --pool-tokens';
  return (
    `pages of ${heldRequests} earlier requests are kept, because their transfers failed and may still be under way: ` +
    'find out why the other server did not answer, and run again'
  );
}
