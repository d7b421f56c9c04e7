/** Settings of a cache transceiver: defaults, checks, types. */
export {
  type DisaggConfig,
  type DisaggFileOptions,
  type DisaggServerGroup,
  parseDisaggConfigFile,
} from './disagg/disagg-file.js';
export type { ConfigFacts, ServerRole } from './facts.js';
export type { ConfigProblem, ConfigWarning } from './problem.js';
export { type CacheTransceiverConfig, type ResolvedConfig, resolveCacheTransceiverConfig } from './resolve.js';
export type { CacheTransceiverConfigInput } from './schema.js';
export { checkServerPair } from './server-pair.js';
