import { describe, expect, it } from 'vitest';
import { SessionRetiredError } from '../../../src/errors.js';
import type { LlmRequest } from '../../../src/executor/request.js';
import { makeRequest, TransferPair } from '../../sim-lite/transfer-pair.js';

/** Context requests 1 and 2, one after the other under one id, and a receiver for the first. */
async function world() {
  const pair = await TransferPair.create();
  const { context, generation } = pair;
  for (const id of [1, 2]) context.cache.place(id, [5, 9, 2, 30]);
  for (const id of [7, 8]) generation.cache.place(id, [17, 3, 21, 8]);
  const endpoint = context.transceiver.endpoint;
  const first = makeRequest(1, 'context');
  const second = makeRequest(2, 'context');
  generation.transceiver.requestAndReceiveAsync(makeRequest(7, 'generation', { endpoint }));
  await pair.run(50);
  return { pair, context, generation, first, second, endpoint };
}

function send(pair: TransferPair, request: LlmRequest): void {
  request.chunkEnd = 16;
  request.outputTokens.push(11);
  pair.context.transceiver.respondAndSendAsync(request, { after: null });
}

function refused(action: () => unknown): void {
  expect(action).toThrow(SessionRetiredError);
  expect(action).toThrow(/a request of this id already ended here: .* submit it again under a new one/);
}

describe('a second context request under an id that has ended', () => {
  it.each(['completed', 'cancelled', 'failed'])(
    '(%s): every verb says so at once, and no session waits',
    async (how) => {
      const { pair, context, first, second } = await world();
      expect(context.transceiver.receiverReady(first)).toBe(true);
      if (how === 'completed') send(pair, first);
      else if (how === 'cancelled') context.transceiver.cancelRequest(first, 'not wanted');
      else {
        context.agent.scripts.push('fail');
        send(pair, first);
      }
      await pair.run(200);
      expect(context.settled.map(({ outcome }) => outcome)).toEqual([how]);
      refused(() => context.transceiver.receiverReady(second));
      // As often as it is asked.
      await pair.run(25_000, 500);
      refused(() => context.transceiver.receiverReady(second));
      second.chunkEnd = 16;
      refused(() => context.transceiver.respondAndSendAsync(second, { after: null }));
      second.prepopulatedLen = 4;
      second.chunkStart = 4;
      refused(() => context.transceiver.sendEarlyPrefix(second, { after: null }));
      expect(context.transceiver.cancelRequest(second, 'it failed')).toBe(true);
      expect(context.transceiver.stats()).toMatchObject({ sendSessions: 0, held: 0 });
      expect(context.settled).toHaveLength(1);
    },
  );

  it('its receiver hears it too', async () => {
    const { pair, context, generation, first, second, endpoint } = await world();
    send(pair, first);
    await pair.run(100);
    generation.transceiver.requestAndReceiveAsync(makeRequest(8, 'generation', { endpoint }));
    await pair.run(50);
    refused(() => context.transceiver.receiverReady(second));
    expect(generation.settled).toMatchObject([
      { outcome: 'completed' },
      { outcome: 'failed', error: { details: { remoteCode: 'ERR_KVT_SESSION_RETIRED' } } },
    ]);
  });

  it('while the first one, cancelled, still drains under it', async () => {
    const { pair, context, first, second } = await world();
    context.agent.scripts.push('hang');
    first.chunkEnd = 8;
    context.transceiver.respondAndSendAsync(first, { after: null });
    await pair.run(20);
    expect(context.transceiver.cancelRequest(first, 'not wanted')).toBe(false);
    expect(context.transceiver.stats()).toMatchObject({ sendSessions: 1 });
    refused(() => context.transceiver.receiverReady(second));
    // Nothing of the first is the second's to end.
    expect(context.transceiver.cancelRequest(second, 'it failed')).toBe(true);
    expect(context.cache.isPinned(1)).toBe(true);
  });

  it('was cancelled before it began: its own answer is no, and no error', async () => {
    const { pair, context, first, second } = await world();
    expect(context.transceiver.cancelRequest(first, 'not wanted')).toBe(true);
    expect(context.transceiver.receiverReady(first)).toBe(false);
    refused(() => context.transceiver.receiverReady(second));
    await pair.run(100);
    expect(context.settled).toEqual([]);
  });
});

describe('the request that has ended', () => {
  it('is told no, drained or not, and its outcome has been told once', async () => {
    const { pair, context, first } = await world();
    context.agent.scripts.push('hang');
    first.chunkEnd = 8;
    context.transceiver.respondAndSendAsync(first, { after: null });
    await pair.run(20);
    context.transceiver.cancelRequest(first, 'not wanted');
    expect(context.transceiver.receiverReady(first)).toBe(false);
    context.agent.release();
    await pair.run(100);
    expect(context.transceiver.stats()).toMatchObject({ sendSessions: 0 });
    expect(context.transceiver.receiverReady(first)).toBe(false);
    await pair.run(1000, 100);
    expect(context.settled).toMatchObject([{ request: { id: 1 }, outcome: 'cancelled' }]);
  });
});
