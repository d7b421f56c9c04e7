import { describe, expect, it } from 'vitest';
import { GrowingCacheManager, type PageMover, ReservingCacheManager } from '../../../src/cache/index.js';
import { RequestTooLargeError, ResourceError, SessionRetiredError } from '../../../src/errors.js';
import { createRequest } from '../../../src/executor/create-request.js';
import { Executor } from '../../../src/executor/executor.js';
import type { StepSchedule } from '../../../src/executor/executor-options.js';
import type { LlmRequest } from '../../../src/executor/request.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { FakeEngine } from './fake-engine.js';
import { FakeTransceiver } from './fake-transceiver.js';
import { aggregateRequest, contextRequest, generationRequest, harness, prompt, SCHEDULES, WHOLE } from './harness.js';

const FULL = { kind: 'attention', windowSize: null, tokensPerBlock: 4, layers: [0], slotCount: 1000 } as const;

/** An executor over a real manager. */
function over(
  Manager: typeof GrowingCacheManager,
  schedule: StepSchedule,
  options: Partial<ConstructorParameters<typeof GrowingCacheManager>[0]>,
  chunkTokens = 64,
) {
  const [log, clock]: [string[], FakeClock] = [[], new FakeClock()];
  const cache = new Manager({ tokensPerBlock: 4, layerGroups: [FULL], ...options });
  const transceiver = new FakeTransceiver(log);
  const limits = { chunkTokens, tokenBudget: 64, maxTokensInBuffer: null };
  const engine = new FakeEngine(log);
  const ends = new Map<number, string>();
  const events = {
    onFinished: ({ id, error }: LlmRequest, outcome: string) =>
      ends.set(id, `${outcome} ${error?.message ?? ''}`.trim()),
  };
  const executor = new Executor({ clock, cache, transceiver, engine, limits, events, schedule });
  return { log, clock, cache, transceiver, engine, executor, ends };
}

describe.each(SCHEDULES)('a windowed pool, %s', (schedule) => {
  const windowed = (slotCount: number, sinkTokens = 0) => ({
    layerGroups: [FULL, { ...FULL, layers: [1], windowSize: 16, slotCount, sinkTokens }],
  });

  it('of one window alone is too small for a decode step whose window begins inside a block: refused at once', async () => {
    const { executor, clock, ends } = over(GrowingCacheManager, schedule, windowed(4));
    for (const make of [aggregateRequest, generationRequest]) {
      expect(() => executor.submit(make(1, 32, 10))).toThrow(RequestTooLargeError);
      expect(() => executor.submit(make(1, 32, 10))).toThrow(
        /needs 5 blocks for 41 tokens with a window of 16, layer group 1 has 4 in all; shorten .* or enlarge the pool/,
      );
    }
    // Nothing is decoded after the first token, and nothing at all where the window begins with a block.
    executor.submit(createRequest({ id: 2, promptTokens: prompt(15), maxTokens: 2 }));
    await clock.turn(40);
    expect(Object.fromEntries(ends)).toEqual({ 2: 'completed' });
  });

  it('with room for the block in which the window begins is enough, however long the prompt and its answer', async () => {
    const { executor, clock, ends, engine } = over(GrowingCacheManager, schedule, windowed(6, 4));
    executor.submit(aggregateRequest(1, 200, 60));
    executor.submit(aggregateRequest(2, 200, 60));
    await clock.turn(2000);
    expect(Object.fromEntries(ends)).toEqual({ 1: 'completed', 2: 'completed' });
    // Chunks as long as the pool allows: the window and a few tokens.
    const chunks = engine.batches.flatMap(({ context }) => context.map((work) => work.chunkEnd - work.chunkStart));
    expect(Math.max(...chunks)).toBeLessThanOrEqual(24);
    expect(Math.min(...chunks)).toBeGreaterThanOrEqual(4);
  });

  it('of a manager that keeps what left the window must hold all of it', async () => {
    const { executor, clock, ends } = over(ReservingCacheManager, schedule, windowed(12));
    expect(() => executor.submit(aggregateRequest(1, 32, 18))).toThrow(/needs 13 blocks for 49 tokens/);
    executor.submit(aggregateRequest(2, 32, 17));
    // Of a received prompt it keeps the final window.
    expect(() => executor.submit(generationRequest(3, 32, 35))).toThrow(/needs 13 blocks for 66 tokens/);
    await clock.turn(200);
    expect(Object.fromEntries(ends)).toEqual({ 2: 'completed' });
  });

  it('of a manager that keeps what left the window: what a prefix hit brings before the final window is not kept', async () => {
    const { executor, clock, ends, transceiver } = over(ReservingCacheManager, schedule, {
      ...windowed(4),
      senderTokensPerBlock: 4,
    });
    const receive = async (id: number, promptLen: number): Promise<void> => {
      const request = generationRequest(id, promptLen, 1);
      executor.submit(request);
      await clock.turn(20);
      transceiver.settle(request, 'completed', { firstTokens: [1] });
      await clock.turn(20);
    };
    await receive(1, 16);
    await receive(2, 31);
    expect(Object.fromEntries(ends)).toEqual({ 1: 'completed', 2: 'completed' });
  });
});

