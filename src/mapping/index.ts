/** Page tables, who talks to whom, and which bytes go where. */
export {
  buildPageTable,
  type GroupSpec,
  type PageTableSpec,
  POOL_ALIGNMENT_BYTES,
  rebasePageTable,
  type StateSpec,
  withAux,
} from './build-page-table.js';
export { explainCompatibility, explainGreeting, explainTopology, type Finding } from './compatibility.js';
export { dtypeBits, KNOWN_DTYPES } from './dtype.js';
export { expectedBytes, ownedBlocks } from './expected-bytes.js';
export { auxWriter, auxWriterOf, expectedReceivers, expectedWriters, writersOfEveryGroup } from './expected-peers.js';
export type {
  LayerEntry,
  LayerView,
  PagePool,
  PageTable,
  PageTableGroup,
  PoolMemory,
  StateSection,
  ViewLayout,
  ViewRole,
} from './page-table.js';
export { type GroupMapping, type MappingPlaces, mapPeer, mapRanks, type PeerMapping } from './peer-mapping.js';
export { checkPlace, ownsAux, peersOf, ranksOverlap } from './peers-of.js';
export { planAux, planSlice } from './plan-slice.js';
export type { RankInfo } from './rank-info.js';
export { flatRank, type RankPlace, type RankPlaceInDp, SINGLE_RANK, type Topology } from './rank-place.js';
export { isElected, kvHeadShard, type Shard } from './shard.js';
export {
  AUX_GROUP,
  type Fragment,
  type GroupPlan,
  type PairOrder,
  type PlanStats,
  type TransferPlan,
} from './transfer-plan.js';
export { validatePageTable } from './validate-page-table.js';
export { validateRun } from './validate-run.js';
