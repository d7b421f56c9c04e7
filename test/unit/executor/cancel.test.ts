import { describe, expect, it } from 'vitest';
import { PeerLostError, TransferCancelledError } from '../../../src/errors.js';
import { aggregateRequest, contextRequest, generationRequest, harness, params, SCHEDULES, WHOLE } from './harness.js';

const ASKED = 'cancel 1 cancelled by its user';
const CONTEXT_END = 'finished 1 cancelled DISAGG_CONTEXT_COMPLETE';
const GENERATION_END = 'finished 1 cancelled GENERATION_COMPLETE';

describe.each(SCHEDULES)('cancel of a context request, %s', (schedule) => {
  it('while it waits for receivers: they are told, no forward runs', async () => {
    const h = harness({ schedule });
    h.transceiver.allReady = false;
    h.executor.submit(contextRequest(1, 8));
    await h.clock.turn(20);
    expect(h.executor.cancel(1)).toBe(true);
    await h.clock.turn(20);
    expect(h.take()).toEqual([ASKED, CONTEXT_END]);
  });

  it('in the middle of its prompt: no intermediate slice any more, no further chunk', async () => {
    const h = harness({ schedule, chunkTokens: 8 });
    h.engine.manual = true;
    h.executor.submit(contextRequest(1, 24));
    await h.clock.turn(20);
    h.executor.cancel(1);
    await h.clock.turn(20);
    // The forwards still write the pages: they stay until the last of them ended.
    const ahead = schedule === 'overlap' ? ['forward 1[8,16)'] : [];
    expect(h.take()).toEqual(['forward 1[0,8)', 'send 1 [0,8)', ...ahead]);
    h.engine.finish();
    await h.clock.turn(20);
    if (schedule === 'overlap') {
      expect(h.take()).toEqual(['done', 'computed 1 8', ASKED]);
      h.engine.finish();
      await h.clock.turn(20);
      expect(h.take()).toEqual(['done', 'computed 1 16', 'free 1', CONTEXT_END]);
    } else expect(h.take()).toEqual(['done', 'computed 1 8', ASKED, 'free 1', CONTEXT_END]);
    expect(h.engine.running).toEqual([]);
  });

  it('between forward and send of a middle chunk: that slice is not sent', async () => {
    const h = harness({ schedule, chunkTokens: 8 });
    const forward = h.engine.forward.bind(h.engine);
    h.engine.forward = async (batch) => {
      const result = await forward(batch);
      h.executor.cancel(1);
      return result;
    };
    h.executor.submit(contextRequest(1, 24));
    await h.clock.turn(20);
    // With the overlap schedule the cancel is seen before the step is read.
    const end = schedule === 'overlap' ? [ASKED, 'computed 1 8'] : ['computed 1 8', ASKED];
    expect(h.take()).toEqual(['forward 1[0,8)', 'done', ...end, 'free 1', CONTEXT_END]);
  });

  it('in its last chunk: the last slice is still sent, then the transfer is cancelled', async () => {
    const h = harness({ schedule, chunkTokens: 8 });
    const forward = h.engine.forward.bind(h.engine);
    h.engine.forward = async (batch) => {
      const result = await forward(batch);
      h.executor.cancel(1);
      return result;
    };
    h.transceiver.cancelResult = false;
    const request = contextRequest(1, 8);
    h.executor.submit(request);
    await h.clock.turn(20);
    // It may be asked more than once: the loop turns again after a forward.
    const end = schedule === 'overlap' ? [ASKED, 'computed 1 8'] : ['computed 1 8', ASKED];
    expect([...new Set(h.take())]).toEqual(['forward 1[0,8)', 'done', 'send 1 [0,8)', ...end]);
    h.transceiver.settle(request, 'cancelled', { error: new TransferCancelledError('user') });
    await h.clock.turn(20);
    expect(h.take()).toEqual(['free 1', CONTEXT_END]);
    expect(request.error).toBeNull();
  });

  it('while its transfer runs: asks again until nothing can touch memory', async () => {
    const h = harness({ schedule });
    h.transceiver.cancelResult = false;
    h.executor.submit(contextRequest(1, 8));
    await h.clock.turn(20);
    h.take();
    h.executor.cancel(1);
    await h.clock.turn(20);
    expect(h.take()).toEqual([ASKED]);
    expect(h.executor.cancel(1)).toBe(false);
    await h.clock.run(200);
    expect(h.take()).toEqual([ASKED, ASKED]);
    h.transceiver.cancelResult = true;
    await h.clock.run(100);
    expect(h.take()).toEqual([ASKED, 'free 1', CONTEXT_END]);
  });

  it('that came too late: a completed transfer stays completed', async () => {
    const h = harness({ schedule });
    h.transceiver.cancelResult = false;
    const request = contextRequest(1, 8);
    h.executor.submit(request);
    await h.clock.turn(20);
    h.executor.cancel(1);
    h.transceiver.settle(request);
    await h.clock.turn(20);
    expect(h.take('forward', 'send', 'done', 'computed')).toEqual([
      'free 1',
      'finished 1 completed DISAGG_CONTEXT_COMPLETE',
    ]);
  });

  it('whose transfer fails on its own meanwhile: an error', async () => {
    const h = harness({ schedule });
    h.transceiver.cancelResult = false;
    const request = contextRequest(1, 8);
    h.executor.submit(request);
    await h.clock.turn(20);
    h.executor.cancel(1);
    h.transceiver.settle(request, 'failed', { error: new PeerLostError('gone') });
    await h.clock.turn(20);
    expect(h.take().at(-1)).toBe('finished 1 failed DISAGG_TRANS_ERROR');
  });

  it('context first, waiting to be asked', async () => {
    const h = harness({ schedule });
    const disagg = params('context_only', { scheduleStyle: 'context_first' });
    h.executor.submit(contextRequest(1, 8, { disagg, transferPolicy: WHOLE }));
    await h.clock.turn(20);
    h.take();
    h.executor.cancel(1);
    await h.clock.turn(20);
    expect(h.take()).toEqual([ASKED, 'free 1', CONTEXT_END]);
  });

  it('that lacks blocks and cannot end yet does not hold up the line', async () => {
    const h = harness({ schedule, slotCount: 10, chunkTokens: 100 });
    h.executor.submit(generationRequest(9, 20, 1));
    h.executor.submit(contextRequest(1, 40));
    await h.clock.turn(20);
    h.executor.submit(aggregateRequest(2, 8, 1));
    await h.clock.turn(20);
    expect(h.take()).toEqual(['receive 9 0']);
    h.transceiver.cancelResult = false;
    h.executor.cancel(1);
    await h.clock.turn(20);
    expect(h.take('computed', 'done', 'first', 'free')).toEqual([
      ASKED,
      'forward 2[0,8)',
      // Each turn of the loop asks again.
      ...(schedule === 'overlap' ? [ASKED] : []),
      'finished 2 completed GENERATION_COMPLETE',
      ASKED,
    ]);
  });
});

