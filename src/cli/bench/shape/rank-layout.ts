import type { ContentJob } from '../../../agent/page-content.js';
import type { LayerGroup } from '../../../cache/kv-cache-manager.js';
import { buildPageTable, type PageTableSpec, type StateSpec } from '../../../mapping/build-page-table.js';
import type { PageTable } from '../../../mapping/page-table.js';
import { type RankPlaceInDp, stageLayers } from '../../../mapping/rank-place.js';
import { kvHeadShard } from '../../../mapping/shard.js';
import { layerGroupsOf, type ModelPreset } from '../presets/model-preset.js';
import type { RecurrentState } from '../presets/recurrent-state.js';
import type { SideShape } from './side-shape.js';

/** Slots of one rank's layer groups. */
export interface SlotCounts {
  /** Blocks of tokens, in every attention group. */
  readonly blocks: number;
  /** Requests whose recurrent state is kept. */
  readonly states: number;
}

/** Which part of the model's content a rank holds; see `ContentJob`. */
export type ContentPlace = Pick<ContentJob, 'firstHead' | 'firstUnits'>;

/** What one rank keeps, and where. */
export interface RankLayout {
  readonly place: RankPlaceInDp;
  /** Of the whole model: the ranks of a side plan alike, whichever groups have a layer in their stage. */
  readonly layerGroups: readonly LayerGroup[];
  /** Those with a layer in the stage, in the order of the page table. */
  readonly stageGroups: readonly LayerGroup[];
  /** At address 0, and what to allocate. */
  readonly layout: { readonly table: PageTable; readonly sizeBytes: number };
  readonly content: ContentPlace;
}

/** @throws ArgumentError for a place that keeps nothing, or heads that tensor parallelism cannot share out */
export function rankLayout(preset: ModelPreset, shape: SideShape, place: RankPlaceInDp, slots: SlotCounts): RankLayout {
  const { tokensPerBlock } = shape;
  const { begin, end } = stageLayers(place);
  const layerGroups = layerGroupsOf(preset).map(
    ({ kind, windowSize, layers }): LayerGroup => ({
      kind,
      windowSize,
      tokensPerBlock,
      layers,
      slotCount: kind === 'state' ? slots.states : slots.blocks,
    }),
  );
  const stageGroups = layerGroups
    .map((group) => ({ ...group, layers: group.layers.filter((layer) => layer >= begin && layer < end) }))
    .filter(({ layers }) => layers.length > 0);
  const heads = kvHeads(preset, place);
  const state = preset.hybrid?.state ?? null;
  const layout = buildPageTable({
    groups: stageGroups,
    kvHeads: heads.headsPerRank,
    ...cacheDims(preset),
    ...(state === null ? {} : { state: stateSpec(state, preset.dtype, place) }),
    dtype: preset.dtype,
    poolLayout: shape.poolLayout,
    blockLayout: shape.blockLayout,
  });
  return {
    place,
    layerGroups,
    stageGroups,
    layout,
    content: {
      firstHead: heads.firstHead,
      ...(state === null ? {} : { firstUnits: firstUnits(state, place) }),
    },
  };
}

function kvHeads({ cache }: ModelPreset, { tpSize, tpRank }: RankPlaceInDp) {
  // Latent vectors are the same on every rank.
  return cache.kind === 'attention' ? kvHeadShard(cache.kvHeads, tpSize, tpRank) : { headsPerRank: 1, firstHead: 0 };
}

function cacheDims({ cache }: ModelPreset): Pick<PageTableSpec, 'headDim' | 'latentDim' | 'indexDim'> {
  if (cache.kind === 'attention') return { headDim: cache.headDim };
  const latentDim = cache.latentDim + cache.ropeDim;
  return { headDim: 1, latentDim, ...(cache.indexDim === undefined ? {} : { indexDim: cache.indexDim }) };
}

/** Each section is shared out by itself: a rank may hold a part of x and, where there are fewer groups than ranks, a copy of B and C. */
function stateSpec(state: RecurrentState, dtype: string, { tpSize, tpRank }: RankPlaceInDp): StateSpec {
  return {
    conv: {
      dtype,
      width: state.convWidth,
      sections: state.convSections.map(({ units, channelsPerUnit }) => ({
        channels: kvHeadShard(units, tpSize, tpRank).headsPerRank * channelsPerUnit,
        unitChannels: channelsPerUnit,
      })),
    },
    ssm: {
      dtype,
      heads: kvHeadShard(state.ssmHeads, tpSize, tpRank).headsPerRank,
      headElements: state.ssmHeadElements,
    },
  };
}

function firstUnits(state: RecurrentState, { tpSize, tpRank }: RankPlaceInDp): NonNullable<ContentPlace['firstUnits']> {
  const first = (units: number): number => kvHeadShard(units, tpSize, tpRank).firstHead;
  return { conv_state: state.convSections.map(({ units }) => first(units)), ssm_state: [first(state.ssmHeads)] };
}
