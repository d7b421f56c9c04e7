import { describe, expect, it, vi } from 'vitest';
import type { LlmRequest } from '../../../src/executor/request.js';
import { contextRequest, generationRequest, harness, SCHEDULES } from './harness.js';

describe.each(SCHEDULES)('what plugged-in code throws, %s', (schedule) => {
  it('while the loop rests: the requests end with that error, and the loop lives on', async () => {
    const warnings: string[] = [];
    const h = harness({ schedule, events: { onWarning: (message) => void warnings.push(message) } });
    h.transceiver.allReady = false;
    const first = contextRequest(1, 8);
    h.executor.submit(first);
    await h.clock.turn(10);
    // A prompt waits for its receivers: whatever wakes the loop meets this.
    h.transceiver.takeSettled = () => {
      throw new TypeError('out of the blue');
    };
    await h.clock.run(150);
    expect(first.error).toMatchObject({
      code: 'ERR_KVT_INTERNAL',
      message: expect.stringContaining('out of the blue'),
    });
    expect(h.take('free', 'cancel').at(-1)).toBe('finished 1 failed DISAGG_TRANS_ERROR');
    expect(h.executor.stats().internalErrors).toBeGreaterThan(0);
    expect(warnings[0]).toMatch(/^internal error, the executor loop failed: out of the blue/);
    h.transceiver.takeSettled = () => [];
    h.transceiver.allReady = true;
    const second = contextRequest(2, 8);
    h.executor.submit(second);
    await h.clock.run(150);
    h.transceiver.settle(second);
    expect(second.error).toBeNull();
    expect(h.executor.dump().requests).toHaveLength(1);
  });

  it('an engine that hands over no tokens at all fails the step', async () => {
    const h = harness({ schedule });
    h.engine.manual = true;
    const forward = h.engine.forward.bind(h.engine);
    h.engine.forward = async (batch) => ({ ...(await forward(batch)), tokens: Promise.resolve(null as never) });
    const request = contextRequest(1, 8);
    h.executor.submit(request);
    await h.clock.run(200);
    expect(request.error?.message).toMatch(/^the model engine failed: its tokens are null; .* must resolve to a Map/);
    expect(h.take('free', 'cancel', 'add', 'forward').at(-1)).toBe('finished 1 failed DISAGG_TRANS_ERROR');
    expect(await closed(h)).toEqual({ drained: true, failed: 0 });
  });

  it('an engine that hands over nothing fails the step, and its pages are given up', async () => {
    const h = harness({ schedule });
    h.engine.forward = async () => undefined as never;
    const request = contextRequest(1, 8);
    h.executor.submit(request);
    await h.clock.run(200);
    expect(request.error?.message).toMatch(/^the model engine failed: /);
    expect(h.log).toContain('free 1');
    expect(await closed(h)).toEqual({ drained: true, failed: 0 });
  });

  it('a cache manager that does not take pages back: the caller hears of the end all the same', async () => {
    const h = harness({ schedule, events: { onWarning: () => {} } });
    h.cache.freeRequest = () => {
      throw new TypeError('out of the blue');
    };
    const finished: LlmRequest[] = [];
    const request = contextRequest(1, 8);
    h.executor.submit(request, { onFinished: (ended) => finished.push(ended) });
    await h.clock.run(50);
    h.transceiver.settle(request);
    await h.clock.run(150);
    expect(finished).toEqual([request]);
    expect(h.executor.stats()).toMatchObject({ live: 0, internalErrors: 1 });
    expect(await closed(h)).toEqual({ drained: true, failed: 0 });
  });

  it('a handler of errors that throws itself', async () => {
    const told = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    try {
      const h = harness({ schedule });
      const push = h.log.push.bind(h.log);
      h.log.push = (line) => {
        if (line.startsWith('finished') || line.startsWith('handler')) throw new Error('the disk is full');
        return push(line);
      };
      const finished: LlmRequest[] = [];
      const request = generationRequest(1, 4);
      h.executor.submit(request, { onFinished: (ended) => finished.push(ended) });
      await h.clock.run(50);
      h.executor.cancel(1);
      await h.clock.run(200);
      expect(finished).toEqual([request]);
      expect(told.mock.calls.map(([text]) => text)).toEqual([
        'kv-transceiver: handler onFinished threw: Error: the disk is full',
        'kv-transceiver: handler onHandlerError threw: Error: the disk is full',
      ]);
      expect(h.executor.stats().internalErrors).toBe(0);
    } finally {
      told.mockRestore();
    }
  });
});

async function closed(h: ReturnType<typeof harness>): Promise<unknown> {
  const closing = h.executor.close({ deadlineMs: 100 });
  await h.clock.run(200);
  return closing;
}