describe.each(SCHEDULES)('a decode step that gets no block, %s', (schedule) => {
  it('and that nobody can ever help ends with an error that names the remedy, and those behind it go on', async () => {
    const h = harness({ schedule, slotCount: 10 });
    const [stuck, behind] = [aggregateRequest(1, 8, 20), aggregateRequest(2, 16, 1)];
    h.executor.submit(stuck);
    await h.clock.turn(2);
    // What a manager that miscounts would do: the request was let in, and its blocks are not there.
    h.cache.stolen = 5;
    h.executor.submit(behind);
    await h.clock.turn(100);
    expect(stuck.error).toBeInstanceOf(ResourceError);
    expect(stuck.error?.message).toMatch(
      /request 1: no blocks for token 14 although no request is left .* enlarge the pool/,
    );
    expect(h.take().filter((line) => line.startsWith('finished'))).toEqual([
      'finished 1 failed DISAGG_TRANS_ERROR',
      'finished 2 completed GENERATION_COMPLETE',
    ]);
  });

  it('waits for one who is being received and for pages that are not drained', async () => {
    const h = harness({ schedule, slotCount: 11 });
    const received = generationRequest(2, 4, 1);
    h.executor.submit(received);
    await h.clock.turn(5);
    h.executor.submit(aggregateRequest(1, 8, 20));
    await h.clock.turn(2);
    h.cache.stolen = 5;
    await h.clock.turn(100);
    await h.clock.run(1000);
    h.cache.pin(2);
    h.transceiver.settle(received, 'completed', { firstTokens: [1] });
    await h.clock.turn(100);
    await h.clock.run(1000);
    expect(h.take().filter((line) => line.startsWith('finished'))).toEqual([
      'finished 2 completed GENERATION_COMPLETE',
    ]);
    h.cache.stolen = 0;
    h.cache.unpin(2);
    await h.clock.run(100);
    await h.clock.turn(100);
    expect(h.take().filter((line) => line.startsWith('finished'))).toEqual([
      'finished 1 completed GENERATION_COMPLETE',
    ]);
  });

  it('waits for its own pages that a transfer still holds', async () => {
    const layerGroups = [FULL, { ...FULL, layers: [1], windowSize: 5, slotCount: 2 }];
    const { executor, clock, cache, transceiver, ends } = over(GrowingCacheManager, schedule, { layerGroups });
    const request = generationRequest(1, 4, 20);
    executor.submit(request);
    await clock.turn(20);
    cache.pin(1, [0, 0]);
    transceiver.settle(request, 'completed', { firstTokens: [1] });
    await clock.turn(100);
    await clock.run(1000);
    expect(cache.stats()[1]).toMatchObject({ free: 0, pinned: 1 });
    expect(Object.fromEntries(ends)).toEqual({});
    cache.unpin(1);
    transceiver.activity();
    await clock.turn(200);
    expect(Object.fromEntries(ends)).toEqual({ 1: 'completed' });
  });
});

describe.each(SCHEDULES)('one who lacks blocks is not given up in the turn in which they come free, %s', (schedule) => {
  it.each([
    ['growing', GrowingCacheManager],
    ['reserving', ReservingCacheManager],
  ])('because another one could not be brought its pages, %s', async (_, Manager) => {
    let fail = (): void => {};
    const mover: PageMover = {
      move: () => ({
        event: null,
        done: new Promise((_resolve, reject) => {
          fail = () => reject(new Error('copy failed'));
        }),
      }),
    };
    const layerGroups = [{ ...FULL, slotCount: 20 }];
    const { executor, clock, ends, log } = over(Manager, schedule, { layerGroups, mover, partialReuse: true });
    executor.submit(createRequest({ id: 1, promptTokens: prompt(9), maxTokens: 1 }));
    await clock.turn(20);
    // A block and a half of what was computed: the half is copied.
    executor.submit(createRequest({ id: 2, promptTokens: prompt(48).fill(777, 6), maxTokens: 1 }));
    await clock.turn(20);
    executor.submit(generationRequest(3, 48, 1, { promptTokens: prompt(48, 5000) }));
    await clock.turn(20);
    expect(log.filter((line) => line.startsWith('receive'))).toEqual([]);
    fail();
    await clock.turn(20);
    expect(ends.get(2)).toMatch(/failed .*copy failed/);
    expect(log.filter((line) => line.startsWith('receive'))).toEqual(['receive 3 0']);
    expect(ends.has(3)).toBe(false);
  });

  it('because the early prefix of another one was refused', async () => {
    const done = new Promise<void>(() => {});
    const event = { handle: 1, signal: () => {}, fail: () => {} };
    let isSlow = false;
    const mover: PageMover = { move: () => (isSlow ? { event, done } : null) };
    const layerGroups = [{ ...FULL, slotCount: 20, hostSlotCount: 40 }];
    const { executor, clock, ends, transceiver } = over(GrowingCacheManager, schedule, { layerGroups, mover });
    for (const [id, length, first] of [
      [1, 41, 0],
      [9, 77, 9000],
    ] as const) {
      executor.submit(createRequest({ id, promptTokens: prompt(length, first), maxTokens: 1 }));
      await clock.turn(20);
    }
    isSlow = true;
    transceiver.prefixFailure = new SessionRetiredError('request 2: its transfer already ended', { requestId: '2' });
    executor.submit(contextRequest(2, 60));
    executor.submit(contextRequest(3, 60, { promptTokens: prompt(60, 5000), transferPolicy: WHOLE }));
    await clock.turn(40);
    expect(ends.get(2)).toMatch(/failed .*already ended/);
    // It has its blocks, whose old content is being saved.
    expect(ends.has(3)).toBe(false);
    expect(executor.stats().live).toBe(1);
  });
});
