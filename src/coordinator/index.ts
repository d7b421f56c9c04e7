/** One request over a context and a generation server. */
export type { CoordinatorRequest, CoordinatorResult } from './disagg-call.js';
export { type CoordinatorCall, DisaggCoordinator, type DisaggCoordinatorOptions } from './disagg-coordinator.js';
export type { DisaggServer, ServerCall, ServerEvents, ServerRequest, ServerResult } from './disagg-server.js';
export { LocalServer, type LocalServerOptions } from './local-server.js';
export { DEFAULT_EPOCH_MS, SnowflakeIds, type SnowflakeOptions } from './snowflake-ids.js';
