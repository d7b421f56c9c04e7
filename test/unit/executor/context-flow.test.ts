import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { PeerLostError, SessionRetiredError, TransferCancelledError } from '../../../src/errors.js';
import type { DisaggregatedParams, LlmRequest } from '../../../src/executor/request.js';
import { contextRequest, harness, PIPELINED, params, SCHEDULES, WHOLE } from './harness.js';

describe.each(SCHEDULES)('generation first, %s', (schedule) => {
  it('sends one slice behind each forward, then frees the pages when the transfer settled', async () => {
    const h = harness({ schedule, chunkTokens: 8 });
    h.engine.manual = true;
    const request = contextRequest(1, 20);
    h.executor.submit(request);
    await h.clock.turn(20);
    // The slice leaves while the forward still runs: it waits for the event, not for the result.
    const ahead = (forward: string): string[] => (schedule === 'overlap' ? [forward] : []);
    const next = (forward: string): string[] => (schedule === 'plain' ? [forward] : []);
    expect(h.take()).toEqual(['forward 1[0,8)', 'send 1 [0,8)', ...ahead('forward 1[8,16)')]);
    expect(h.transceiver.after[0]).toBe(h.engine.running[0]?.event);
    expect(h.engine.running[0]?.event.state).toBe('pending');
    h.engine.finish();
    await h.clock.turn(20);
    expect(h.take()).toEqual([
      'done',
      'computed 1 8',
      ...next('forward 1[8,16)'),
      'send 1 [8,16)',
      ...ahead('forward 1[16,20)'),
    ]);
    expect(h.transceiver.after[1]).toBe(h.engine.running[0]?.event);
    h.engine.finish();
    await h.clock.turn(20);
    expect(h.take()).toEqual(['done', 'computed 1 16', ...next('forward 1[16,20)'), 'send 1 [16,20)']);
    expect(request.state).toBe('DISAGG_CONTEXT_TRANS_IN_PROGRESS');
    expect(request.outputTokens).toEqual([]);
    h.engine.finish();
    await h.clock.turn(20);
    expect(h.take()).toEqual(['done', 'computed 1 20']);
    expect(request.outputTokens).toEqual([100]);
    h.transceiver.settle(request);
    await h.clock.turn(20);
    expect(h.take()).toEqual(['free 1', 'finished 1 completed DISAGG_CONTEXT_COMPLETE']);
    expect(h.executor.stats().live).toBe(0);
    expect(h.cache.used).toBe(0);
  });

  it('has the first token in the request before anything else of the results is handled', async () => {
    const h = harness({ schedule, chunkTokens: 8 });
    h.engine.manual = true;
    const request = contextRequest(1, 8);
    h.executor.submit(request);
    await h.clock.turn(20);
    h.engine.finish();
    // Promise callbacks only, no turn of the loop: a completion from the native side comes later than this.
    for (let tick = 0; tick < 8; tick++) await Promise.resolve();
    expect(request.outputTokens).toEqual([100]);
  });

  it('tells the transceiver of first tokens, and of nothing else, before the step is retired', async () => {
    const h = harness({ schedule, chunkTokens: 8 });
    h.engine.manual = true;
    const request = contextRequest(1, 16);
    const told: { readonly tokens: readonly number[]; readonly log: readonly string[] }[] = [];
    h.transceiver.onFirstTokens = () => {
      told.push({ tokens: [...request.outputTokens], log: h.take() });
      throw new Error('what is tried again by takeSettled');
    };
    h.executor.submit(request);
    await h.clock.turn(40);
    h.engine.finish();
    await h.clock.turn(40);
    expect(told).toEqual([]);
    h.take();
    h.engine.finish();
    await h.clock.turn(40);
    expect(told).toEqual([{ tokens: [100], log: ['done'] }]);
    expect(h.take()).toEqual(['computed 1 16']);
    expect(request.error).toBe(null);
  });

  it('waits for its receivers without keeping others from being computed', async () => {
    const h = harness({ schedule });
    h.transceiver.allReady = false;
    const first = contextRequest(1, 4);
    h.executor.submit(first);
    h.executor.submit(contextRequest(2, 4));
    await h.clock.turn(20);
    expect(first.state).toBe('DISAGG_CONTEXT_WAIT_SCHEDULER');
    expect(h.take()).toEqual([]);
    h.transceiver.ready.add(2);
    h.transceiver.activity();
    await h.clock.turn(20);
    expect(h.take('computed', 'done')).toEqual(['forward 2[0,4)', 'send 2 [0,4)']);
    h.transceiver.ready.add(1);
    h.transceiver.activity();
    await h.clock.turn(20);
    expect(h.take('computed', 'done')).toEqual(['forward 1[0,4)', 'send 1 [0,4)']);
  });

  it('monolithic: one send, after the last chunk', async () => {
    const h = harness({ schedule, chunkTokens: 8 });
    h.executor.submit(contextRequest(1, 20, { transferPolicy: WHOLE }));
    await h.clock.turn(40);
    expect(h.take('computed', 'done')).toEqual([
      'forward 1[0,8)',
      'forward 1[8,16)',
      'forward 1[16,20)',
      'send 1 [16,20)',
    ]);
  });

  it('sends a reused prefix before the first forward, and only then', async () => {
    const h = harness({ schedule, chunkTokens: 8 });
    h.cache.hits.set(1, 12);
    const request = contextRequest(1, 25);
    h.executor.submit(request);
    await h.clock.turn(40);
    expect(h.take('computed', 'done')).toEqual([
      'prefix 1 12',
      'forward 1[12,20)',
      'send 1 [12,20)',
      'forward 1[20,25)',
      'send 1 [20,25)',
    ]);
    expect(request.prepopulatedLen).toBe(12);
  });

  it.each([
    ['without early prefix', { pipelined: true, earlyPrefix: false }, 12],
    ['monolithic', { pipelined: false, earlyPrefix: true }, 12],
    ['without a hit', PIPELINED, 0],
  ])('sends no prefix %s', async (_, transferPolicy, hit) => {
    const h = harness({ schedule, chunkTokens: 100 });
    h.cache.hits.set(1, hit);
    h.executor.submit(contextRequest(1, 25, { transferPolicy }));
    await h.clock.turn(20);
    expect(h.take('computed', 'done')).toEqual([`forward 1[${hit},25)`, `send 1 [${hit},25)`]);
  });

  it('batches several requests and sends for each', async () => {
    const h = harness({ schedule, chunkTokens: 8, tokenBudget: 12 });
    h.executor.submit(contextRequest(1, 10));
    h.executor.submit(contextRequest(2, 6));
    await h.clock.turn(40);
    expect(h.take('computed', 'done')).toEqual([
      'forward 1[0,8) 2[0,4)',
      'send 1 [0,8)',
      'send 2 [0,4)',
      'forward 1[8,10) 2[4,6)',
      'send 1 [8,10)',
      'send 2 [4,6)',
    ]);
  });

  it('sends slices that tile the prompt for any prompt, chunk, budget and hit; the last one exactly once', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.integer({ min: 1, max: 70 }),
        fc.integer({ min: 1, max: 30 }),
        fc.integer({ min: 2, max: 40 }),
        fc.integer({ min: 0, max: 5 }),
        async (promptLen, chunkTokens, tokenBudget, hitBlocks) => {
          const h = harness({ schedule, chunkTokens, tokenBudget });
          const hit = Math.min(hitBlocks, Math.floor((promptLen - 1) / 4)) * 4;
          h.cache.hits.set(1, hit);
          h.executor.submit(contextRequest(1, promptLen));
          await h.clock.turn(80);
          const bounds: number[] = [hit];
          for (const line of h.take('computed', 'done', 'forward', 'prefix')) {
            const [, start, end] = /^send 1 \[(\d+),(\d+)\)$/.exec(line)?.map(Number) ?? [];
            expect(start).toBe(bounds.at(-1));
            expect(end).toBeGreaterThan(start as number);
            expect((end as number) - (start as number)).toBeLessThanOrEqual(Math.min(chunkTokens, tokenBudget));
            bounds.push(end as number);
          }
          expect(bounds.at(-1)).toBe(promptLen);
        },
      ),
      { numRuns: 60 },
    );
  });
});

