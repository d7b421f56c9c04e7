import type { ContentJob, PageContent } from '../../../agent/page-content.js';
import type { KvCacheManager } from '../../../cache/kv-cache-manager.js';
import { type BlockOwner, ownedRun } from '../../../executor/engines/owned-run.js';
import type { LlmRequest } from '../../../executor/request.js';
import { staleBlockEnd } from '../../../geometry/stale-block-end.js';
import type { PageTable } from '../../../mapping/page-table.js';
import type { ContentPlace } from '../shape/rank-layout.js';
import { sum } from '../statistics.js';

/** The rank whose pages are looked at. */
export interface PageVerificationParts {
  readonly cache: KvCacheManager;
  readonly pageTable: PageTable;
  readonly contentPlace: ContentPlace;
  readonly owner: BlockOwner;
  /** Of the server that wrote the pages. */
  readonly peerTokensPerBlock: number;
}

/** What was found in the pages of one rank. */
export interface PageVerification {
  readonly bytesVerified: number;
  readonly wrongBytes: number;
  readonly firstWrong: string | null;
}

/**
 * What a request received on this rank: every byte of it, and what the context server must have written there, whatever ranks that has.
 * To be asked while the request has its pages.
 */
export function receivedPages(
  parts: PageVerificationParts,
  request: LlmRequest,
  tokenSeeds: BigUint64Array,
): readonly ContentJob[] {
  return parts.cache.layerGroups.flatMap((_, group) => jobOf(parts, request, group, tokenSeeds) ?? []);
}

/** The caller holds the pages until the returned promise settles. */
export async function verifyPages(content: PageContent, jobs: readonly ContentJob[]): Promise<PageVerification> {
  const checked = await Promise.all(jobs.map((job) => content.verify(job)));
  const first = checked.find((result) => result.firstWrong !== null)?.firstWrong ?? null;
  return {
    bytesVerified: sum(checked.map((result) => result.bytesChecked)),
    wrongBytes: sum(checked.map((result) => result.wrongBytes)),
    firstWrong: first === null ? null : `layer ${first.layer}, ${first.role}, head ${first.head}, token ${first.token}`,
  };
}

function jobOf(
  { cache, pageTable, contentPlace, owner, peerTokensPerBlock }: PageVerificationParts,
  request: LlmRequest,
  group: number,
  tokenSeeds: BigUint64Array,
): ContentJob | null {
  const { tokensPerBlock } = cache;
  const { kind, windowSize } = cache.layerGroups[group] as KvCacheManager['layerGroups'][number];
  const promptLen = request.promptTokens.length;
  const job = { table: pageTable, group, tokenSeeds, ...contentPlace };
  if (kind === 'state') {
    const run = ownedRun(cache, request.id, group, 0, 1, owner);
    return { ...job, run, tokenBegin: 0, tokenEnd: promptLen };
  }
  const endBlock = Math.ceil(promptLen / tokensPerBlock);
  // Blocks of the receiver's own prefix, and blocks outside the final window, were not moved.
  const staleTokens = (blockTokens: number): number => staleBlockEnd(promptLen, windowSize, blockTokens) * blockTokens;
  const tokenBegin = Math.max(
    Math.floor(request.prepopulatedLen / tokensPerBlock) * tokensPerBlock,
    staleTokens(tokensPerBlock),
    staleTokens(peerTokensPerBlock),
  );
  // The rest of a larger block is moved only as far as the smaller blocks go.
  const smaller = Math.min(tokensPerBlock, peerTokensPerBlock);
  const tokenEnd = Math.ceil(promptLen / smaller) * smaller;
  if (tokenBegin >= tokenEnd) return null;
  const run = ownedRun(cache, request.id, group, Math.floor(tokenBegin / tokensPerBlock), endBlock, owner);
  return { ...job, run, tokenBegin, tokenEnd };
}
