/** Metrics, traces and logs. */
export { createLogger, type LoggerOptions } from './create-logger.js';
export { KvLogging } from './kv-logging.js';
export { KvMetrics } from './kv-metrics.js';
export { KvTracing } from './kv-tracing.js';
export { type LogFields, type Logger, SILENT_LOGGER, transceiverLog } from './logger.js';
export { METRICS, type MetricDefinition } from './metric-catalogue.js';
export { Observation, type ObservationOptions } from './observation.js';
export type { Observed } from './observed.js';
