import { describe, expect, it } from 'vitest';
import { GrowingCacheManager } from '../../../src/cache/growing-cache-manager.js';
import { ConfigError, TransportError } from '../../../src/errors.js';
import { createRequest } from '../../../src/executor/create-request.js';
import { Executor } from '../../../src/executor/executor.js';
import type { LlmRequest } from '../../../src/executor/request.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { FakeEngine } from './fake-engine.js';
import { FakeTransceiver } from './fake-transceiver.js';
import {
  aggregateRequest,
  contextRequest,
  generationRequest,
  type Harness,
  harness,
  prompt,
  WHOLE,
} from './harness.js';

const FAILED = 'finished 1 failed DISAGG_TRANS_ERROR';

function overlapped(options: Parameters<typeof harness>[0] = {}): Harness {
  const h = harness({ schedule: 'overlap', chunkTokens: 8, ...options });
  h.engine.manual = true;
  return h;
}

describe('the overlap schedule', () => {
  it('enqueues a step before the results of the one before it are read, and no further one', async () => {
    const h = overlapped();
    h.executor.submit(aggregateRequest(1, 40, 1));
    await h.clock.turn(40);
    expect(h.take()).toEqual(['forward 1[0,8)', 'forward 1[8,16)']);
    h.engine.finish();
    await h.clock.turn(40);
    expect(h.take()).toEqual(['done', 'computed 1 8', 'forward 1[16,24)']);
  });

  it('decodes right behind the last chunk, with a token that nobody has read', async () => {
    const h = overlapped();
    const request = aggregateRequest(1, 8, 3);
    h.executor.submit(request);
    await h.clock.turn(40);
    expect(h.take()).toEqual(['forward 1[0,8)', 'forward 1@8']);
    expect(request.outputTokens).toEqual([]);
    for (let step = 0; step < 3; step++) {
      h.engine.finish();
      await h.clock.turn(20);
    }
    expect(request.outputTokens).toEqual([100, 101, 102]);
    expect(h.engine.batches).toHaveLength(3);
    expect(h.take().at(-1)).toBe('finished 1 completed GENERATION_COMPLETE');
  });

  it('never enqueues a step for a token beyond maxTokens', async () => {
    const h = overlapped();
    h.executor.submit(aggregateRequest(1, 8, 2));
    await h.clock.turn(40);
    h.engine.finish();
    await h.clock.turn(20);
    expect(h.engine.batches).toHaveLength(2);
    h.engine.finish();
    await h.clock.turn(20);
    expect(h.engine.batches).toHaveLength(2);
    expect(h.executor.stats().live).toBe(0);
  });

  it('a stop token ends the request a step late: the extra token is dropped, the blocks stay until its step ended', async () => {
    const h = overlapped();
    const heard: number[] = [];
    const request = createRequest({ id: 1, promptTokens: prompt(8), maxTokens: 9, stopTokens: [101] });
    h.executor.submit(request, { onToken: (_, token) => heard.push(token) });
    await h.clock.turn(20);
    h.engine.finish();
    await h.clock.turn(20);
    expect(h.engine.batches.map(({ generation }) => generation.map((work) => work.chunkStart))).toEqual([[], [8], [9]]);
    h.engine.finish();
    await h.clock.turn(20);
    // The step at position 9 runs for a request that has ended, and still writes its page.
    expect(heard).toEqual([100, 101]);
    expect(request.state).toBe('GENERATION_COMPLETE');
    expect(h.take()).not.toContain('free 1');
    expect(h.cache.used).toBe(3);
    h.engine.finish();
    await h.clock.turn(20);
    expect(h.take()).toEqual(['done', 'computed 1 10', 'free 1', 'finished 1 completed GENERATION_COMPLETE']);
    expect(request.outputTokens).toEqual([100, 101]);
    expect(request.tokensInFlight).toBe(0);
    expect(h.cache.used).toBe(0);
  });

  it('a stop token that comes with the cache ends the request before any decode', async () => {
    const h = overlapped();
    const request = generationRequest(1, 8, 9, { stopTokens: [7] });
    h.executor.submit(request);
    await h.clock.turn(20);
    h.transceiver.settle(request, 'completed', { firstTokens: [5, 7, 9] });
    await h.clock.turn(20);
    expect(request.outputTokens).toEqual([5, 7]);
    expect(h.engine.batches).toHaveLength(0);
    expect(h.executor.stats().live).toBe(0);
  });

  it('decodes take turns although steps are planned before the last ones are read', async () => {
    const h = overlapped({ tokenBudget: 2 });
    h.engine.manual = false;
    for (let id = 1; id <= 4; id++) h.executor.submit(aggregateRequest(id, 1, 40));
    await h.clock.turn(80);
    const served = h.engine.batches.flatMap(({ generation }) => generation.map((work) => work.request.id));
    const counts = [1, 2, 3, 4].map((id) => served.filter((other) => other === id).length);
    expect(Math.min(...counts)).toBeGreaterThan(10);
    expect(Math.max(...counts) - Math.min(...counts)).toBeLessThanOrEqual(2);
  });

  it('slices of a step leave when the step before it went well', async () => {
    const h = overlapped();
    h.executor.submit(contextRequest(1, 16));
    await h.clock.turn(20);
    expect(h.take()).toEqual(['forward 1[0,8)', 'send 1 [0,8)', 'forward 1[8,16)']);
    h.engine.finish();
    await h.clock.turn(20);
    expect(h.take()).toEqual(['done', 'computed 1 8', 'send 1 [8,16)']);
    expect(h.transceiver.after.map((event) => event?.handle)).toEqual([1, 2]);
  });

  it('a prompt that is sent whole is not sent when an early chunk of it failed, whatever its last one did', async () => {
    const h = overlapped();
    const request = contextRequest(1, 16, { transferPolicy: WHOLE });
    h.executor.submit(request);
    await h.clock.turn(20);
    expect(h.take()).toEqual(['forward 1[0,8)', 'forward 1[8,16)']);
    const error = new TransportError('the device failed');
    const [first, second] = h.engine.running.splice(0);
    first?.fail(error);
    second?.finish();
    await h.clock.turn(20);
    expect(h.take()).toEqual(['engine failed', 'done', 'cancel 1 the device failed', 'free 1', FAILED]);
    // Nothing that rests on the failed chunk may be found by another prompt.
    expect(h.transceiver.after).toEqual([]);
    expect(request.error).toBe(error);
  });

  it('a failed step fails its own requests; those that joined the next one go on', async () => {
    const h = overlapped();
    h.executor.submit(aggregateRequest(1, 16, 1));
    await h.clock.turn(1);
    h.executor.submit(aggregateRequest(2, 8, 1));
    await h.clock.turn(20);
    expect(h.take()).toEqual(['forward 1[0,8)', 'forward 1[8,16) 2[0,8)']);
    h.engine.fail(new TransportError('one bad forward'));
    await h.clock.turn(20);
    // The pages of request 1 are still written by the step ahead.
    expect(h.take()).toEqual(['engine failed']);
    h.engine.finish();
    await h.clock.turn(20);
    expect(h.take()).toEqual([
      'done',
      'free 1',
      FAILED,
      'computed 2 8',
      'first 2 200 @1000',
      'free 2',
      'finished 2 completed GENERATION_COMPLETE',
    ]);
  });

  it('content on top of a failed chunk is not marked either when the user cancelled before', async () => {
    const h = overlapped();
    h.executor.submit(aggregateRequest(1, 24, 1));
    await h.clock.turn(20);
    h.executor.cancel(1);
    h.engine.fail(new TransportError('one bad forward'));
    await h.clock.turn(20);
    h.engine.finish();
    await h.clock.turn(20);
    const log = h.take();
    expect(log.filter((line) => line.startsWith('computed'))).toEqual([]);
    expect(log.slice(-2)).toEqual(['free 1', FAILED]);
  });

  it('a step that could not be enqueued is read before another one is planned on top of it', async () => {
    const h = overlapped();
    h.executor.submit(aggregateRequest(1, 24, 1));
    await h.clock.turn(1);
    h.engine.enqueueFailure = new Error('out of memory');
    await h.clock.turn(20);
    expect(h.engine.batches).toHaveLength(1);
    h.engine.enqueueFailure = null;
    h.engine.finish();
    await h.clock.turn(20);
    expect(h.take()).toEqual(['forward 1[0,8)', 'done', 'computed 1 8', 'free 1', FAILED]);
    expect(h.engine.batches).toHaveLength(1);
  });

  it('a transfer that is over before its last chunk is read: the prefill is done, then the request', async () => {
    const h = overlapped();
    const request = contextRequest(1, 8);
    const said: string[] = [];
    h.executor.submit(request, {
      onPrefillDone: () => said.push('prefill'),
      onFinished: () => said.push('finished'),
    });
    await h.clock.turn(1);
    h.executor.submit(aggregateRequest(2, 40, 1));
    h.transceiver.settle(request);
    await h.clock.turn(20);
    expect(request.state).toBe('DISAGG_CONTEXT_COMPLETE');
    expect(h.cache.used).toBeGreaterThan(0);
    expect(said).toEqual([]);
    h.engine.finish();
    await h.clock.turn(20);
    expect(said).toEqual(['prefill', 'finished']);
  });

  it('closes at the deadline although two forwards never return, and counts each request once', async () => {
    const h = overlapped();
    h.executor.submit(aggregateRequest(1, 40, 1));
    h.executor.submit(aggregateRequest(2, 40, 1));
    await h.clock.turn(20);
    const closed = h.executor.close({ deadlineMs: 500 });
    await h.clock.run(500);
    await h.clock.turn(5);
    expect(await closed).toEqual({ drained: false, failed: 2 });
  });

  it('a window that has room for one chunk only: steps run one at a time, and the prompt ends', async () => {
    const clock = new FakeClock();
    const log: string[] = [];
    const engine = new FakeEngine(log);
    const group = { kind: 'attention', tokensPerBlock: 4, layers: [0], slotCount: 64, windowSize: null } as const;
    // 8 tokens of the window and 8 of one chunk, wherever the window begins.
    const layerGroups = [group, { ...group, layers: [1], windowSize: 8, slotCount: 5 }];
    const cache = new GrowingCacheManager({ tokensPerBlock: 4, layerGroups });
    const limits = { chunkTokens: 8, tokenBudget: 64, maxTokensInBuffer: null };
    const transceiver = new FakeTransceiver(log);
    let ended = '';
    const events = {
      onFinished: (_: LlmRequest, outcome: string) => {
        ended = outcome;
      },
    };
    const executor = new Executor({ clock, cache, transceiver, engine, limits, events, schedule: 'overlap' });
    executor.submit(aggregateRequest(1, 61, 4));
    await clock.turn(200);
    expect(ended).toBe('completed');
    expect(engine.batches.length).toBe(8 + 3);
    expect(cache.stats().map(({ slotCount, free, reusable }) => slotCount - free - reusable)).toEqual([0, 0]);
  });
});

describe('the schedule option', () => {
  const make = (schedule: unknown, feedsItself: boolean): Executor => {
    const log: string[] = [];
    const engine = Object.assign(new FakeEngine(log), { feedsItself });
    const h = harness();
    const limits = { chunkTokens: 8, tokenBudget: 64, maxTokensInBuffer: null };
    const { clock, cache, transceiver } = h;
    return new Executor({ clock, cache, transceiver, engine, limits, schedule: schedule as 'plain' });
  };

  it('overlap needs an engine that feeds itself; plain does not', () => {
    expect(() => make('overlap', false)).toThrow(ConfigError);
    expect(() => make('overlap', false)).toThrow(/set feedsItself on the engine once it does, or use schedule 'plain'/);
    expect(() => make('overlap', true)).not.toThrow();
    expect(() => make('plain', false)).not.toThrow();
  });

  it.each(['both', '', 1, 'toString'])('refuses %j', (schedule) => {
    expect(() => make(schedule, true)).toThrow(/schedule is .*; it must be 'plain' or 'overlap'/);
  });
});
