import { describe, expect, it } from 'vitest';
import type { CachePrompt } from '../../../src/cache/index.js';
import { GrowingCacheManager, ReservingCacheManager } from '../../../src/cache/index.js';
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

  it('are never further apart than 5 ms while a closing executor ends 600 requests, all of them before it is closed', async () => {
    const clock = new WorkClock();
    const log: string[] = [];
    const cache = new FakeCache(log, { tokensPerBlock: 4, slotCount: 100_000 });
    const transceiver = new FakeTransceiver(log);
    transceiver.allReady = false;
    charge(transceiver, clock, { receiverReady: 0.003, cancelRequest: 0.1 });
    charge(cache, clock, { freeRequest: 0.02 });
    const ended: string[] = [];
    const executor = new Executor({
      clock,
      cache,
      transceiver,
      engine: new FakeEngine(log),
      schedule,
      limits: { chunkTokens: 8, tokenBudget: 4096, maxTokensInBuffer: null },
      events: {
        onFinished: ({ id, error }, outcome) => {
          clock.work(0.05);
          ended.push(`${id} ${outcome} ${error?.code}`);
        },
      },
    });
    for (let id = 1; id <= 600; id++) executor.submit(contextRequest(id, 12));
    await clock.turn(20);
    clock.longestMs = 0;
    let endedAtClose = -1;
    const closing = executor.close({ deadlineMs: 10 });
    void closing.then(() => {
      endedAtClose = ended.length;
    });
    clock.advance(10);
    await clock.turn(3);
    // Some have ended, and what comes between the portions is heard.
    expect(ended.length).toBeGreaterThan(0);
    expect(ended.length).toBeLessThan(300);
    expect(executor.cancel(600)).toBe(true);
    expect(() => executor.submit(contextRequest(601, 12))).toThrow(/the executor is closing/);
    await clock.turn(600);
    expect(endedAtClose).toBe(600);
    expect([...ended].sort()).toEqual(Array.from({ length: 600 }, (_, i) => `${i + 1} failed ERR_KVT_STATE`).sort());
    expect(await closing).toEqual({ drained: false, failed: 600 });
    expect(clock.longestMs).toBeLessThanOrEqual(5);
  });

  it('are never further apart than 5 ms while 10,000 prompts wait for their receivers', async () => {
    const clock = new WorkClock();
    const log: string[] = [];
    const transceiver = new FakeTransceiver(log);
    transceiver.allReady = false;
    charge(transceiver, clock, { receiverReady: 0.003 });
    const executor = new Executor({
      clock,
      cache: new FakeCache(log, { tokensPerBlock: 4, slotCount: 100_000 }),
      transceiver,
      engine: new FakeEngine(log),
      schedule,
      limits: { chunkTokens: 8, tokenBudget: 4096, maxTokensInBuffer: null },
    });
    for (let id = 1; id <= 10_000; id++) executor.submit(contextRequest(id, 12));
    await clock.turn(60);
    expect(transceiver.readyCalls).toBeGreaterThanOrEqual(10_000);
    expect(clock.longestMs).toBeLessThanOrEqual(5);
  });
});

const TPB = 4;
/** What a block costs where it is taken, looked for or made known as content; dearer than it is. */
const BLOCK_MS = 0.002;

/** Whatever costs time with each block says so to the clock. */
function chargeBlocks(cache: GrowingCacheManager | ReservingCacheManager, clock: WorkClock): void {
  const charged =
    <Args extends unknown[], T>(call: (...args: Args) => T, blocksOf: (args: Args) => number) =>
    (...args: Args): T => {
      const before = blocksOf(args);
      const result = call.apply(cache, args);
      clock.work(Math.abs(blocksOf(args) - before) * BLOCK_MS);
      return result;
    };
  const taken = (): number => cache.stats().reduce((sum, { slotCount, free }) => sum + slotCount - free, 0);
  const computed = new Map<number, number>();
  const markComputed = cache.markComputed.bind(cache);
  const lookAhead = cache.lookAhead.bind(cache);
  const addRequest = cache.addRequest.bind(cache);
  Object.assign(cache, {
    ensureCapacity: charged(cache.ensureCapacity.bind(cache), taken),
    addRequest: (request: number, prompt: CachePrompt) => {
      const found = addRequest(request, prompt);
      computed.set(request, found.prepopulatedLen);
      return found;
    },
    growAhead: charged(cache.growAhead.bind(cache), taken),
    lookAhead: (prompt: CachePrompt, blocks: number) => {
      clock.work(blocks * BLOCK_MS);
      return lookAhead(prompt, blocks);
    },
    markComputed: (request: number, endToken: number) => {
      clock.work(((endToken - (computed.get(request) ?? 0)) / TPB) * BLOCK_MS);
      computed.set(request, endToken);
      markComputed(request, endToken);
    },
  });
}

