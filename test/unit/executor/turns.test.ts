import { describe, expect, it } from 'vitest';
import { Executor } from '../../../src/executor/executor.js';
import type { LlmRequest } from '../../../src/executor/request.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { FakeCache } from './fake-cache.js';
import { FakeEngine } from './fake-engine.js';
import { FakeTransceiver } from './fake-transceiver.js';
import { aggregateRequest, contextRequest, generationRequest, SCHEDULES } from './harness.js';

/** Time passes only by what work is said to cost; the longest stretch without a turn of the event loop is kept. */
class WorkClock extends FakeClock {
  longestMs = 0;
  #spentMs = 0;
  #turnAtMs = 0;

  override now(): number {
    return super.now() + this.#spentMs;
  }

  work(ms: number): void {
    this.#spentMs += ms;
    this.longestMs = Math.max(this.longestMs, this.#spentMs - this.#turnAtMs);
  }

  override async nextTurn(): Promise<void> {
    await super.nextTurn();
    this.#turnAtMs = this.#spentMs;
  }
}

type Methods<T> = { [K in keyof T]: T[K] extends (...args: never[]) => unknown ? K : never }[keyof T];

function charge<T extends object>(target: T, clock: WorkClock, costsMs: Partial<Record<Methods<T>, number>>): void {
  for (const [name, ms] of Object.entries(costsMs)) {
    const method = Reflect.get(target, name) as (...args: unknown[]) => unknown;
    Reflect.set(target, name, (...args: unknown[]) => {
      clock.work(ms as number);
      return method.apply(target, args);
    });
  }
}

describe.each(SCHEDULES)('turns of the event loop, %s', (schedule) => {
  it('are never further apart than 5 ms, with 600 requests that all do the same at the same time', async () => {
    const clock = new WorkClock();
    const log: string[] = [];
    const cache = new FakeCache(log, { tokensPerBlock: 4, slotCount: 100_000 });
    const transceiver = new FakeTransceiver(log);
    const engine = new FakeEngine(log);
    // Dearer than they are, by a factor of three or more.
    charge(cache, clock, { addRequest: 0.5, ensureCapacity: 0.02, markComputed: 0.02, freeRequest: 0.02 });
    charge(transceiver, clock, {
      respondAndSendAsync: 0.4,
      sendEarlyPrefix: 0.4,
      requestAndReceiveAsync: 0.4,
      cancelRequest: 0.05,
      receiverReady: 0.003,
    });
    const ended = new Map<string, number>();
    const executor = new Executor({
      clock,
      cache,
      transceiver,
      engine,
      schedule,
      limits: { chunkTokens: 8, tokenBudget: 4096, maxTokensInBuffer: null },
      events: {
        onToken: () => clock.work(0.01),
        onFinished: (_, outcome) => {
          clock.work(0.01);
          ended.set(outcome, (ended.get(outcome) ?? 0) + 1);
        },
      },
    });
    const requests: LlmRequest[] = [];
    for (let id = 1; id <= 600; id++) {
      cache.hits.set(id, 4);
      const request =
        id % 3 === 0 ? aggregateRequest(id, 12, 3) : id % 3 === 1 ? contextRequest(id, 12) : generationRequest(id, 12);
      requests.push(request);
      executor.submit(request);
    }
    await clock.turn(1200);
    for (const request of requests)
      if (request.id % 3 !== 0) transceiver.settle(request, 'completed', { firstTokens: [1] });
    await clock.turn(1200);
    expect(Object.fromEntries(ended)).toEqual({ completed: 600 });
    for (let id = 601; id <= 1200; id++) executor.submit(contextRequest(id, 12));
    await clock.turn(1);
    for (let id = 601; id <= 1200; id++) executor.cancel(id);
    await clock.turn(1200);
    expect(Object.fromEntries(ended)).toEqual({ completed: 600, cancelled: 600 });
    expect(clock.longestMs).toBeLessThanOrEqual(5);
  });
});
