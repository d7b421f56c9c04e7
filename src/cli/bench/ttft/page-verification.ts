import type { PageContent } from '../../../agent/page-content.js';
import type { KvCacheManager } from '../../../cache/kv-cache-manager.js';
import type { LlmRequest } from '../../../executor/request.js';
import { staleBlockEnd } from '../../../geometry/stale-block-end.js';
import type { PageTable } from '../../../mapping/page-table.js';
import type { GenerationReport } from './worker-messages.js';

export interface PageVerificationParts {
  readonly cache: KvCacheManager;
  readonly content: PageContent;
  readonly pageTable: PageTable;
}

/**
 * Compares every byte of the pages that a request received with what the context server must have written.
 * The caller holds the request's pages until the returned promise settles.
 */
export async function verifyReceivedPages(
  { cache, content, pageTable }: PageVerificationParts,
  request: LlmRequest,
  tokenSeeds: BigUint64Array,
): Promise<GenerationReport> {
  const { tokensPerBlock, layerGroups } = cache;
  const promptLen = request.promptTokens.length;
  const endBlock = Math.ceil(promptLen / tokensPerBlock);
  const results = await Promise.all(
    layerGroups.map(async ({ windowSize }, group) => {
      // Blocks of the receiver's own prefix, and blocks outside the final window, were not moved.
      const begin = Math.max(
        Math.floor(request.prepopulatedLen / tokensPerBlock),
        staleBlockEnd(promptLen, windowSize, tokensPerBlock),
      );
      if (begin >= endBlock) return null;
      const run = cache.getBlockIdsRange(request.id, group, begin, endBlock);
      return content.verify({
        table: pageTable,
        group,
        run,
        tokenBegin: run.begin * tokensPerBlock,
        tokenEnd: endBlock * tokensPerBlock,
        tokenSeeds,
        firstHead: 0,
      });
    }),
  );
  const checked = results.filter((result) => result !== null);
  const first = checked.find((result) => result.firstWrong !== null)?.firstWrong ?? null;
  return {
    cachedTokens: request.prepopulatedLen,
    bytesVerified: checked.reduce((total, result) => total + result.bytesChecked, 0),
    wrongBytes: checked.reduce((total, result) => total + result.wrongBytes, 0),
    firstWrong: first === null ? null : `layer ${first.layer}, ${first.role}, head ${first.head}, token ${first.token}`,
  };
}
