import { ConfigError } from '../../../errors.js';
import type { PageTable } from '../../../mapping/page-table.js';
import { kvHeadShard } from '../../../mapping/shard.js';
import { KvPages, type PageBytes } from './kv-pages.js';
import type { TinyModelConfig } from './tiny-config.js';
import type { HeadRange } from './tiny-model.js';

/** What one rank has of a model. */
export interface TinyShard {
  readonly heads: HeadRange;
  readonly kvHeads: HeadRange;
  /** By global layer id. */
  readonly layers: readonly {
    readonly group: number;
    readonly windowSize: number | null;
    readonly sinkTokens: number;
    readonly key: KvPages;
    readonly value: KvPages;
  }[];
}

/** @throws ConfigError naming where the page table and the model differ, or the heads cannot be split over the ranks */
export function tinyShard(
  bytes: PageBytes,
  table: PageTable,
  config: TinyModelConfig,
  place: { readonly rank: number; readonly size: number },
): TinyShard {
  const { attentionHeads, kvHeads, headDim } = config;
  const { rank, size } = place;
  if (attentionHeads % size !== 0) {
    throw new ConfigError(`tiny engine: ${attentionHeads} heads cannot be split over ${size} ranks; use a divisor`);
  }
  const { headsPerRank, firstHead } = kvHeadShard(kvHeads, size, rank);
  const layers = config.layers.map(({ windowSize, sinkTokens = 0 }, layer) => {
    const group = table.layerGroups.findIndex(({ views }) =>
      views.some((view) => view.layers.some((entry) => entry.layer === layer)),
    );
    const key = new KvPages(bytes, table, group, layer, 'key');
    const value = new KvPages(bytes, table, group, layer, 'value');
    const found = table.layerGroups[group];
    const facts = [
      ['windowSize', found?.windowSize, windowSize],
      ['sinkTokens', found?.sinkTokens ?? 0, sinkTokens],
      ...(found?.views ?? []).flatMap(
        (view) =>
          [
            ['headsPerRank', view.headsPerRank, headsPerRank],
            ['headDim', view.headDim, headDim],
          ] as const,
      ),
    ] as const;
    for (const [name, is, wanted] of facts) {
      if (is !== wanted) {
        throw new ConfigError(
          `tiny engine: ${name} of layer ${layer} is ${is} in the page table and ${wanted} in the model; build the table from the model (tinyLayerGroups)`,
        );
      }
    }
    return { group, windowSize, sinkTokens, key, value };
  });
  const perRank = attentionHeads / size;
  return {
    heads: { begin: rank * perRank, end: (rank + 1) * perRank },
    kvHeads: { begin: firstHead, end: firstHead + headsPerRank },
    layers,
  };
}
