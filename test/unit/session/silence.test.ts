import { describe, expect, it } from 'vitest';
import { RequestTooLargeError } from '../../../src/errors.js';
import { RANK_LIMITS, type Rank, type RankRequest, RankWorld } from '../../sim-lite/rank-world.js';

async function begin(auxSlots = 4) {
  const world = new RankWorld();
  const [context] = (await world.instance('context')) as [Rank];
  const [generation] = (await world.instance('generation', { auxSlots })) as [Rank];
  const request = (n: number) => {
    const options = { rid: (1n << 41n) + BigInt(n), firstSlot: n };
    const [sent] = world.place([context], 'context', options) as [RankRequest];
    const endpoint = context.transceiver.endpoint;
    const [received] = world.place([generation], 'generation', { ...options, endpoint }) as [RankRequest];
    return { sent, received };
  };
  return { world, context, generation, request };
}

const sentBy = (world: RankWorld, rank: Rank, type: string): number =>
  world.network.log.filter(({ from, message }) => from === rank.transceiver.endpoint && message.type === type).length;

describe('a writer that took the request and is silent', () => {
  it('is asked how it goes, at most every quarter of noProgressTimeoutMs, until its report', async () => {
    const { world, context, generation, request } = await begin();
    const { sent, received } = request(0);
    world.ask([received]);
    await world.run(900);
    expect(sentBy(world, generation, 'STATUS')).toBe(0);
    await world.run(4_000, 50);
    expect(sentBy(world, generation, 'STATUS')).toBe(4);
    expect(sentBy(world, context, 'ACCEPTED')).toBe(5);
    world.chunk([sent], 0, 16);
    await world.run(3_000, 50);
    expect(generation.settled).toMatchObject([{ outcome: 'completed' }]);
    expect(sentBy(world, generation, 'STATUS')).toBe(4);
  });

  it('waits longer than noProgressTimeoutMs between two chunks: the receiver waits with it', async () => {
    const { world, generation, request } = await begin();
    const { sent, received } = request(0);
    world.ask([received]);
    await world.run(50);
    world.chunk([sent], 0, 8);
    await world.run(3 * RANK_LIMITS.noProgressTimeoutMs, 50);
    expect(generation.settled).toEqual([]);
    world.chunk([sent], 8, 16);
    await world.run(100);
    expect(generation.settled).toMatchObject([{ outcome: 'completed' }]);
    expect(world.wrongWords(received)).toBe(0);
  });

  it('waits for ever: the receiver gives up after transferQueueTimeoutMs, and knows what it has', async () => {
    const { world, context, generation, request } = await begin();
    const { sent, received } = request(0);
    world.ask([received]);
    await world.run(50);
    world.chunk([sent], 0, 9);
    await world.run(RANK_LIMITS.transferQueueTimeoutMs - 200, 100);
    expect(generation.settled).toEqual([]);
    await world.run(1_000, 100);
    expect(generation.settled).toMatchObject([
      {
        outcome: 'failed',
        error: { code: 'ERR_KVT_TRANSFER_TIMEOUT', message: expect.stringContaining('transferQueueTimeoutMs') },
        salvageableTokens: 8,
      },
    ]);
    expect(world.wrongWords(received, 0, 8)).toBe(0);
    expect(context.settled).toMatchObject([{ outcome: 'cancelled', salvageableTokens: 0 }]);
    expect(world.leftovers()).toEqual([]);
  });

  it('does not answer either: noProgressTimeoutMs ends it', async () => {
    const { world, generation, request } = await begin();
    const { sent, received } = request(0);
    world.ask([received]);
    await world.run(50);
    world.chunk([sent], 0, 8);
    await world.run(50);
    world.network.addRule(({ message }) => (message.type === 'STATUS' ? { copies: 0 } : null));
    await world.run(RANK_LIMITS.noProgressTimeoutMs + 300, 50);
    expect(generation.settled).toMatchObject([
      { outcome: 'failed', error: { message: expect.stringContaining('noProgressTimeoutMs') } },
    ]);
  });

  it('lost this process before the request came to it: it says so when it is asked, and is asked again', async () => {
    const { world, context, generation, request } = await begin();
    const { sent, received } = request(0);
    world.ask([received]);
    await world.run(50);
    world.network.breakConnection(context.transceiver.endpoint, generation.transceiver.endpoint);
    world.network.addRule(({ message }) => (message.type === 'PING' ? { copies: 0 } : null));
    await world.run(1_500, 50);
    expect(generation.transceiver.stats().counters['greeted_again']).toBe(1);
    world.chunk([sent], 0, 16);
    await world.run(100);
    expect(generation.settled).toMatchObject([{ outcome: 'completed' }]);
    expect(world.wrongWords(received)).toBe(0);
  });
});

