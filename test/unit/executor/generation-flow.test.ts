import { describe, expect, it } from 'vitest';
import { PeerLostError, RequestTooLargeError, TransferTimeoutError } from '../../../src/errors.js';
import { aggregateRequest, generationRequest, harness, params, SCHEDULES } from './harness.js';

describe.each(SCHEDULES)('generation, %s', (schedule) => {
  it('receives, says the first token when the cache is there, and decodes the rest', async () => {
    const h = harness({ schedule });
    h.cache.hits.set(1, 8);
    const request = generationRequest(1, 18, 3);
    const tokens: [number, number][] = [];
    h.executor.submit(request, { onToken: (_, token, index) => tokens.push([token, index]) });
    await h.clock.turn(20);
    expect(h.take()).toEqual(['receive 1 8']);
    expect(request.state).toBe('DISAGG_GENERATION_TRANS_IN_PROGRESS');
    expect(h.cache.used).toBe(5);
    await h.clock.run(40);
    h.transceiver.settle(request, 'completed', { firstTokens: [777] });
    await h.clock.turn(20);
    expect(h.take()).toEqual([
      'first 1 777 @1040',
      'computed 1 18',
      // The token that is fed sits behind the prompt; the forward writes its KV there.
      'forward 1@18',
      'done',
      ...(schedule === 'plain' ? ['computed 1 19', 'forward 1@19', 'done'] : ['forward 1@19', 'done', 'computed 1 19']),
      'computed 1 20',
      'free 1',
      'finished 1 completed GENERATION_COMPLETE',
    ]);
    expect(request.outputTokens).toEqual([777, 101, 102]);
    expect(tokens).toEqual([
      [777, 0],
      [101, 1],
      [102, 2],
    ]);
  });

  it('context first: the first token came with the request', async () => {
    const h = harness({ schedule });
    const disagg = params('generation_only', { scheduleStyle: 'context_first', firstGenTokens: [42] });
    const request = generationRequest(1, 4, 1, { disagg });
    h.executor.submit(request);
    await h.clock.turn(20);
    h.transceiver.settle(request);
    await h.clock.turn(20);
    expect(request.outputTokens).toEqual([42]);
    expect(h.take()).toEqual([
      'receive 1 0',
      'first 1 42 @1000',
      'computed 1 4',
      'free 1',
      'finished 1 completed GENERATION_COMPLETE',
    ]);
  });

  it('fails a cache that arrives without a first token', async () => {
    const h = harness({ schedule });
    const request = generationRequest(1, 4);
    h.executor.submit(request);
    await h.clock.turn(20);
    h.transceiver.settle(request);
    await h.clock.turn(20);
    expect(request.error?.code).toBe('ERR_KVT_PROTOCOL');
    expect(h.take()).toEqual(['receive 1 0', 'free 1', 'finished 1 failed DISAGG_TRANS_ERROR']);
  });

  it('a failed transfer fails the request with its error and gives up the pages', async () => {
    const h = harness({ schedule });
    const request = generationRequest(1, 4);
    h.executor.submit(request);
    await h.clock.turn(20);
    h.cache.pin(1); // as the ledger does while a writer may still land
    const error = new TransferTimeoutError('too slow');
    h.transceiver.settle(request, 'failed', { error });
    await h.clock.turn(20);
    expect(request.error).toBe(error);
    expect(h.take()).toEqual(['receive 1 0', 'free 1', 'finished 1 failed DISAGG_TRANS_ERROR']);
    expect(h.cache.used).toBe(1);
  });

  it('fails a request whose receive cannot be posted', async () => {
    const h = harness({ schedule });
    const error = new PeerLostError('nobody there');
    h.transceiver.receiveFailure = error;
    const request = generationRequest(1, 4);
    h.executor.submit(request);
    await h.clock.turn(20);
    expect(request.error).toBe(error);
    // Its context half waits for it.
    expect(h.take()).toEqual(['cancel 1 nobody there', 'free 1', 'finished 1 failed DISAGG_TRANS_ERROR']);
  });

  it('admits by maxTokensInBuffer, first come first served, an oversized head alone', async () => {
    const h = harness({ schedule, maxTokensInBuffer: 16 });
    const requests = [12, 8, 40, 1].map((length, index) => generationRequest(index + 1, length, 1));
    for (const request of requests) h.executor.submit(request);
    await h.clock.turn(20);
    // Three blocks of four are in; two more do not fit, and nobody overtakes them.
    expect(h.take()).toEqual(['receive 1 0']);
    for (const expected of ['receive 2 0', 'receive 3 0', 'receive 4 0']) {
      const current = requests.find((request) => request.state === 'DISAGG_GENERATION_TRANS_IN_PROGRESS');
      h.transceiver.settle(current as never, 'completed', { firstTokens: [1] });
      await h.clock.turn(20);
      expect(h.take('computed', 'first', 'free', 'finished')).toEqual([expected]);
    }
  });

  it('runs several decodes in one batch', async () => {
    const h = harness({ schedule });
    const requests = [1, 2].map((id) => generationRequest(id, 4, 3));
    for (const request of requests) h.executor.submit(request);
    await h.clock.turn(20);
    for (const request of requests) h.transceiver.settle(request, 'completed', { firstTokens: [1] });
    await h.clock.turn(20);
    expect(h.take('computed', 'done', 'first', 'free', 'receive', 'finished')).toEqual([
      'forward 1@4 2@4',
      'forward 1@5 2@5',
    ]);
  });

  it('serves all decodes in turn when the budget is smaller than their number', async () => {
    const h = harness({ schedule, tokenBudget: 2 });
    const requests = [1, 2, 3].map((id) => generationRequest(id, 4, 3));
    for (const request of requests) h.executor.submit(request);
    await h.clock.turn(20);
    for (const request of requests) h.transceiver.settle(request, 'completed', { firstTokens: [1] });
    await h.clock.turn(40);
    expect(h.take('computed', 'done', 'first', 'free', 'receive', 'finished')).toEqual([
      'forward 1@4 2@4',
      'forward 3@4 1@5',
      'forward 2@5 3@5',
    ]);
  });
});