describe.each(SCHEDULES)('cancel of a generation request, %s', (schedule) => {
  it('before it was admitted: the context server is told all the same', async () => {
    const h = harness({ schedule, maxTokensInBuffer: 4 });
    h.executor.submit(generationRequest(9, 4));
    h.executor.submit(generationRequest(1, 4));
    await h.clock.turn(20);
    h.executor.cancel(1);
    await h.clock.turn(20);
    expect(h.take()).toEqual(['receive 9 0', 'cancel 1 cancelled by its user', GENERATION_END]);
  });

  it('while it receives: waits until nothing can land any more', async () => {
    const h = harness({ schedule });
    h.transceiver.cancelResult = false;
    const request = generationRequest(1, 8);
    h.executor.submit(request);
    await h.clock.turn(20);
    h.executor.cancel(1);
    await h.clock.turn(20);
    expect(h.take()).toEqual(['receive 1 0', ASKED]);
    h.transceiver.settle(request, 'cancelled', { error: new TransferCancelledError('user') });
    await h.clock.turn(20);
    expect(h.take()).toEqual(['free 1', GENERATION_END]);
    expect(request.error).toBeNull();
  });

  it('whose cache arrives all the same: it is not decoded', async () => {
    const h = harness({ schedule });
    h.transceiver.cancelResult = false;
    const request = generationRequest(1, 8);
    h.executor.submit(request);
    await h.clock.turn(20);
    h.executor.cancel(1);
    h.transceiver.settle(request, 'completed', { firstTokens: [1] });
    await h.clock.turn(20);
    expect(h.take()).toEqual(['receive 1 0', 'free 1', GENERATION_END]);
    expect(request.outputTokens).toEqual([]);
  });

  it('while it decodes: after the step that runs', async () => {
    const h = harness({ schedule });
    const request = generationRequest(1, 8, 10);
    h.executor.submit(request);
    await h.clock.turn(20);
    h.engine.manual = true;
    h.transceiver.settle(request, 'completed', { firstTokens: [1] });
    await h.clock.turn(20);
    h.take();
    h.executor.cancel(1);
    await h.clock.turn(20);
    expect(h.take()).toEqual([]);
    h.engine.finish();
    await h.clock.turn(20);
    if (schedule === 'overlap') {
      expect(h.take()).toEqual(['done', 'computed 1 9']);
      h.engine.finish();
      await h.clock.turn(20);
      // What the step that was ahead sampled is nobody's.
      expect(h.take()).toEqual(['done', 'computed 1 10', 'free 1', GENERATION_END]);
    } else expect(h.take()).toEqual(['done', 'computed 1 9', 'free 1', GENERATION_END]);
    expect(request.outputTokens).toEqual([1, 101]);
  });
});

describe.each(SCHEDULES)('cancel, %s', (schedule) => {
  it('of an aggregate request ends it', async () => {
    const h = harness({ schedule });
    h.executor.submit(aggregateRequest(1, 8, 100));
    h.executor.cancel(1);
    await h.clock.turn(20);
    expect(h.take()).toEqual([GENERATION_END]);
  });

  it('of an unknown or finished request is a no-op', async () => {
    const h = harness({ schedule });
    expect(h.executor.cancel(1)).toBe(false);
    h.executor.submit(aggregateRequest(1, 4, 1));
    await h.clock.turn(20);
    expect(h.executor.cancel(1)).toBe(false);
    expect(h.take().filter((line) => line.startsWith('finished'))).toEqual([
      'finished 1 completed GENERATION_COMPLETE',
    ]);
  });
});