describe.each(SCHEDULES)('context first, %s', (schedule) => {
  it('answers at once with the first token and where to ask, and keeps the pages until the transfer settled', async () => {
    const answers: DisaggregatedParams[] = [];
    const h = harness({ schedule, identity: { endpoint: 'tcp://10.0.0.1:7000', dpRank: 3 } });
    h.transceiver.allReady = false;
    const request = contextRequest(5, 12, {
      disagg: params('context_only', { scheduleStyle: 'context_first', traceparent: '00-abc' }),
      transferPolicy: WHOLE,
    });
    h.executor.submit(request, { onContextAnswer: (_, answer) => answers.push(answer) });
    await h.clock.turn(40);
    expect(h.take('computed', 'done')).toEqual(['forward 5[0,8)', 'forward 5[8,12)', 'send 5 [8,12)', 'answer 5']);
    expect(answers).toEqual([
      {
        requestType: 'generation_only',
        scheduleStyle: 'context_first',
        ctxRequestId: 1n << 41n,
        disaggRequestId: 1n << 41n,
        ctxDpRank: 3,
        ctxInfoEndpoint: 'tcp://10.0.0.1:7000',
        firstGenTokens: [500],
        firstGenLogProbs: [],
        ctxUsage: { promptTokens: 12, cachedTokens: 0 },
        draftTokens: [],
        traceparent: '00-abc',
      },
    ]);
    expect(request.state).toBe('DISAGG_CONTEXT_TRANS_IN_PROGRESS');
    expect(h.cache.used).toBe(3);
    h.transceiver.settle(request);
    await h.clock.turn(20);
    expect(h.take()).toEqual(['free 5', 'finished 5 completed DISAGG_CONTEXT_COMPLETE']);
  });
});