describe.each([
  ['growing', GrowingCacheManager],
  ['reserving', ReservingCacheManager],
] as const)('turns of the event loop, a prompt of 20,000 blocks and a %s manager', (_name, Manager) => {
  it('are never further apart than 5 ms: it is found, taken and made known in portions', async () => {
    const clock = new WorkClock();
    const log: string[] = [];
    const blocks = 20_000;
    const group = {
      kind: 'attention',
      windowSize: null,
      tokensPerBlock: TPB,
      layers: [0],
      slotCount: 2 * blocks,
    } as const;
    const cache = new Manager({ tokensPerBlock: TPB, layerGroups: [group] });
    chargeBlocks(cache, clock);
    const transceiver = new FakeTransceiver(log);
    const ended: string[] = [];
    const tokensAtMs: number[] = [];
    const executor = new Executor({
      clock,
      cache,
      transceiver,
      engine: new FakeEngine(log),
      limits: { chunkTokens: 1000 * TPB, tokenBudget: 8192, maxTokensInBuffer: null },
      events: { onFinished: (_, outcome) => ended.push(outcome), onToken: () => tokensAtMs.push(clock.now()) },
    });
    for (let id = 1; id <= 3; id++) {
      const request = id < 3 ? generationRequest(id, blocks * TPB, 3) : aggregateRequest(id, blocks * TPB, 3);
      request.promptTokens.fill(7);
      const submittedAtMs = clock.now();
      executor.submit(request);
      if (id < 3) {
        await clock.turn(400);
        expect(request.state).toBe('DISAGG_GENERATION_TRANS_IN_PROGRESS');
        const settledAtMs = clock.now();
        transceiver.settle(request, 'completed', { firstTokens: [1] });
        tokensAtMs.length = 0;
        await clock.turn(400);
        // The first token does not wait for what the blocks cost.
        expect((tokensAtMs[0] as number) - settledAtMs).toBeLessThan(1);
        expect(clock.now() - submittedAtMs).toBeGreaterThan(20);
      } else await clock.turn(1000);
      expect(ended).toEqual(Array(id).fill('completed'));
      // The second and the third find what the first has left.
      expect(request.prepopulatedLen).toBe(id === 1 ? 0 : (blocks - 1) * TPB);
    }
    expect(clock.longestMs).toBeLessThanOrEqual(5);
  });
});

describe.each([
  ['growing', GrowingCacheManager],
  ['reserving', ReservingCacheManager],
] as const)('turns of the event loop, 20,000 blocks on the host and a %s manager', (_name, Manager) => {
  it('are never further apart than 5 ms: they are brought to the device in portions, before the request is admitted', async () => {
    const clock = new WorkClock();
    const log: string[] = [];
    const blocks = 20_000;
    const group = {
      kind: 'attention',
      windowSize: null,
      tokensPerBlock: TPB,
      layers: [0],
      slotCount: blocks + 10,
      hostSlotCount: 3 * blocks,
    } as const;
    let onboarded = 0;
    const cache = new Manager({
      tokensPerBlock: TPB,
      layerGroups: [group],
      mover: {
        move: (moves) => {
          onboarded += moves.filter(({ kind }) => kind === 'onboard').length;
          clock.work(moves.length * BLOCK_MS);
          return null;
        },
      },
    });
    chargeBlocks(cache, clock);
    const executor = new Executor({
      clock,
      cache,
      transceiver: new FakeTransceiver(log),
      engine: new FakeEngine(log),
      limits: { chunkTokens: 1000 * TPB, tokenBudget: 8192, maxTokensInBuffer: null },
    });
    const finds: number[] = [];
    for (const token of [1, 2, 1, 2]) {
      const request = aggregateRequest(finds.length + 1, blocks * TPB, 3);
      request.promptTokens.fill(token);
      executor.submit(request);
      await clock.turn(1500);
      expect(request.state).toBe('GENERATION_COMPLETE');
      finds.push(request.prepopulatedLen);
    }
    const found = (blocks - 1) * TPB;
    expect(finds).toEqual([0, 0, found, found]);
    expect(onboarded).toBeGreaterThan(blocks);
    expect(clock.longestMs).toBeLessThanOrEqual(5);
  });
});