describe.each(SCHEDULES)('aggregate requests, %s', (schedule) => {
  it('pass through without a word to the transceiver', async () => {
    const h = harness({ schedule, chunkTokens: 8 });
    const request = aggregateRequest(1, 12, 3);
    h.executor.submit(request);
    await h.clock.turn(40);
    const forwards = ['forward 1[0,8)', 'forward 1[8,12)', 'forward 1@12', 'forward 1@13'];
    const results = [['computed 1 8'], ['computed 1 12', 'first 1 100 @1000'], ['computed 1 13'], ['computed 1 14']];
    // A step's results are read at once, or when the next one is enqueued.
    const lag = schedule === 'plain' ? 0 : 1;
    expect(h.take()).toEqual([
      ...forwards.flatMap((forward, step) => [forward, 'done', ...(results[step - lag] ?? [])]),
      ...results.slice(forwards.length - lag).flat(),
      'free 1',
      'finished 1 completed GENERATION_COMPLETE',
    ]);
    expect(request.outputTokens).toEqual([100, 101, 102]);
    expect(h.transceiver.readyCalls).toBe(0);
  });

  it('prompts are not starved by decodes', async () => {
    const h = harness({ schedule, tokenBudget: 4, chunkTokens: 4 });
    for (let id = 1; id <= 4; id++) h.executor.submit(aggregateRequest(id, 4, 30));
    await h.clock.turn(60);
    h.take();
    h.executor.submit(aggregateRequest(9, 8, 1));
    await h.clock.turn(40);
    expect(h.take().filter((line) => line === 'finished 9 completed GENERATION_COMPLETE')).toHaveLength(1);
  });
});

