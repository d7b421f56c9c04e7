import { describe, expect, it } from 'vitest';
import { TransportError } from '../../../src/errors.js';
import { aggregateRequest, contextRequest, generationRequest, harness, SCHEDULES } from './harness.js';

describe.each(SCHEDULES)('requests of one executor do not hold each other up, %s', (schedule) => {
  it.each([1, 2, 3, 4, 5, 6])(
    'a prompt that is being computed goes on, though one that came before it waits for its blocks (%i turns in)',
    async (turns) => {
      // Ten blocks; the receive of 2 does not fit the buffer while 1 is on its way, so that 3, which came last, is let in first.
      const h = harness({ schedule, slotCount: 10, chunkTokens: 4, tokenBudget: 64, maxTokensInBuffer: 16 });
      const [first, second] = [generationRequest(1, 16, 1), generationRequest(2, 24, 1)];
      const third = aggregateRequest(3, 24, 1);
      for (const request of [first, second, third]) h.executor.submit(request);
      await h.clock.turn(turns);
      h.transceiver.settle(first, 'completed', { firstTokens: [1] });
      await h.clock.turn(60);
      // Where 1 ended before 3 was let in, 2 went first.
      expect(h.log).toContain('receive 2 0');
      h.transceiver.settle(second, 'completed', { firstTokens: [1] });
      await h.clock.turn(60);
      const ends = h.log
        .filter((line) => line.startsWith('finished'))
        .map((line) => line.split(' ').slice(1, 3).join(' '));
      expect(ends.sort()).toEqual(['1 completed', '2 completed', '3 completed']);
    },
  );

  it('receives that are refused as they are posted make room at once for those behind them', async () => {
    const h = harness({ schedule, maxTokensInBuffer: 16 });
    const receive = h.transceiver.requestAndReceiveAsync.bind(h.transceiver);
    h.transceiver.requestAndReceiveAsync = (request) => {
      if (request.id < 6) throw new TransportError('refused');
      receive(request);
    };
    for (let id = 1; id <= 6; id++) h.executor.submit(generationRequest(id, 16));
    // Without time passing.
    await h.clock.turn(60);
    expect(
      h.take('cancel', 'add', 'free', 'grow', 'ensure').filter((line) => /^(finished|receive)/.test(line)),
    ).toEqual([...[1, 2, 3, 4, 5].map((id) => `finished ${id} failed DISAGG_TRANS_ERROR`), 'receive 6 0']);
  });

  it('a transceiver that throws at a cancel costs that request nothing more, and the others of its step nothing', async () => {
    const h = harness({ schedule, events: { onWarning: () => {} } });
    h.engine.forward = () => Promise.reject(new Error('the device is gone'));
    let isFirst = true;
    h.transceiver.cancelRequest = () => {
      if (!isFirst) return true;
      isFirst = false;
      throw new TypeError('out of the blue');
    };
    const requests = [1, 2, 3].map((id) => contextRequest(id, 8));
    for (const request of requests) h.executor.submit(request);
    await h.clock.run(200);
    expect(h.log.filter((line) => line.startsWith('finished'))).toEqual(
      [1, 2, 3].map((id) => `finished ${id} failed DISAGG_TRANS_ERROR`),
    );
    for (const { error } of requests) expect(error?.message).toMatch(/the device is gone/);
    expect(h.executor.stats()).toMatchObject({ live: 0, internalErrors: 1 });
    const closing = h.executor.close({ deadlineMs: 100 });
    await h.clock.run(200);
    expect(await closing).toEqual({ drained: true, failed: 0 });
  });
});
