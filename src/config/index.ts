/** Settings of a cache transceiver: defaults, checks, types. */
export type { DisaggConfig, DisaggFileOptions, DisaggServerGroup } from './disagg/disagg-config.js';
export { type DisaggConfigFile, parseDisaggConfigFile, readDisaggConfigFile } from './disagg/disagg-file.js';
export type { ConfigFacts, ServerRole } from './facts.js';
export type { ConfigProblem, ConfigWarning } from './problem.js';
export { type CacheTransceiverConfig, type ResolvedConfig, resolveCacheTransceiverConfig } from './resolve.js';
export type { CacheTransceiverConfigInput } from './schema.js';
export { checkServerPair } from './server-pair.js';
