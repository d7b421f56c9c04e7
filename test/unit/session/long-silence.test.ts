import { expect, it } from 'vitest';
import { DROP } from '../../sim-lite/fake-messenger.js';
import { makeRequest, TransferPair } from '../../sim-lite/transfer-pair.js';

const SLOTS = [3, 9, 1, 4];

/** A writer is lost after three silent seconds, a greeting without an answer given up after five more; pages are kept for ten. */
it.each([4000, 9000])(
  'a writer that is cut off for %i ms proves that it stopped, and the pages come back with proof',
  async (cutMs) => {
    const pair = await TransferPair.create();
    const { context, generation } = pair;
    context.cache.place(1, SLOTS);
    generation.cache.place(1, SLOTS);
    const sent = makeRequest(1, 'context');
    generation.transceiver.requestAndReceiveAsync(
      makeRequest(1, 'generation', { endpoint: context.transceiver.endpoint }),
    );
    await pair.run(50);
    expect(context.transceiver.receiverReady(sent)).toBe(true);
    sent.chunkEnd = 8;
    context.transceiver.respondAndSendAsync(sent, { after: null });
    await pair.run(50);

    const heal = pair.network.addRule(() => DROP);
    await pair.run(cutMs);
    expect(generation.settled.map(({ outcome }) => outcome)).toEqual(['failed']);
    expect(generation.transceiver.stats().held).toBe(1);
    heal();
    await pair.run(2500);
    expect(generation.transceiver.stats()).toMatchObject({ held: 0, receiveSessions: 0 });
    expect(generation.transceiver.stats().counters['released_unproven']).toBeUndefined();
    expect(context.settled.map(({ outcome }) => outcome)).toEqual(['failed']);
  },
);