describe.each(SCHEDULES)('failure, %s', (schedule) => {
  async function failing(break_: (h: ReturnType<typeof harness>, request: LlmRequest) => void, promptLen = 16) {
    const h = harness({ schedule, chunkTokens: 8 });
    h.cache.hits.set(1, 4);
    const request = contextRequest(1, promptLen);
    break_(h, request);
    h.executor.submit(request);
    await h.clock.turn(40);
    return { h, request };
  }

  it('a retired session fails the request; the pages go when the forward that writes them ended', async () => {
    const h = harness({ schedule, chunkTokens: 8 });
    h.engine.manual = true;
    h.transceiver.sendFailure = () => new SessionRetiredError('gone');
    const request = contextRequest(1, 16);
    h.executor.submit(request);
    await h.clock.turn(20);
    expect(request.state).toBe('DISAGG_TRANS_ERROR');
    expect(request.error).toBeInstanceOf(SessionRetiredError);
    expect(h.take()).toEqual(['forward 1[0,8)']);
    h.engine.finish();
    await h.clock.turn(20);
    expect(h.take()).toEqual(['done', 'computed 1 8', 'free 1', 'finished 1 failed DISAGG_TRANS_ERROR']);
    expect(h.engine.batches.length).toBe(1);
  });

  it('a retired session of one request leaves the others of the batch alone', async () => {
    const h = harness({ schedule, chunkTokens: 8 });
    h.transceiver.sendFailure = (request) => (request.id === 1 ? new SessionRetiredError('gone') : null);
    h.executor.submit(contextRequest(1, 8));
    h.executor.submit(contextRequest(2, 8));
    await h.clock.turn(20);
    expect(h.take('computed', 'done')).toEqual([
      'forward 1[0,8) 2[0,8)',
      'send 2 [0,8)',
      'free 1',
      'finished 1 failed DISAGG_TRANS_ERROR',
    ]);
  });

  it('an early prefix that cannot be sent fails the request before any forward', async () => {
    const { h, request } = await failing((harness_) => {
      harness_.transceiver.prefixFailure = new SessionRetiredError('gone');
    });
    expect(h.take()).toEqual(['free 1', 'finished 1 failed DISAGG_TRANS_ERROR']);
    expect(request.error).toBeInstanceOf(SessionRetiredError);
  });

  it('a last slice that is not accepted is an error, not a request that waits for ever', async () => {
    const { h, request } = await failing((harness_) => {
      harness_.transceiver.receipt = null;
    }, 8);
    expect(h.take('computed', 'done', 'forward', 'prefix', 'send')).toEqual([
      'free 1',
      'finished 1 failed DISAGG_TRANS_ERROR',
    ]);
    expect(request.error?.code).toBe('ERR_KVT_INTERNAL');
  });

  it('an untyped error becomes a typed one with its cause', async () => {
    const cause = new TypeError('bad');
    const { request } = await failing((harness_) => {
      harness_.transceiver.sendFailure = () => cause;
    });
    expect(request.error?.code).toBe('ERR_KVT_INTERNAL');
    expect(request.error?.cause).toBe(cause);
  });

  it('a transfer that fails between two chunks ends the prefill', async () => {
    const h = harness({ schedule, chunkTokens: 8 });
    h.engine.manual = true;
    const request = contextRequest(1, 24);
    h.executor.submit(request);
    await h.clock.turn(20);
    const error = new PeerLostError('the generation server is gone');
    h.transceiver.settle(request, 'failed', { error });
    h.engine.finish();
    await h.clock.turn(20);
    expect(request.error).toBe(error);
    const end = ['free 1', 'finished 1 failed DISAGG_TRANS_ERROR'];
    const first = ['forward 1[0,8)', 'send 1 [0,8)'];
    if (schedule === 'overlap') {
      // It is heard of when a step ends; the pages wait for the one that is ahead.
      expect(h.take()).toEqual([...first, 'forward 1[8,16)', 'done', 'computed 1 8', 'send 1 [8,16)']);
      h.engine.finish();
      await h.clock.turn(20);
      expect(h.take()).toEqual(['done', 'computed 1 16', ...end]);
    } else expect(h.take()).toEqual([...first, 'done', 'computed 1 8', ...end]);
    expect(h.engine.running).toEqual([]);
  });

  it('a cancel of the peer is an error', async () => {
    const h = harness({ schedule, chunkTokens: 8 });
    const request = contextRequest(1, 8);
    h.executor.submit(request);
    await h.clock.turn(20);
    h.transceiver.settle(request, 'cancelled', { error: new TransferCancelledError('peer') });
    await h.clock.turn(20);
    expect(h.take('computed', 'done', 'forward', 'send')).toEqual(['free 1', 'finished 1 failed DISAGG_TRANS_ERROR']);
    expect(request.error).toBeInstanceOf(TransferCancelledError);
  });

  it('an outcome for a request that ended is ignored', async () => {
    const h = harness({ schedule });
    const request = contextRequest(1, 4);
    h.executor.submit(request);
    await h.clock.turn(20);
    h.transceiver.settle(request);
    h.transceiver.settle(request, 'failed', { error: new PeerLostError('late') });
    await h.clock.turn(20);
    expect(h.take('computed', 'done', 'forward', 'send')).toEqual([
      'free 1',
      'finished 1 completed DISAGG_CONTEXT_COMPLETE',
    ]);
    expect(request.error).toBeNull();
  });
});
