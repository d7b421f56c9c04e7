/** The loop of one server, and what plugs into it. */
export { createRequest, MONOLITHIC, type RequestSpec } from './create-request.js';
export { PaceCurve, type PaceDevice, type PacedModel } from './engines/pace-curve.js';
export { PacedEngine, type PacedEngineOptions, type PacedEngineStats } from './engines/paced-engine.js';
export * from './engines/tiny/index.js';
export { Executor } from './executor.js';
export type { ExecutorEvents, RequestEvents, RequestOutcome, StepReport } from './executor-events.js';
export type { ExecutorCloseReport, ExecutorOptions, ExecutorStats, StepSchedule } from './executor-options.js';
export type { ContextIdentity } from './forward-stage.js';
export type { ForwardResult, ModelEngine, ScheduledBatch, ScheduledWork } from './model-engine.js';
export {
  type DisaggregatedParams,
  type LlmRequest,
  type RequestState,
  type RequestType,
  remainingPromptTokens,
  requestKey,
  type ScheduleStyle,
  type TransferPolicy,
} from './request.js';
export type { SchedulerLimits } from './scheduler.js';
