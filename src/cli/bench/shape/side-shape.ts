import { type RankPlaceInDp, sum } from '../../../mapping/rank-place.js';

export type BlockLayout = 'HND' | 'NHD';

/** How one side splits the model over its ranks, and how each rank keeps its pages. */
export interface SideShape {
  readonly tp: number;
  readonly cp: number;
  /** Layers of each pipeline stage. */
  readonly layersPerStage: readonly number[];
  readonly tokensPerBlock: number;
  readonly blockLayout: BlockLayout;
  readonly poolLayout: 'per-layer' | 'per-block';
}

/** Every rank of a side, by flat rank: stage, then tensor rank, then context rank. */
export function ranksOf({ tp, cp, layersPerStage }: SideShape): readonly RankPlaceInDp[] {
  const ranks: RankPlaceInDp[] = [];
  for (let ppRank = 0; ppRank < layersPerStage.length; ppRank++) {
    for (let tpRank = 0; tpRank < tp; tpRank++) {
      for (let cpRank = 0; cpRank < cp; cpRank++) {
        const sizes = {
          tpSize: tp,
          ppSize: layersPerStage.length,
          cpSize: cp,
          dpSize: 1,
          dpRank: 0,
          attentionDp: false,
        };
        ranks.push({ ...sizes, layersPerStage, tpRank, ppRank, cpRank });
      }
    }
  }
  return ranks;
}

export function rankCount({ tp, cp, layersPerStage }: SideShape): number {
  return tp * cp * layersPerStage.length;
}

/** Tokens of as many neighbouring blocks as there are context parallel ranks: each of them owns one block of it. */
export function stripeTokens({ tokensPerBlock, cp }: SideShape): number {
  return tokensPerBlock * cp;
}

/** Stages that differ by one layer at most, the longer ones first. */
export function evenStages(layerCount: number, stages: number): readonly number[] {
  const shortest = Math.floor(layerCount / stages);
  return Array.from({ length: stages }, (_, stage) => shortest + (stage < layerCount % stages ? 1 : 0));
}

/** `TP2 x PP2 (41 + 39 layers), blocks of 32, HND`; `one rank` instead of the sizes where there is only one. */
export function describeShape(shape: SideShape): string {
  const { tp, cp, layersPerStage, tokensPerBlock, blockLayout } = shape;
  const sizes = [
    tp > 1 ? `TP${tp}` : '',
    layersPerStage.length > 1 ? `PP${layersPerStage.length} (${layersPerStage.join(' + ')} layers)` : '',
    cp > 1 ? `CP${cp}` : '',
  ].filter((size) => size !== '');
  return `${sizes.length === 0 ? 'one rank' : sizes.join(' x ')}, blocks of ${tokensPerBlock}, ${blockLayout}`;
}

export function layerCountOf({ layersPerStage }: SideShape): number {
  return sum(layersPerStage);
}
