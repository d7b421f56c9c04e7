import type { KvCacheManager } from '../cache/kv-cache-manager.js';
import type { LlmRequest } from '../executor/request.js';
import { type BlockRun, HOLE } from '../geometry/block-run.js';
import { staleBlockEnd } from '../geometry/stale-block-end.js';
import type { PageTable } from '../mapping/page-table.js';

/**
 * The receiver's run of every layer group: `[0, B)` without what it has (whole blocks of its cached prefix) and without what
 * no token will look at (below the final window). What a run leaves out in front is a hole: the writer moves nothing there.
 */
export function destinationRuns(cache: KvCacheManager, request: LlmRequest): BlockRun[] {
  const promptLen = request.promptTokens.length;
  return cache.layerGroups.map((group, index) => {
    const blockCount = Math.ceil(promptLen / group.tokensPerBlock);
    const cached = Math.floor(request.prepopulatedLen / group.tokensPerBlock);
    const begin = Math.max(cached, staleBlockEnd(promptLen, group.windowSize, group.tokensPerBlock));
    if (begin >= blockCount) return { begin: blockCount, slots: new Int32Array(0) };
    return cache.getBlockIdsRange(request.id, index, begin, blockCount);
  });
}

/** Bytes that writers move into these runs: every slot of a group takes the same. */
export function runBytes(table: PageTable, runs: readonly BlockRun[]): number {
  let bytes = 0;
  for (const [index, run] of runs.entries()) {
    const group = table.layerGroups[index];
    if (group === undefined) continue;
    const perSlot = group.views.reduce(
      (sum, view) => sum + view.layers.reduce((inner, entry) => inner + entry.bytes, 0),
      0,
    );
    let slots = 0;
    for (const slot of run.slots) if (slot !== HOLE) slots += 1;
    bytes += slots * perSlot;
  }
  return bytes;
}
