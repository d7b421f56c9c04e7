import { describe, expect, it } from 'vitest';
import { ArgumentError, ConfigError, KvTransceiverError, PeerLostError, StateError } from '../../../src/errors.js';
import { createRequest } from '../../../src/executor/create-request.js';
import type { StepReport } from '../../../src/executor/executor-events.js';
import {
  aggregateRequest,
  contextRequest,
  generationRequest,
  harness,
  PIPELINED,
  params,
  prompt,
  SCHEDULES,
} from './harness.js';

describe.each(SCHEDULES)('submit, %s', (schedule) => {
  const valid = { id: 1, promptTokens: prompt(4), maxTokens: 1 };
  it.each([
    ['an empty prompt', { promptTokens: new Uint32Array(0) }, /promptTokens/],
    ['a plain array', { promptTokens: [1, 2] as never }, /promptTokens must be a Uint32Array/],
    ['no tokens to generate', { maxTokens: 0 }, /maxTokens is 0/],
    ['a fraction of a token', { maxTokens: 1.5 }, /maxTokens is 1.5/],
    ['beams', { beamWidth: 4 }, /beamWidth is 4.*set it to 1/],
    ['no beam', { beamWidth: 0 }, /beamWidth is 0/],
    ['a negative id', { id: -1 }, /request id -1/],
    ['a global id', { id: 2 ** 40 }, /request id 1099511627776/],
    [
      'pipelining with context first',
      { disagg: params('context_only', { scheduleStyle: 'context_first' }), transferPolicy: PIPELINED },
      /needs schedule style 'generation_first'/,
    ],
    ['a receive without an id', { disagg: params('generation_only', { disaggRequestId: null }) }, /disaggRequestId/],
    ['a receive from nowhere', { disagg: params('generation_only', { ctxInfoEndpoint: null }) }, /ctxInfoEndpoint/],
  ])('refuses %s', (_, wrong, message) => {
    const h = harness({ schedule });
    const request = createRequest({ ...valid, ...wrong });
    expect(() => h.executor.submit(request)).toThrow(ArgumentError);
    expect(() => h.executor.submit(request)).toThrow(message);
    expect(h.executor.stats().live).toBe(0);
  });

  it.each([
    ['a request id below 0', params('context_only', { disaggRequestId: -1n }), /disaggRequestId is -1/],
    [
      'a request id of 2^64',
      params('generation_only', { ctxRequestId: 1n << 64n }),
      /ctxRequestId is 18446744073709551616/,
    ],
    [
      'a receive from no endpoint',
      params('generation_only', { ctxInfoEndpoint: 'http://x' }),
      /ctxInfoEndpoint must be/,
    ],
    ['122 draft tokens', params('context_only', { draftTokens: Array(122).fill(1) }), /122 draft tokens do not fit/],
  ])('refuses %s: no frame or slot could carry it', (_, disagg, message) => {
    const h = harness({ schedule });
    const request = createRequest({ ...valid, disagg });
    expect(() => h.executor.submit(request)).toThrow(KvTransceiverError);
    expect(() => h.executor.submit(request)).toThrow(message);
    expect(h.executor.stats().live).toBe(0);
  });

  it('refuses another request under the disaggregated id of a live one, of its own role', async () => {
    const h = harness({ schedule });
    const disagg = contextRequest(1, 8).disagg;
    h.executor.submit(contextRequest(1, 8));
    expect(() => h.executor.submit(contextRequest(2, 8, { disagg }))).toThrow(/is that of request 1; ids are unique/);
    expect(h.executor.stats().live).toBe(1);
    h.executor.submit(generationRequest(3, 8, 3, { disagg: generationRequest(1, 8).disagg }));
    await h.clock.turn(5);
    h.executor.cancel(1);
    await h.clock.turn(20);
    expect(h.take().filter((line) => line.startsWith('finished 1 cancelled'))).toHaveLength(1);
    h.executor.submit(contextRequest(2, 8, { disagg }));
    expect(h.executor.stats().live).toBe(2);
  });

  it('refuses an id in use, and takes it again once it is free', async () => {
    const h = harness({ schedule });
    h.executor.submit(aggregateRequest(1, 4, 1));
    expect(() => h.executor.submit(aggregateRequest(1, 4, 1))).toThrow(/in use/);
    await h.clock.turn(20);
    h.executor.submit(aggregateRequest(1, 4, 1));
    await h.clock.turn(20);
    expect(h.take().filter((line) => line.startsWith('finished'))).toHaveLength(2);
  });

  it('refuses the id of a request that has ended while a transfer may touch its pages, and takes it when it may not', async () => {
    const h = harness({ schedule });
    const former = contextRequest(1, 8);
    h.executor.submit(former);
    await h.clock.turn(20);
    h.cache.pin(1);
    h.transceiver.settle(former, 'failed', { error: new PeerLostError('gone') });
    await h.clock.turn(20);
    expect([h.executor.stats().live, h.cache.isPinned(1)]).toEqual([0, true]);
    for (const again of [contextRequest(1, 8), aggregateRequest(1, 4, 1)]) {
      expect(() => h.executor.submit(again)).toThrow(ArgumentError);
      expect(() => h.executor.submit(again)).toThrow(
        /^request id 1 is in use: .* may still touch its pages; .* of its own$/,
      );
    }
    expect(h.executor.stats().live).toBe(0);
    h.cache.unpin(1);
    h.executor.submit(aggregateRequest(1, 4, 1));
    await h.clock.turn(20);
    expect(h.take().at(-1)).toBe('finished 1 completed GENERATION_COMPLETE');
  });

  it('refuses a request that was run before', async () => {
    const h = harness({ schedule });
    const request = aggregateRequest(1, 4, 1);
    h.executor.submit(request);
    await h.clock.turn(20);
    expect(() => h.executor.submit(request)).toThrow(/already run/);
  });

  it('limits out of range never make an executor', () => {
    expect(() => harness({ schedule, chunkTokens: 0 })).toThrow(ConfigError);
  });
});

