/** Page tables, who talks to whom, and which bytes go where. */
export {
  buildPageTable,
  type GroupSpec,
  type PageTableSpec,
  POOL_ALIGNMENT_BYTES,
  rebasePageTable,
  withAux,
} from './build-page-table.js';
export { explainCompatibility, type Finding } from './compatibility.js';
export { dtypeBits, KNOWN_DTYPES } from './dtype.js';
export type {
  LayerEntry,
  LayerView,
  PagePool,
  PageTable,
  PageTableGroup,
  PoolMemory,
  ViewLayout,
  ViewRole,
} from './page-table.js';
export { type GroupMapping, mapPeer, type PeerMapping } from './peer-mapping.js';
export { peersOf, type RankPlace, type Topology } from './peers-of.js';
export { planAuxFragments, planFragments } from './plan-fragments.js';
export { planAux, planSlice } from './plan-slice.js';
export type { RankInfo } from './rank-info.js';
export { AUX_GROUP, type Fragment, type GroupPlan, type PlanStats, type TransferPlan } from './transfer-plan.js';
export { validatePageTable } from './validate-page-table.js';
export { validateRun } from './validate-run.js';
