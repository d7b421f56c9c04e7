/** How several ranks of one instance act alike. */
export { LocalRankGroup, type LocalRankGroupOptions } from './local-rank-group.js';
export { openRankGroup, type RankGroupOptions } from './open-rank-group.js';
export { type RankGroup, SINGLE_RANK_GROUP } from './rank-group.js';
export type { OfferedRequest, RankEnding, RankReport, StepCheck } from './rank-report.js';