describe.each(SCHEDULES)('the engine, %s', (schedule) => {
  it('fails to enqueue: the batch fails, nothing is sent, the loop lives on', async () => {
    const h = harness({ schedule, chunkTokens: 8 });
    h.engine.enqueueFailure = new Error('out of memory');
    const request = contextRequest(1, 16);
    h.executor.submit(request);
    h.executor.submit(aggregateRequest(2, 4, 1));
    await h.clock.turn(20);
    expect(h.take()).toEqual([
      // Request 1 joined the line when its receivers were ready, behind request 2.
      'free 2',
      'finished 2 failed DISAGG_TRANS_ERROR',
      'cancel 1 the model engine failed: out of memory',
      'free 1',
      'finished 1 failed DISAGG_TRANS_ERROR',
    ]);
    expect(request.error?.code).toBe('ERR_KVT_INTERNAL');
    expect(request.error?.cause).toBe(h.engine.enqueueFailure);
    h.engine.enqueueFailure = null;
    h.executor.submit(aggregateRequest(3, 4, 1));
    await h.clock.turn(20);
    expect(h.take().at(-1)).toBe('finished 3 completed GENERATION_COMPLETE');
  });

  it('fails behind the sends: the sessions end, the requests of other batches do not notice', async () => {
    const h = harness({ schedule, chunkTokens: 8 });
    h.engine.manual = true;
    const request = contextRequest(1, 8);
    const waiting = generationRequest(2, 8);
    h.executor.submit(request);
    h.executor.submit(waiting);
    await h.clock.turn(20);
    expect(h.take()).toEqual(['receive 2 0', 'forward 1[0,8)', 'send 1 [0,8)']);
    const error = new PeerLostError('device lost');
    h.engine.fail(error);
    await h.clock.turn(20);
    expect(h.take()).toEqual([
      'engine failed',
      'cancel 1 device lost',
      'free 1',
      'finished 1 failed DISAGG_TRANS_ERROR',
    ]);
    expect(request.error).toBe(error);
    expect(waiting.state).toBe('DISAGG_GENERATION_TRANS_IN_PROGRESS');
  });

  it('that returns no token fails the requests that needed one', async () => {
    const h = harness({ schedule, chunkTokens: 8 });
    h.engine.dropTokens = true;
    h.executor.submit(contextRequest(1, 8));
    h.executor.submit(aggregateRequest(2, 12, 1));
    await h.clock.turn(40);
    const lost = ['cancel 1 request 1: the model engine returned no token', 'finished 1 failed DISAGG_TRANS_ERROR'];
    expect(h.take('computed', 'done', 'free')).toEqual([
      'forward 2[0,8) 1[0,8)',
      'send 1 [0,8)',
      ...(schedule === 'plain' ? [...lost, 'forward 2[8,12)'] : ['forward 2[8,12)', ...lost]),
      'finished 2 failed DISAGG_TRANS_ERROR',
    ]);
  });
});

