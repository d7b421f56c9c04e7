import { describe, expect, it } from 'vitest';
import type { Rank, RankRequest } from '../../sim-lite/rank-world.js';
import { Stranger } from '../../sim-lite/stranger.js';
import { completes, forge, helloOf, underWay } from './under-way.js';

describe('a stranger that speaks for a live peer', () => {
  for (const side of ['context', 'generation'] as const)
    it(`GOODBYE in the name of the ${side} rank makes the other one ask there, and changes nothing`, async () => {
      const { world, context, generation, sent, received } = await underWay();
      const [victim, hearer] = side === 'context' ? [context, generation] : [generation, context];
      const goodbye = { type: 'GOODBYE', endpoint: victim.transceiver.endpoint, drainMs: 0, reason: 'forged' } as const;
      for (let i = 0; i < 5; i += 1) forge(world, hearer, goodbye, 99n);
      await world.run(50);
      const probes = world.network.log.filter(
        ({ from, to, message, sentAt }) =>
          from === hearer.transceiver.endpoint &&
          to === victim.transceiver.endpoint &&
          message.type === 'HELLO' &&
          sentAt > 1060,
      );
      expect(probes).toHaveLength(1);
      expect(hearer.transceiver.stats().counters['unknown_peer:GOODBYE']).toBe(5);
      await completes(world, sent, received);
    });

  it('HELLO with its endpoint and another incarnation does not replace it', async () => {
    const { world, context, generation, sent, received } = await underWay();
    const { hello } = helloOf(world, generation);
    const claim = { ...hello, rankInfo: { ...hello.rankInfo, incarnation: 77n } };
    forge(world, context, claim, 77n);
    await world.run(50);
    expect(context.transceiver.stats().counters['claims_refuted']).toBe(1);
    await completes(world, sent, received);
  });

  for (const first of ['liar', 'victim'] as const)
    it(`HELLO with its incarnation, greeted first by the ${first}: both are peers, neither has the other’s frames`, async () => {
      const { world, context, generation, sent, received } = await underWay();
      const [third] = (await world.instance('third')) as [Rank];
      const options = { rid: (1n << 41n) + 5n, firstSlot: 1, endpoint: context.transceiver.endpoint };
      const { hello } = helloOf(world, generation);
      const asThird = async (): Promise<void> => {
        world.ask(world.place([third], 'generation', options));
        await world.run(50);
      };
      if (first === 'victim') await asThird();
      const liar = new Stranger(world.network, third.incarnation);
      liar.greet(context.transceiver.endpoint, hello);
      await world.run(50);
      if (first === 'liar') await asThird();
      expect(context.transceiver.stats().peers).toHaveLength(3);
      const goodbye = { type: 'GOODBYE', endpoint: third.transceiver.endpoint, drainMs: 0, reason: '' } as const;
      liar.say(context.transceiver.endpoint, goodbye);
      await world.run(50);
      expect(context.transceiver.stats().peers).toEqual([
        expect.stringContaining(generation.transceiver.endpoint),
        expect.stringContaining(third.transceiver.endpoint),
      ]);
      const theirs = world.place([context], 'context', { rid: options.rid, firstSlot: 1 });
      world.chunk(theirs, 0, 16);
      await world.run(100);
      expect(third.settled.map(({ outcome }) => outcome)).toEqual(['completed']);
      await completes(world, sent, received);
    });

  it('GOODBYE with its incarnation and its endpoint, by another connection, is asked about and ends nothing', async () => {
    const { world, context, generation, sent, received } = await underWay();
    const { incarnation } = helloOf(world, generation);
    const { endpoint } = generation.transceiver;
    forge(world, context, { type: 'GOODBYE', endpoint, drainMs: 0, reason: 'forged' }, incarnation);
    await world.run(50);
    expect(context.transceiver.stats().counters).toMatchObject({ 'unknown_peer:GOODBYE': 1 });
    expect(context.transceiver.stats().counters['peers_lost']).toBeUndefined();
    await completes(world, sent, received);
  });

  it('its whole HELLO, by another connection, changes nothing', async () => {
    const { world, context, generation, sent, received } = await underWay();
    const { hello, incarnation } = helloOf(world, generation);
    forge(world, context, hello, incarnation);
    await world.run(50);
    expect(context.transceiver.stats().counters['claims_refuted']).toBe(1);
    expect(context.transceiver.stats().counters['peers_lost']).toBeUndefined();
    await completes(world, sent, received);
  });

  it('HELLO_ACK with a guessed nonce is not believed', async () => {
    const { world, context, generation, sent, received } = await underWay();
    const { hello } = helloOf(world, generation);
    const { endpoint } = generation.transceiver;
    const answer = { accepted: true, rankInfo: { ...hello.rankInfo, incarnation: 77n } } as const;
    for (let nonce = 0n; nonce < 8n; nonce += 1n)
      forge(world, context, { type: 'HELLO_ACK', nonce, endpoint, answer }, 77n);
    await world.run(50);
    expect(context.transceiver.stats().counters['stale:HELLO_ACK']).toBe(8);
    await completes(world, sent, received);
  });
});

describe('a process that really is another one', () => {
  it('is noticed as soon as it says so, although no connection broke', async () => {
    const { world, context, generation } = await underWay();
    const old = context.transceiver.endpoint;
    // The machine went away without a word: no connection breaks. The new process answers a PING as a stranger.
    generation.messenger.forget(old);
    const fresh = await world.restart('context', {}, context, [context]);
    const goodbye = { type: 'GOODBYE', endpoint: old, drainMs: 0, reason: 'send HELLO first' } as const;
    forge(world, generation, goodbye, 88n);
    await world.run(100);
    expect(generation.settled).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_PEER_LOST' } }]);
    const options = { rid: (1n << 41n) + 5n, firstSlot: 1 };
    const sent = world.place([fresh], 'context', options);
    const received = world.place([generation], 'generation', { ...options, endpoint: old });
    world.ask(received);
    await world.run(300);
    world.chunk(sent, 0, 16);
    await world.run(100);
    expect(generation.settled.at(-1)?.outcome).toBe('completed');
  });

  it('a restarted receiver is greeted by the writer that knew the old one, and served', async () => {
    const { world, context, generation } = await underWay();
    world.network.addRule(({ message }) => (message.type === 'PING' ? { copies: 0 } : null));
    context.messenger.forget(generation.transceiver.endpoint);
    const fresh = await world.restart('generation', {}, generation, [generation]);
    const options = { rid: (1n << 41n) + 5n, firstSlot: 1 };
    const sent = world.place([context], 'context', options);
    const received = world.place([fresh], 'generation', { ...options, endpoint: context.transceiver.endpoint });
    world.ask(received);
    await world.run(600);
    expect(context.settled[0]).toMatchObject({ outcome: 'failed', error: { code: 'ERR_KVT_PEER_LOST' } });
    world.chunk(sent, 0, 16);
    await world.run(100);
    expect(fresh.settled).toMatchObject([{ outcome: 'completed' }]);
    expect(world.wrongWords(received[0] as RankRequest)).toBe(0);
  });
});
