import { describe, expect, it } from 'vitest';
import { DROP } from '../../sim-lite/fake-messenger.js';
import { makeRequest, TransferPair } from '../../sim-lite/transfer-pair.js';

/** A receiver that expects 16 tokens of a prompt that has 24. */
async function unlike(named: boolean) {
  const pair = await TransferPair.create();
  const { context, generation } = pair;
  context.cache.place(1, [5, 9, 2, 30, 11, 12]);
  generation.cache.place(7, [17, 3, 21, 8]);
  const endpoint = context.transceiver.endpoint;
  const owner = named ? { generation: generation.transceiver.endpoint } : {};
  const send = makeRequest(1, 'context', { promptLen: 24, ...owner });
  const receive = makeRequest(7, 'generation', { promptLen: 16, endpoint, ...owner });
  return { pair, send, receive };
}

function ends({ context, generation }: TransferPair): void {
  expect(generation.settled).toMatchObject([
    { outcome: 'failed', error: { code: 'ERR_KVT_TRANSPORT', details: { remoteCode: 'ERR_KVT_PROTOCOL' } } },
  ]);
  expect(context.settled).toMatchObject([
    {
      outcome: 'cancelled',
      error: { code: 'ERR_KVT_TRANSFER_CANCELLED', message: expect.stringContaining('expects 16 prompt tokens') },
    },
  ]);
  for (const { transceiver } of [context, generation])
    expect(transceiver.stats()).toMatchObject({ held: 0, sendSessions: 0, receiveSessions: 0, openReports: 0 });
}

describe.each([true, false])('a receiver that expects another prompt (the request names its receiver: %s)', (named) => {
  it('asks after the request came, or before: both sides know within a second that nothing comes of it', async () => {
    for (const isEarly of [false, true]) {
      const { pair, send, receive } = await unlike(named);
      const { context, generation } = pair;
      if (!isEarly) context.transceiver.receiverReady(send);
      generation.transceiver.requestAndReceiveAsync(receive);
      await pair.run(100);
      if (isEarly) context.transceiver.receiverReady(send);
      await pair.run(900);
      ends(pair);
    }
  });

  it('asks in the middle of a prompt of which a part is sent: its pages are free within a second', async () => {
    const { pair, send, receive } = await unlike(named);
    const { context, generation } = pair;
    pair.fill(context, [5, 9, 2, 30, 11, 12]);
    send.chunkEnd = 8;
    context.transceiver.respondAndSendAsync(send, { after: null });
    expect(context.cache.isPinned(1)).toBe(true);
    generation.transceiver.requestAndReceiveAsync(receive);
    await pair.run(900);
    ends(pair);
    expect(context.cache.isPinned(1)).toBe(false);
  });

  it('says so until it is answered', async () => {
    const { pair, send, receive } = await unlike(named);
    const { context, generation, network } = pair;
    let lost = 0;
    network.addRule(({ message }) => (message.type === 'CANCEL' && lost++ < 1 ? DROP : null));
    context.transceiver.receiverReady(send);
    generation.transceiver.requestAndReceiveAsync(receive);
    await pair.run(900);
    expect(lost).toBe(2);
    ends(pair);
  });
});

it('a stranger to the request who asks wrongly ends nothing', async () => {
  const { pair, send, receive } = await unlike(true);
  const { context, generation } = pair;
  const other = await pair.start('other');
  pair.others.push(other);
  other.cache.place(9, [1, 2, 3, 4]);
  context.transceiver.receiverReady(send);
  const { endpoint } = context.transceiver;
  other.transceiver.requestAndReceiveAsync(makeRequest(9, 'generation', { endpoint }));
  await pair.run(1000);
  expect(other.settled).toMatchObject([{ outcome: 'failed' }]);
  expect(context.settled).toEqual([]);
  expect(receive.id).not.toBe(9);
  expect(generation.settled).toEqual([]);
  expect(context.transceiver.stats()).toMatchObject({ sendSessions: 1 });
});