describe.each(SCHEDULES)('the loop, %s', (schedule) => {
  it('sleeps when nothing is live: no turns, no timers', async () => {
    const h = harness({ schedule });
    await h.clock.turn(5);
    expect(h.executor.stats().turns).toBe(1);
    expect(h.clock.pendingTimerCount).toBe(0);
    await h.clock.run(60_000);
    expect(h.executor.stats().turns).toBe(1);
  });

  it('while it waits for a transfer it turns once per housekeeping interval, not more', async () => {
    const h = harness({ schedule });
    h.executor.submit(generationRequest(1, 4));
    await h.clock.turn(20);
    const before = h.executor.stats().turns;
    await h.clock.run(1000);
    expect(h.executor.stats().turns - before).toBe(10);
    expect(h.executor.stats().steps).toBe(0);
  });

  it('a signal between two sleeps is not lost', async () => {
    const h = harness({ schedule });
    const request = generationRequest(1, 4, 1);
    h.executor.submit(request);
    await h.clock.turn(20);
    h.transceiver.settle(request, 'completed', { firstTokens: [1] });
    h.transceiver.activity();
    await h.clock.turn(5);
    expect(h.take().at(-1)).toBe('finished 1 completed GENERATION_COMPLETE');
  });

  it('one turn of the event loop per step at least', async () => {
    const h = harness({ schedule, chunkTokens: 1 });
    h.executor.submit(contextRequest(1, 10));
    let turns = 0;
    while (h.executor.stats().steps < 10) {
      await h.clock.turn();
      turns += 1;
      expect(h.executor.stats().steps).toBeLessThanOrEqual(turns);
    }
  });

  it('reports its steps', async () => {
    const reports: StepReport[] = [];
    const h = harness({ schedule, chunkTokens: 8, events: { onStep: (report) => reports.push(report) } });
    h.executor.submit(aggregateRequest(1, 12, 2));
    await h.clock.turn(40);
    expect(reports.map((r) => [r.step, r.contextTokens, r.contextRequests, r.generationRequests])).toEqual([
      [1, 8, 1, 0],
      [2, 4, 1, 0],
      [3, 0, 0, 1],
    ]);
  });

  it('survives handlers that throw', async () => {
    const h = harness({ schedule });
    h.executor.submit(aggregateRequest(1, 4, 2), {
      onFirstToken: () => {
        throw new Error('first');
      },
      onFinished: () => {
        throw new Error('finished');
      },
    });
    await h.clock.turn(20);
    expect(h.take().filter((line) => line.startsWith('handler'))).toEqual([
      'handler onFirstToken: Error: first',
      'handler onFinished: Error: finished',
    ]);
    h.executor.submit(aggregateRequest(2, 4, 1));
    await h.clock.turn(20);
    expect(h.take().at(-1)).toBe('finished 2 completed GENERATION_COMPLETE');
  });

  it('takes submissions and cancels from handlers', async () => {
    const h = harness({ schedule });
    h.executor.submit(aggregateRequest(1, 4, 1), { onFinished: () => h.executor.submit(aggregateRequest(2, 4, 9)) });
    h.executor.submit(aggregateRequest(3, 4, 9), { onFirstToken: () => h.executor.cancel(3) });
    await h.clock.turn(40);
    expect(h.take().filter((line) => line.startsWith('finished'))).toEqual([
      'finished 1 completed GENERATION_COMPLETE',
      'finished 3 cancelled GENERATION_COMPLETE',
      'finished 2 completed GENERATION_COMPLETE',
    ]);
  });

  it('says when a prefill starts and when it is done', async () => {
    const h = harness({ schedule, chunkTokens: 8 });
    h.engine.manual = true;
    const times: string[] = [];
    h.executor.submit(contextRequest(1, 16), {
      onPrefillStarted: (_, atMs) => times.push(`started ${atMs}`),
      onPrefillDone: (_, atMs) => times.push(`done ${atMs}`),
    });
    for (let chunk = 0; chunk < 2; chunk++) {
      await h.clock.run(10);
      h.engine.finish();
    }
    await h.clock.turn(20);
    expect(times).toEqual(['started 1000', 'done 1020']);
  });

  it('a transceiver that throws where it must not costs the requests, not the loop', async () => {
    const h = harness({ schedule });
    const request = generationRequest(1, 4);
    h.executor.submit(request);
    await h.clock.turn(20);
    const take = h.transceiver.takeSettled;
    h.transceiver.takeSettled = () => {
      throw new Error('broken');
    };
    h.transceiver.activity();
    await h.clock.turn(20);
    expect(request.error?.message).toBe('the executor loop failed: broken');
    h.transceiver.takeSettled = take;
    h.executor.submit(aggregateRequest(2, 4, 1));
    await h.clock.turn(20);
    expect(h.take().at(-1)).toBe('finished 2 completed GENERATION_COMPLETE');
  });
});

