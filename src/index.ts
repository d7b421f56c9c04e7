/** Moves KV cache between servers in disaggregated LLM serving, chunk by chunk, while prefill is still computing. */

export { agentOptions } from './agent/agent-options.js';
export type { BounceOptions, InboundGroup } from './agent/bounce.js';
export type { BounceStats } from './agent/bounce-stats.js';
export { CudaDevice } from './agent/cuda-device.js';
export { CudaEvent, type CudaEventState } from './agent/cuda-event.js';
export { CudaStream, type StreamPriority } from './agent/cuda-stream.js';
export { type Capabilities, type CudaDeviceFacts, capabilities } from './agent/native.js';
export { type AgentOptions, createAgent } from './agent/native-agent.js';
export { createPageContent } from './agent/native-page-content.js';
export { NativePageCopier } from './agent/native-page-copier.js';
export type { ContentJob, PageContent, VerifyResult } from './agent/page-content.js';
export type { ByteCopy, MemoryStretch, PageCopier } from './agent/page-copier.js';
export type * from './agent/transfer-agent.js';
export * from './cache/index.js';
export { type Clock, SystemClock, type Timer } from './clock.js';
export * from './config/index.js';
export * from './coordinator/index.js';
export * from './errors.js';
export { createRequest, type RequestSpec } from './executor/create-request.js';
export { PaceCurve, type PaceDevice, type PacedModel } from './executor/engines/pace-curve.js';
export { PacedEngine, type PacedEngineOptions } from './executor/engines/paced-engine.js';
export * from './executor/engines/tiny/index.js';
export { Executor } from './executor/executor.js';
export type { ExecutorDump, RequestDump } from './executor/executor-dump.js';
export type {
  ExecutorEvents,
  ExecutorObserver,
  RequestEvents,
  RequestOutcome,
  StepReport,
} from './executor/executor-events.js';
export type {
  ExecutorCloseReport,
  ExecutorOptions,
  ExecutorStats,
  StepSchedule,
} from './executor/executor-options.js';
export type * from './executor/model-engine.js';
export type { RankGroupStats } from './executor/rank-consensus.js';
export type {
  ContextAnswer,
  DisaggregatedParams,
  LlmRequest,
  PromptUsage,
  RequestState,
  RequestType,
  SamplingParams,
  ScheduleStyle,
  TransferPolicy,
} from './executor/request.js';
export type { SchedulerLimits } from './executor/scheduler.js';
export * from './geometry/index.js';
export * from './mapping/index.js';
export * from './observe/index.js';
export { type OpenedTransceiver, type OpenTransceiverOptions, openTransceiver } from './open-transceiver.js';
export * from './rank-group/index.js';
export * from './serve/index.js';
export type {
  CacheTransceiver,
  SendReceipt,
  Settled,
  SliceTiming,
  TransferTimings,
} from './session/cache-transceiver.js';
export type {
  FallbackNotice,
  ReceiverAsked,
  SliceEnd,
  TransferObserver,
  TransferSide,
  TransferStart,
} from './session/transfer-observer.js';
export {
  KvCacheTransceiver,
  type TransceiverCloseReport,
  type TransceiverDump,
  type TransceiverLog,
  type TransceiverParts,
  type TransceiverStats,
} from './transceiver.js';
export {
  type CurveKeyPair,
  type CurveOptions,
  generateCurveKeyPair,
  type Messenger,
  messengerOptions,
  ZeromqMessenger,
  type ZeromqMessengerOptions,
} from './wire/index.js';
