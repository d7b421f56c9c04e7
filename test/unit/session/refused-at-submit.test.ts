import { describe, expect, it } from 'vitest';
import { RequestTooLargeError } from '../../../src/errors.js';
import type { LlmRequest } from '../../../src/executor/request.js';
import { MAX_DRAFT_TOKENS } from '../../../src/session/transferable-request.js';
import { makeRequest, TransferPair } from '../../sim-lite/transfer-pair.js';

/** A pair without a coordinator; the context half has one draft token too many. */
async function world() {
  const pair = await TransferPair.create();
  const { context, generation } = pair;
  context.cache.place(1, [5, 9, 2, 30]);
  generation.cache.place(7, [17, 3, 21, 8]);
  pair.fill(context, [5, 9, 2, 30]);
  const receive = makeRequest(7, 'generation', { endpoint: context.transceiver.endpoint });
  return { pair, context, generation, send: makeRequest(1, 'context'), receive };
}

function spoilt(request: LlmRequest): LlmRequest {
  if (request.disagg === null) throw new Error('a request without parameters');
  return { ...request, disagg: { ...request.disagg, draftTokens: Array(MAX_DRAFT_TOKENS + 1).fill(7) } };
}

describe('a context half that was refused when it was submitted, of a request that no coordinator watches', () => {
  it('leaves no trace: the question waits, and the half that comes mended under the same id is served', async () => {
    const { pair, context, generation, send, receive } = await world();
    expect(() => context.transceiver.receiverReady(spoilt(send))).toThrow(RequestTooLargeError);
    generation.transceiver.requestAndReceiveAsync(receive);
    await pair.run(2000);
    expect(() => context.transceiver.receiverReady(spoilt(send))).toThrow(RequestTooLargeError);
    expect([...context.settled, ...generation.settled]).toEqual([]);
    expect(context.transceiver.stats()).toMatchObject({ earlyRequests: 1, sendSessions: 0 });
    send.chunkEnd = 16;
    send.outputTokens.push(11);
    context.transceiver.respondAndSendAsync(send, { after: null });
    await pair.run(100);
    expect(generation.settled).toMatchObject([{ outcome: 'completed', firstTokens: [11] }]);
    for (const [i, slot] of [17, 3, 21, 8].entries())
      expect(pair.page(generation, 0, slot)).toEqual(pair.page(context, 0, [5, 9, 2, 30][i] as number));
  });

  it.each(['before', 'after'])(
    'its caller gives it up %s the question came: the generation side knows within a second',
    async (when) => {
      const { pair, context, generation, send, receive } = await world();
      const refused = spoilt(send);
      const giveUp = (): void => {
        expect(() => context.transceiver.receiverReady(refused)).toThrow(RequestTooLargeError);
        expect(context.transceiver.cancelRequest(refused, 'too many draft tokens')).toBe(true);
      };
      if (when === 'before') giveUp();
      generation.transceiver.requestAndReceiveAsync(receive);
      await pair.run(100);
      if (when === 'after') giveUp();
      await pair.run(800);
      expect(generation.settled).toHaveLength(1);
      expect(generation.settled[0]?.outcome).toMatch(/cancelled|failed/);
      expect(generation.settled[0]?.error?.message).toContain('too many draft tokens');
      for (const { transceiver } of [context, generation])
        expect(transceiver.stats()).toMatchObject({ held: 0, earlyRequests: 0, openReports: 0 });
    },
  );

  it('its caller gives up the other half: both sides are done within a second', async () => {
    const { pair, context, generation, send, receive } = await world();
    generation.transceiver.requestAndReceiveAsync(receive);
    await pair.run(100);
    expect(() => context.transceiver.receiverReady(spoilt(send))).toThrow(RequestTooLargeError);
    generation.transceiver.cancelRequest(receive, 'its context half was refused');
    await pair.run(800);
    expect(generation.settled).toMatchObject([{ outcome: 'cancelled' }]);
    for (const { transceiver } of [context, generation])
      expect(transceiver.stats()).toMatchObject({ held: 0, receiveSessions: 0, earlyRequests: 0, openReports: 0 });
  });

  it('nobody gives it up: its queue clock does', async () => {
    const { pair, context, generation, send, receive } = await world();
    generation.transceiver.requestAndReceiveAsync(receive);
    expect(() => context.transceiver.receiverReady(spoilt(send))).toThrow(RequestTooLargeError);
    await pair.run(20_500, 100);
    expect(generation.settled).toMatchObject([
      { outcome: 'failed', error: { code: 'ERR_KVT_TRANSFER_TIMEOUT', details: { clock: 'queue' } } },
    ]);
  });
});
