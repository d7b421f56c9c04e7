import type { KvCacheManager } from '../../../cache/kv-cache-manager.js';
import type { BlockRun } from '../../../geometry/block-run.js';
import type { ScheduledWork } from '../../model-engine.js';
import type { LlmRequest } from '../../request.js';

/** The pages of one layer group that one piece of work touches. */
export interface WorkPages {
  /** First token that the work sees, sinks apart. */
  readonly begin: number;
  /** Covers `[begin, end of the work)`. */
  readonly run: BlockRun;
  /** Sink tokens `[0, sinkCount)` that lie before `begin`, and their pages. */
  readonly sinkCount: number;
  readonly sinkRun: BlockRun;
}

/** Rows of one request in one forward: tokens at positions `[begin, end)`. */
export interface TinyWork {
  readonly request: LlmRequest;
  readonly begin: number;
  readonly end: number;
  /** By layer group. */
  readonly pages: readonly WorkPages[];
  /** The work's last row is one to sample from. */
  readonly samples: boolean;
}

const NO_PAGES: BlockRun = { begin: 0, slots: new Int32Array(0) };

/** What a scheduled chunk or decode step computes, and where its pages are right now. */
export function tinyWork(cache: KvCacheManager, work: ScheduledWork): TinyWork {
  const { request, chunkStart, chunkEnd } = work;
  // A decode step feeds the token at its position.
  const end = chunkEnd === chunkStart ? chunkEnd + 1 : chunkEnd;
  const { tokensPerBlock } = cache;
  const pages = cache.layerGroups.map(({ windowSize, sinkTokens = 0 }, group): WorkPages => {
    const begin = windowSize === null ? 0 : Math.max(0, chunkStart - windowSize + 1);
    const run = (from: number, to: number): BlockRun =>
      cache.getBlockIdsRange(request.id, group, Math.floor(from / tokensPerBlock), Math.ceil(to / tokensPerBlock));
    const sinkCount = Math.min(sinkTokens, begin);
    return { begin, run: run(begin, end), sinkCount, sinkRun: sinkCount === 0 ? NO_PAGES : run(0, sinkCount) };
  });
  return { request, begin: chunkStart, end, pages, samples: end >= request.promptTokens.length };
}
