/** Blocks, windows and chunks: pure arithmetic, no state, no I/O. */
export { type BlockRun, HOLE, joinRuns, runEnd } from './block-run.js';
export { type EarlyPrefixGates, earlyPrefixSlice } from './early-prefix-slice.js';
export { pairRuns, pairSubBlocks } from './pair-runs.js';
export { type BlockSlice, type PrefillChunk, type PrefillSlice, prefillSlice } from './prefill-slice.js';
export { projectBlocksToGlobalChunk } from './project-blocks.js';
export { sinkRange } from './sink-range.js';
export { type BlockRange, type GroupShape, sourceRange } from './source-range.js';
export { staleBlockEnd } from './stale-block-end.js';