describe.each(SCHEDULES)('blocks, %s', (schedule) => {
  it('refuses at once what can never fit: the prompt alone on a context server, its tokens too elsewhere', () => {
    const h = harness({ schedule, slotCount: 4 });
    expect(() => h.executor.submit(aggregateRequest(1, 12, 5))).not.toThrow();
    expect(() => h.executor.submit(aggregateRequest(2, 12, 6))).toThrow(RequestTooLargeError);
    expect(() => h.executor.submit(generationRequest(3, 17, 1))).toThrow(/needs 5 blocks for 17 tokens.* has 4/);
    expect(h.executor.stats().live).toBe(1);
  });

  it('a request the cache refuses ends with that error', async () => {
    const h = harness({ schedule });
    const error = new RequestTooLargeError('window pool');
    h.cache.refusal = error;
    const request = generationRequest(1, 4);
    h.executor.submit(request);
    await h.clock.turn(20);
    expect(request.error).toBe(error);
    expect(h.take()).toEqual(['cancel 1 window pool', 'finished 1 failed DISAGG_TRANS_ERROR']);
  });

  it('keeps the line when the pool is full: no later, smaller request overtakes, on either side', async () => {
    const h = harness({ schedule, slotCount: 10, chunkTokens: 100 });
    h.executor.submit(generationRequest(1, 24, 1));
    await h.clock.turn(20);
    h.executor.submit(aggregateRequest(2, 40, 1));
    await h.clock.turn(20);
    h.executor.submit(generationRequest(3, 4, 1));
    h.executor.submit(aggregateRequest(4, 4, 1));
    await h.clock.turn(20);
    expect(h.take()).toEqual(['receive 1 0']);
    h.executor.cancel(1);
    await h.clock.turn(20);
    expect(h.take('computed', 'done', 'first')).toEqual([
      'cancel 1 cancelled by its user',
      'free 1',
      'finished 1 cancelled GENERATION_COMPLETE',
      'forward 2[0,40)',
      'free 2',
      'finished 2 completed GENERATION_COMPLETE',
      'receive 3 0',
      'forward 4[0,4)',
      'free 4',
      'finished 4 completed GENERATION_COMPLETE',
    ]);
  });

  it('keeps the line also among those that entered: a prompt that grows goes before a later receive', async () => {
    // Chunks of 4 blocks: all but the last are under way before blocks run out.
    const ahead = schedule === 'overlap' ? ['forward 1[16,32)'] : [];
    const promptLen = 32 + 16 * ahead.length;
    const h = harness({ schedule, slotCount: 21 + 4 * ahead.length, chunkTokens: 16 });
    h.engine.manual = true;
    // It may give its block back at any time, so that nobody is given up for lack of blocks.
    h.executor.submit(generationRequest(3, 4, 1));
    h.executor.submit(aggregateRequest(1, promptLen, 1));
    await h.clock.turn(20);
    h.cache.stolen = 16;
    h.executor.submit(generationRequest(2, 8, 1));
    while (h.engine.running.length > 0) {
      h.engine.finish();
      await h.clock.turn(20);
    }
    // Two blocks come back: enough for the receive, not for the chunk of the earlier prompt.
    h.cache.stolen = 13;
    await h.clock.run(300);
    expect(h.take('computed', 'done')).toEqual(['receive 3 0', 'forward 1[0,16)', ...ahead]);
    h.cache.stolen = 10;
    await h.clock.run(100);
    // Two blocks are left behind that chunk. The plain schedule looks again when its forward has ended.
    expect(h.take()).toEqual([
      `forward 1[${promptLen - 16},${promptLen})`,
      ...(schedule === 'overlap' ? ['receive 2 0'] : []),
    ]);
    h.engine.finish();
    await h.clock.turn(20);
    expect(h.take('computed', 'done', 'first', 'free')).toEqual([
      'finished 1 completed GENERATION_COMPLETE',
      ...(schedule === 'plain' ? ['receive 2 0'] : []),
    ]);
  });

  it('never lets several prompts hold parts of a pool that none of them can finish in', async () => {
    const h = harness({ schedule, slotCount: 10, chunkTokens: 8, tokenBudget: 16 });
    h.executor.submit(aggregateRequest(1, 28, 1));
    h.executor.submit(aggregateRequest(2, 28, 1));
    await h.clock.turn(60);
    expect(h.take('computed', 'done', 'first', 'free')).toEqual([
      'forward 1[0,8)',
      'forward 1[8,16)',
      'forward 1[16,24)',
      'forward 1[24,28)',
      'finished 1 completed GENERATION_COMPLETE',
      'forward 2[0,8)',
      'forward 2[8,16)',
      'forward 2[16,24)',
      'forward 2[24,28)',
      'finished 2 completed GENERATION_COMPLETE',
    ]);
  });

  it('waits while an ended transfer still holds blocks, and looks again by itself', async () => {
    const h = harness({ schedule, slotCount: 10, chunkTokens: 100 });
    const first = generationRequest(1, 40, 1);
    h.executor.submit(first);
    await h.clock.turn(20);
    h.cache.pin(1);
    h.transceiver.settle(first, 'failed', { error: new PeerLostError('gone') });
    h.executor.submit(aggregateRequest(2, 40, 1));
    await h.clock.run(1000);
    expect(h.take('receive')).toEqual(['free 1', 'finished 1 failed DISAGG_TRANS_ERROR']);
    // Nobody tells the executor that the last writer drained.
    h.cache.unpin(1);
    await h.clock.run(200);
    expect(h.take('computed', 'done', 'first', 'free')).toEqual([
      'forward 2[0,40)',
      'finished 2 completed GENERATION_COMPLETE',
    ]);
  });

  it('fails the head when no blocks will ever come back', async () => {
    const h = harness({ schedule, slotCount: 10, chunkTokens: 100 });
    h.cache.stolen = 5;
    const request = aggregateRequest(1, 40, 1);
    h.executor.submit(request);
    h.executor.submit(aggregateRequest(2, 20, 1));
    await h.clock.turn(20);
    expect(request.error?.code).toBe('ERR_KVT_RESOURCE');
    expect(h.take('computed', 'done', 'first', 'free')).toEqual([
      'finished 1 failed DISAGG_TRANS_ERROR',
      'forward 2[0,20)',
      'finished 2 completed GENERATION_COMPLETE',
    ]);
  });

  it('lets a flood of requests in by portions, first come first served, and all without waiting for a timer', async () => {
    const h = harness({ schedule });
    for (let id = 1; id <= 200; id++) h.executor.submit(generationRequest(id, 4));
    await h.clock.turn();
    expect(h.take()).toEqual(Array.from({ length: 64 }, (_, index) => `receive ${index + 1} 0`));
    await h.clock.turn(6);
    expect(h.take()).toEqual(Array.from({ length: 136 }, (_, index) => `receive ${index + 65} 0`));
  });
});
