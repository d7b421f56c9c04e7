/** One request over a context and a generation server. */
export type { CoordinatorObserver, CoordinatorSubmission } from './coordinator-observer.js';
export type { CoordinatorRequest, CoordinatorResult, RequestUsage } from './coordinator-request.js';
export type { CoordinatorServerStats, CoordinatorStats } from './coordinator-stats.js';
export { type CoordinatorCall, DisaggCoordinator, type DisaggCoordinatorOptions } from './disagg-coordinator.js';
export type {
  DisaggServer,
  ServerCall,
  ServerCondition,
  ServerEvents,
  ServerRequest,
  ServerResult,
} from './disagg-server.js';
export { LeastLoadedRouter } from './least-loaded-router.js';
export { LocalServer, type LocalServerOptions } from './local-server.js';
export { type PrefixOverlapOptions, PrefixOverlapRouter } from './prefix-overlap-router.js';
export { RoundRobinRouter } from './round-robin-router.js';
export type { RouteCandidate, RoutedPrompt, Router } from './router.js';
export { ServerPool, type ServerStatus } from './server-pool.js';
export { DEFAULT_EPOCH_MS, SnowflakeIds, type SnowflakeOptions } from './snowflake-ids.js';