describe('what a failed receive has', () => {
  for (const [lost, tokens] of [
    [0, 0],
    [1, 4],
    [null, 12],
  ] as const)
    it(`${lost === null ? 'every result' : `all results but that of slice ${lost}`}: ${tokens} tokens`, async () => {
      const { world, generation, request } = await begin();
      const { sent, received } = request(0);
      world.network.addRule(({ message }) =>
        message.type === 'SLICE_RESULT' && message.sliceSeq === lost ? { copies: 0 } : null,
      );
      world.ask([received]);
      await world.run(50);
      for (const end of [4, 8, 12]) {
        world.chunk([sent], end - 4, end);
        await world.run(20);
      }
      generation.transceiver.cancelRequest(received.request, 'enough');
      await world.run(50);
      expect(generation.settled).toMatchObject([{ outcome: 'cancelled', salvageableTokens: tokens }]);
      expect(world.wrongWords(received, 0, tokens)).toBe(0);
    });
});

describe('aux slots of the receiver', () => {
  it('all in use: the next request waits for one, first come, first served', async () => {
    const { world, context, generation, request } = await begin(1);
    const [first, second, third] = [request(0), request(1), request(2)];
    world.ask([first.received, second.received, third.received]);
    await world.run(100);
    expect(sentBy(world, generation, 'REQUEST_DATA')).toBe(1);
    expect(generation.transceiver.stats()).toMatchObject({ receiveSessions: 3, held: 3, freeAuxSlots: 0 });
    for (const [index, { sent }] of [first, second, third].entries()) {
      world.chunk([sent], 0, 16);
      await world.run(100);
      expect(generation.settled.map(({ request: { id } }) => id)).toEqual(
        [first, second, third].slice(0, index + 1).map(({ received }) => received.request.id),
      );
    }
    expect(generation.settled.every(({ outcome }) => outcome === 'completed')).toBe(true);
    expect(context.settled).toHaveLength(3);
    expect(world.leftovers()).toEqual([]);
  });

  it('none becomes free: the queue clock ends the request, which asked nobody', async () => {
    const { world, generation, request } = await begin(1);
    const [first, second] = [request(0), request(1)];
    world.ask([first.received, second.received]);
    await world.run(50);
    world.chunk([first.sent], 0, 4);
    for (let at = 4; at < 14; at += 1) {
      await world.run(2_050, 50);
      world.chunk([first.sent], at, at + 1);
    }
    expect(generation.settled).toMatchObject([
      { outcome: 'failed', error: { message: expect.stringContaining('no aux slot became free within 20000 ms') } },
    ]);
    expect(generation.settled[0]?.request).toBe(second.received.request);
    expect(sentBy(world, generation, 'REQUEST_DATA')).toBe(1);
  });

  it('cancelled while it waits: over at once', async () => {
    const { world, generation, request } = await begin(1);
    const [first, second] = [request(0), request(1)];
    world.ask([first.received, second.received]);
    await world.run(50);
    expect(generation.transceiver.cancelRequest(second.received.request, 'client left')).toBe(true);
    expect(generation.cache.isPinned(second.received.request.id)).toBe(false);
  });

  it('a server without any refuses generation first at once, and takes context first', async () => {
    const { world, generation, request } = await begin(0);
    const { sent, received } = request(0);
    expect(() => world.ask([received])).toThrow(RequestTooLargeError);
    expect(generation.cache.history).toEqual([]);
    const [later] = world.place([generation], 'generation', {
      rid: 1n << 41n,
      endpoint: sent.rank.transceiver.endpoint,
      style: 'context_first',
    }) as [RankRequest];
    world.ask([later]);
    await world.run(50);
    world.chunk([sent], 0, 16);
    await world.run(50);
    expect(generation.settled).toMatchObject([{ outcome: 'completed', firstTokens: [] }]);
  });
});
