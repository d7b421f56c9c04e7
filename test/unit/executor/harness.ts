import { createRequest } from '../../../src/executor/create-request.js';
import { Executor } from '../../../src/executor/executor.js';
import type { ExecutorOptions } from '../../../src/executor/executor-options.js';
import type { DisaggregatedParams, LlmRequest, TransferPolicy } from '../../../src/executor/request.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { FakeCache } from './fake-cache.js';
import { FakeEngine } from './fake-engine.js';
import { FakeTransceiver } from './fake-transceiver.js';

/** Suites run once with each. */
export const SCHEDULES = ['plain', 'overlap'] as const;

export const PIPELINED: TransferPolicy = { pipelined: true, earlyPrefix: true };
export const WHOLE: TransferPolicy = { pipelined: false, earlyPrefix: false };

export function params(
  requestType: DisaggregatedParams['requestType'],
  rest: Partial<DisaggregatedParams> = {},
): DisaggregatedParams {
  return {
    requestType,
    scheduleStyle: 'generation_first',
    ctxRequestId: null,
    disaggRequestId: 1n << 41n,
    ctxDpRank: null,
    ctxInfoEndpoint: 'tcp://127.0.0.1:5000',
    firstGenTokens: [],
    draftTokens: [],
    traceparent: '',
    ...rest,
  };
}

/** What both servers know a request by; no two live requests of a server share one. */
export function disaggId(id: number): bigint {
  return (1n << 41n) + BigInt(id);
}

export function prompt(length: number, first = 0): Uint32Array {
  return Uint32Array.from({ length }, (_, index) => first + index);
}

export function contextRequest(id: number, promptLen: number, rest: Partial<LlmRequest> = {}): LlmRequest {
  return createRequest({
    id,
    promptTokens: prompt(promptLen),
    maxTokens: 4,
    disagg: params('context_only', { disaggRequestId: disaggId(id) }),
    transferPolicy: PIPELINED,
    ...rest,
  });
}

export function generationRequest(
  id: number,
  promptLen: number,
  maxTokens = 3,
  rest: Partial<LlmRequest> = {},
): LlmRequest {
  return createRequest({
    id,
    promptTokens: prompt(promptLen),
    maxTokens,
    disagg: params('generation_only', { disaggRequestId: disaggId(id) }),
    ...rest,
  });
}

export function aggregateRequest(id: number, promptLen: number, maxTokens = 3): LlmRequest {
  return createRequest({ id, promptTokens: prompt(promptLen), maxTokens });
}

export interface Harness {
  readonly log: string[];
  readonly clock: FakeClock;
  readonly cache: FakeCache;
  readonly transceiver: FakeTransceiver;
  readonly engine: FakeEngine;
  readonly executor: Executor;
  /** Log entries since the last call, without those that start with one of `without`. */
  take(...without: string[]): string[];
}

/** An executor over fakes; one log says who was called, in order. */
export function harness(
  options: Partial<ExecutorOptions['limits']> & { tokensPerBlock?: number; slotCount?: number } & Partial<
      Pick<ExecutorOptions, 'identity' | 'events' | 'schedule'>
    > = {},
): Harness {
  const { tokensPerBlock = 4, slotCount = 1000, identity, events, schedule = 'plain', ...limits } = options;
  const log: string[] = [];
  const clock = new FakeClock();
  const cache = new FakeCache(log, { tokensPerBlock, slotCount });
  const transceiver = new FakeTransceiver(log);
  const engine = new FakeEngine(log);
  const executor = new Executor({
    clock,
    cache,
    transceiver,
    engine,
    schedule,
    limits: { chunkTokens: 8, tokenBudget: 1000, maxTokensInBuffer: null, ...limits },
    events: {
      ...events,
      onFirstToken: (request, token, atMs) => log.push(`first ${request.id} ${token} @${atMs}`),
      onContextAnswer: (request) => log.push(`answer ${request.id}`),
      onFinished: (request, outcome) => log.push(`finished ${request.id} ${outcome} ${request.state}`),
      onHandlerError: (error, handler) => log.push(`handler ${handler}: ${String(error)}`),
    },
    ...(identity === undefined ? {} : { identity }),
  });
  const take = (...without: string[]): string[] =>
    log.splice(0).filter((line) => !without.some((start) => line.startsWith(start)));
  return { log, clock, cache, transceiver, engine, executor, take };
}