describe.each(SCHEDULES)('close, %s', (schedule) => {
  it('lets live requests end and refuses new ones', async () => {
    const h = harness({ schedule });
    const request = generationRequest(1, 4, 1);
    h.executor.submit(request);
    await h.clock.turn(20);
    const closed = h.executor.close();
    expect(() => h.executor.submit(aggregateRequest(2, 4, 1))).toThrow(StateError);
    h.transceiver.settle(request, 'completed', { firstTokens: [1] });
    await h.clock.turn(20);
    expect(await closed).toEqual({ drained: true, failed: 0 });
    expect(await h.executor.close()).toEqual({ drained: true, failed: 0 });
    expect(h.clock.pendingTimerCount).toBe(0);
  });

  it.each<unknown>([Number.NaN, -1, Number.POSITIVE_INFINITY, 2 ** 31, null, '5', 10n])(
    'refuses a deadline of %s and stays open',
    async (deadlineMs) => {
      const h = harness({ schedule });
      await expect(h.executor.close({ deadlineMs: deadlineMs as number })).rejects.toThrow(
        /deadlineMs must be a number of milliseconds/,
      );
      expect(h.clock.pendingTimerCount).toBe(0);
      // A closing one throws.
      h.executor.submit(generationRequest(1, 4, 1));
    },
  );

  it('fails what is left at the deadline', async () => {
    const h = harness({ schedule });
    const request = generationRequest(1, 4, 1);
    h.executor.submit(request);
    await h.clock.turn(20);
    const closed = h.executor.close({ deadlineMs: 500 });
    await h.clock.run(499);
    expect(request.error).toBeNull();
    await h.clock.run(1);
    await h.clock.turn(5);
    expect(await closed).toEqual({ drained: false, failed: 1 });
    expect(request.error).toBeInstanceOf(StateError);
    expect(h.take('receive')).toEqual([
      'cancel 1 the executor was closed before the request ended',
      'free 1',
      'finished 1 failed DISAGG_TRANS_ERROR',
    ]);
  });

  it('does not wait for a forward that never returns', async () => {
    const h = harness({ schedule });
    h.engine.manual = true;
    h.executor.submit(aggregateRequest(1, 4, 1));
    await h.clock.turn(20);
    const closed = h.executor.close({ deadlineMs: 500 });
    await h.clock.run(500);
    await h.clock.turn(5);
    expect(await closed).toEqual({ drained: false, failed: 1 });
  });

  it('an idle executor closes at once', async () => {
    const h = harness({ schedule });
    const closed = h.executor.close();
    await h.clock.turn(3);
    expect(await closed).toEqual({ drained: true, failed: 0 });
  });
});
