import { describe, expect, it } from 'vitest';
import { SessionRetiredError } from '../../../src/errors.js';
import { makeRequest, TransferPair } from '../../sim-lite/transfer-pair.js';

const CONTEXT_SLOTS = [5, 9, 2, 30];
const GENERATION_SLOTS = [17, 3, 21, 8];

async function pairWith(): Promise<{
  pair: TransferPair;
  context: ReturnType<typeof makeRequest>;
  generation: ReturnType<typeof makeRequest>;
}> {
  const pair = await TransferPair.create();
  const context = makeRequest(1, 'context');
  const generation = makeRequest(7, 'generation', { endpoint: pair.context.transceiver.endpoint });
  pair.context.cache.place(1, CONTEXT_SLOTS);
  pair.generation.cache.place(7, GENERATION_SLOTS);
  return { pair, context, generation };
}

describe('cancel by the generation server', () => {
  it('before the context request exists: the session is born cancelled', async () => {
    const { pair, context, generation } = await pairWith();
    pair.generation.transceiver.requestAndReceiveAsync(generation);
    await pair.run(50);
    expect(pair.generation.transceiver.cancelRequest(generation, 'client left')).toBe(false);
    await pair.run(50);
    expect(pair.generation.settled).toMatchObject([
      { outcome: 'cancelled', error: { code: 'ERR_KVT_TRANSFER_CANCELLED' } },
    ]);
    expect(pair.generation.transceiver.stats()).toMatchObject({ held: 0, receiveSessions: 0, freeAuxSlots: 4 });
    expect(pair.context.transceiver.receiverReady(context)).toBe(false);
    await pair.run(20);
    expect(pair.context.settled).toMatchObject([{ outcome: 'cancelled' }]);
    context.chunkEnd = 16;
    expect(() => pair.context.transceiver.respondAndSendAsync(context, { after: null })).toThrow(SessionRetiredError);
    expect(pair.context.cache.history).toEqual([]);
  });

  it('with a write in flight: outcome at once, pages only when it drained', async () => {
    const { pair, context, generation } = await pairWith();
    pair.generation.transceiver.requestAndReceiveAsync(generation);
    await pair.run(50);
    pair.context.agent.scripts.push('hang');
    context.chunkEnd = 8;
    pair.context.transceiver.respondAndSendAsync(context, { after: null });
    await pair.run(20);
    expect(pair.generation.transceiver.cancelRequest(generation, 'client left')).toBe(false);
    await pair.run(100);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'cancelled' }]);
    expect(pair.context.settled).toMatchObject([{ outcome: 'cancelled' }]);
    expect(pair.generation.cache.isPinned(7)).toBe(true);
    expect(pair.context.cache.isPinned(1)).toBe(true);
    pair.context.agent.release();
    await pair.run(100);
    expect(pair.generation.cache.isPinned(7)).toBe(false);
    expect(pair.context.cache.isPinned(1)).toBe(false);
    expect(pair.generation.transceiver.cancelRequest(generation, 'again')).toBe(true);
  });

  it('survives the loss of CANCEL and of its answer', async () => {
    const { pair, generation } = await pairWith();
    pair.generation.transceiver.requestAndReceiveAsync(generation);
    await pair.run(50);
    pair.network.dropNext('CANCEL');
    pair.network.dropNext('WRITER_REPORT');
    pair.generation.transceiver.cancelRequest(generation, 'client left');
    await pair.run(1500);
    expect(pair.generation.transceiver.stats().held).toBe(0);
    expect(pair.generation.settled).toHaveLength(1);
  });
});

describe('cancel by the context server', () => {
  it('before anything was sent: tells the receiver, who releases its pages', async () => {
    const { pair, context, generation } = await pairWith();
    pair.generation.transceiver.requestAndReceiveAsync(generation);
    await pair.run(50);
    expect(pair.context.transceiver.receiverReady(context)).toBe(true);
    expect(pair.context.transceiver.cancelRequest(context, 'user')).toBe(true);
    await pair.run(50);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'cancelled' }]);
    expect(pair.generation.transceiver.stats().held).toBe(0);
    expect(pair.context.transceiver.cancelRequest(context, 'user')).toBe(true);
    expect(pair.context.settled).toHaveLength(1);
  });

  it('before the receiver asked: the receiver is answered when it asks', async () => {
    const { pair, context, generation } = await pairWith();
    expect(pair.context.transceiver.cancelRequest(context, 'user')).toBe(true);
    pair.generation.transceiver.requestAndReceiveAsync(generation);
    await pair.run(100);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'failed' }]);
    expect(pair.generation.transceiver.stats().held).toBe(0);
  });
});

describe('failures of the data path', () => {
  it('a failed slice fails both sides; pages wait until the agent proves it drained', async () => {
    const { pair, context, generation } = await pairWith();
    pair.generation.transceiver.requestAndReceiveAsync(generation);
    await pair.run(50);
    pair.context.agent.scripts.push('transfer', 'fail-undrained');
    context.chunkEnd = 8;
    pair.context.transceiver.respondAndSendAsync(context, { after: null });
    await pair.run(20);
    context.chunkStart = 8;
    context.chunkEnd = 16;
    pair.context.transceiver.respondAndSendAsync(context, { after: null });
    await pair.run(50);
    expect(pair.context.settled).toMatchObject([
      { outcome: 'failed', error: { code: 'ERR_KVT_TRANSPORT', drained: false } },
    ]);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'failed' }]);
    expect(pair.generation.cache.isPinned(7)).toBe(true);
    expect(pair.context.cache.isPinned(1)).toBe(true);
    pair.context.agent.release();
    await pair.run(50);
    expect(pair.generation.cache.history).toEqual(['pin 7', 'unpin 7']);
    expect(pair.context.cache.history).toEqual(['pin 1', 'unpin 1']);
  });

  it('a transfer that never ends fails by its clock and tells the receiver', async () => {
    const { pair, context, generation } = await pairWith();
    pair.generation.transceiver.requestAndReceiveAsync(generation);
    await pair.run(50);
    pair.context.agent.scripts.push('hang');
    context.chunkEnd = 16;
    pair.context.transceiver.respondAndSendAsync(context, { after: null });
    await pair.run(5_300, 100);
    expect(pair.context.settled).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_TRANSFER_TIMEOUT' } }]);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'failed' }]);
    expect(pair.context.cache.isPinned(1)).toBe(true);
  });

  it('a receiver that never asks ends the session by the queue clock', async () => {
    const { pair, context } = await pairWith();
    expect(pair.context.transceiver.receiverReady(context)).toBe(false);
    await pair.run(20_200, 200);
    expect(pair.context.settled).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_TRANSFER_TIMEOUT' } }]);
    expect(pair.context.settled[0]?.error?.message).toContain('transferQueueTimeoutMs');
  });

  it('a prefill longer than every timeout between two slices does not fail the transfer', async () => {
    const { pair, context, generation } = await pairWith();
    pair.generation.transceiver.requestAndReceiveAsync(generation);
    await pair.run(50);
    context.outputTokens.push(1);
    expect(pair.context.transceiver.receiverReady(context)).toBe(true);
    await pair.run(12_000, 200);
    context.chunkEnd = 16;
    pair.context.transceiver.respondAndSendAsync(context, { after: null });
    await pair.run(100);
    expect(pair.context.settled).toMatchObject([{ outcome: 'completed' }]);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'completed' }]);
  });
});

describe('shutdown', () => {
  it('cancels what runs, tells the peer, and reports drained', async () => {
    const { pair, generation, context } = await pairWith();
    pair.generation.transceiver.requestAndReceiveAsync(generation);
    await pair.run(50);
    expect(pair.context.transceiver.receiverReady(context)).toBe(true);
    const closing = pair.context.transceiver.close(1000);
    await pair.run(400);
    expect(await closing).toEqual({ drained: true, outstanding: 0 });
    pair.generation.transceiver.takeSettled();
    expect(pair.generation.settled).toHaveLength(1);
    expect(() => pair.context.transceiver.receiverReady(context)).toThrow(/closed/);
  });

  it.each<unknown>([Number.NaN, -1, Number.POSITIVE_INFINITY, 2 ** 31, { deadlineMs: 10 }, null, '5', 10n])(
    'refuses a deadline of %s before it closes anything',
    async (deadline) => {
      const { pair, generation, context } = await pairWith();
      await expect(pair.context.transceiver.close(deadline as number)).rejects.toThrow(
        /deadlineMs must be a number of milliseconds in \[0, 2147483647\], got/,
      );
      pair.generation.transceiver.requestAndReceiveAsync(generation);
      await pair.run(50);
      expect(pair.context.transceiver.receiverReady(context)).toBe(true);
    },
  );

  it('says so when something may still touch memory at the deadline', async () => {
    const { pair, context, generation } = await pairWith();
    pair.generation.transceiver.requestAndReceiveAsync(generation);
    await pair.run(50);
    pair.context.agent.scripts.push('hang');
    context.chunkEnd = 16;
    pair.context.transceiver.respondAndSendAsync(context, { after: null });
    await pair.run(20);
    const closing = pair.context.transceiver.close(500);
    await pair.run(1000);
    expect(await closing).toMatchObject({ drained: false });
  });
});
