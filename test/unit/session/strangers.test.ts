import { describe, expect, it } from 'vitest';
import type { Message } from '../../../src/wire/index.js';
import { completes, forge, questionTo, sentSince, speak, underWay } from './under-way.js';

const LOAD = { sessions: 0, freeAuxSlots: 0 };

describe('a stranger at the endpoint of a live peer', () => {
  for (const side of ['context', 'generation'] as const)
    it(`PING in the name of the ${side} rank: it is asked who is there, and hears nothing else`, async () => {
      const { world, context, generation, sent, received } = await underWay();
      const [victim, hearer] = side === 'context' ? [context, generation] : [generation, context];
      const at = world.clock.now();
      const { endpoint } = victim.transceiver;
      for (let i = 0; i < 5; i += 1) forge(world, hearer, { type: 'PING', endpoint, ...LOAD }, 99n);
      await world.run(30);
      expect(sentSince(world, at, hearer, endpoint)).toEqual(['HELLO']);
      expect(victim.transceiver.stats().counters['peers_lost']).toBeUndefined();
      await completes(world, sent, received);
    });

  it('REQUEST_DATA, STATUS and CANCEL with its ticket are not answered there', async () => {
    const { world, context, generation, sent, received } = await underWay();
    const question = questionTo(world, context);
    const { rid, ticket, endpoint } = question;
    const at = world.clock.now();
    const frames: Message[] = [
      question,
      { type: 'STATUS', rid, ticket, endpoint },
      { type: 'CANCEL', rid, ticket, from: 'generation', endpoint, reason: '' },
    ];
    for (const frame of frames) forge(world, context, frame, 99n);
    await world.run(30);
    expect(sentSince(world, at, context, endpoint)).toEqual(['HELLO']);
    expect(generation.settled).toEqual([]);
    await completes(world, sent, received);
  });

  it('that goes on for long costs the peer one HELLO a second', async () => {
    const { world, context, generation, sent, received } = await underWay();
    const { endpoint } = generation.transceiver;
    const at = world.clock.now();
    for (let i = 0; i < 40; i += 1) {
      forge(world, context, { type: 'PING', endpoint, ...LOAD }, 99n);
      await world.run(50);
    }
    const greeted = sentSince(world, at, context, endpoint).filter((type) => type === 'HELLO').length;
    expect(greeted).toBe(2);
    expect(context.transceiver.stats().counters['probes_spared']).toBe(38);
    await completes(world, sent, received);
  });
});

describe('answers', () => {
  it('to a known peer go to its endpoint, whatever the frame says', async () => {
    const { world, context, generation, sent, received } = await underWay();
    const elsewhere = world.network.bind();
    const { endpoint } = elsewhere;
    const at = world.clock.now();
    const unknown = { rid: 5n, ticket: 6n, endpoint };
    speak(world, generation, context, { type: 'PING', endpoint, ...LOAD });
    speak(world, generation, context, { type: 'CANCEL', ...unknown, from: 'context', reason: '' });
    speak(world, generation, context, { type: 'CANCEL', ...unknown, from: 'generation', reason: '' });
    await world.run(30);
    expect(sentSince(world, at, context, endpoint)).toEqual([]);
    expect(sentSince(world, at, context, generation.transceiver.endpoint)).toEqual([
      'PONG',
      'CANCEL_ACK',
      'WRITER_REPORT',
    ]);
    await completes(world, sent, received);
  });

  it('a refusal of one whose memory is not loaded goes to its endpoint', async () => {
    const { world, context, generation, sent, received } = await underWay();
    // The context rank is a peer of the generation rank that never greeted it.
    const { endpoint } = world.network.bind();
    const at = world.clock.now();
    speak(world, context, generation, { ...questionTo(world, context), rid: 7n, ticket: 8n, endpoint });
    await world.run(30);
    expect(sentSince(world, at, generation, endpoint)).toEqual([]);
    expect(sentSince(world, at, generation, context.transceiver.endpoint)).toContain('WRITER_REPORT');
    await completes(world, sent, received);
  });
});

describe('a ticket that is another’s', () => {
  /** Another peer of the context rank, which has asked for a request of its own. */
  async function withOther() {
    const parts = await underWay();
    const { world, context } = parts;
    const question = questionTo(world, context);
    const [other] = await world.instance('other');
    if (other === undefined) throw new Error('no rank');
    const options = { rid: (1n << 41n) + 5n, firstSlot: 1 };
    const own = world.place([other], 'generation', { ...options, endpoint: context.transceiver.endpoint });
    world.ask(own);
    await world.run(50);
    return { ...parts, question, other, own: questionTo(world, context), ownRequests: own, options };
  }

  async function finishes({ world, sent, received }: Awaited<ReturnType<typeof underWay>>): Promise<void> {
    world.chunk(sent, 8, 16);
    await world.run(100);
    expect(received[0]?.rank.settled).toMatchObject([{ outcome: 'completed' }]);
    expect(received[0]?.rank.cache.pins.size).toBe(0);
  }

  it('CANCEL for it is dropped and counted: nobody is told that it drained', async () => {
    const parts = await withOther();
    const { world, context, other, question } = parts;
    const at = world.clock.now();
    const { rid, ticket, endpoint } = question;
    const cancel = { type: 'CANCEL', rid, ticket, endpoint, from: 'generation', reason: '' } as const;
    speak(world, other, context, cancel);
    // The same ticket under another request, which exists or not.
    speak(world, other, context, { ...cancel, rid: (1n << 41n) + 5n });
    speak(world, other, context, { ...cancel, rid: 77n });
    forge(world, context, { ...cancel, endpoint: world.network.bind().endpoint }, 99n);
    await world.run(30);
    expect(world.network.log.filter(({ sentAt, message }) => sentAt >= at && message.type === 'WRITER_REPORT')).toEqual(
      [],
    );
    expect(context.transceiver.stats().counters['foreign_ticket:CANCEL']).toBe(4);
    await finishes(parts);
  });

  it('STATUS and REQUEST_DATA for it are dropped and counted, and the true report is sent', async () => {
    const parts = await withOther();
    const { world, context, other, question } = parts;
    const stranger = world.network.bind().endpoint;
    for (const frame of [{ ...question, rid: 77n }, question]) {
      speak(world, other, context, frame);
      const { rid, ticket, endpoint } = frame;
      speak(world, other, context, { type: 'STATUS', rid, ticket, endpoint });
    }
    const { ticket } = question;
    forge(world, context, { ...question, rid: 77n, endpoint: stranger }, 99n);
    forge(world, context, { type: 'STATUS', rid: 77n, ticket, endpoint: stranger }, 99n);
    await world.run(30);
    expect(context.transceiver.stats().counters).toMatchObject({
      'foreign_ticket:STATUS': 3,
      'foreign_ticket:REQUEST_DATA': 3,
    });
    await finishes(parts);
  });

  it('a question that waits for its request is its asker’s as well', async () => {
    const { world, context, generation, own, other, ownRequests, options } = await withOther();
    const { ticket, endpoint } = own;
    speak(world, generation, context, { type: 'CANCEL', rid: 77n, ticket, endpoint, from: 'generation', reason: '' });
    speak(world, generation, context, { type: 'STATUS', rid: 77n, ticket, endpoint });
    await world.run(30);
    expect(context.transceiver.stats().counters).toMatchObject({
      'foreign_ticket:CANCEL': 1,
      'foreign_ticket:STATUS': 1,
    });
    const sent = world.place([context], 'context', options);
    world.chunk(sent, 0, 16);
    await world.run(100);
    expect(other.settled).toMatchObject([{ outcome: 'completed' }]);
    expect(world.wrongWords(ownRequests[0] as (typeof ownRequests)[0])).toBe(0);
  });

  it('REPORT_ACK for it does not stop the repeats', async () => {
    const { world, context, generation, other, sent, question } = await withOther();
    world.network.dropNext('WRITER_REPORT', 2);
    world.chunk(sent, 8, 16);
    await world.run(50);
    const { rid, ticket } = question;
    speak(world, other, context, { type: 'REPORT_ACK', rid, ticket, drained: true });
    // No question how it goes may stand in for the repeat.
    world.network.addRule(({ message }) => (message.type === 'STATUS' ? { copies: 0 } : null));
    await world.run(1000);
    expect(generation.settled).toMatchObject([{ outcome: 'completed' }]);
  });
});

describe('CANCEL of the writing side', () => {
  it('counts only from the writer that has the ticket', async () => {
    const { world, context, generation, sent, received } = await underWay();
    const { rid, ticket } = questionTo(world, context);
    const { endpoint } = context.transceiver;
    const cancel = { type: 'CANCEL', rid, ticket, from: 'context', endpoint, reason: 'forged' } as const;
    const [other] = await world.instance('other');
    if (other === undefined) throw new Error('no rank');
    const foreign = world.place([generation], 'context', { rid: 3n, firstSlot: 1 });
    const own = world.place([other], 'generation', {
      rid: 3n,
      firstSlot: 1,
      endpoint: generation.transceiver.endpoint,
    });
    world.ask(own);
    await world.run(30);
    expect(foreign[0]?.rank.transceiver.receiverReady(foreign[0].request)).toBe(true);
    speak(world, other, generation, cancel);
    forge(world, generation, cancel, 99n);
    await world.run(30);
    expect(generation.settled).toEqual([]);
    expect(generation.transceiver.stats().counters['stale:CANCEL']).toBe(1);
    world.chunk(sent, 8, 16);
    await world.run(100);
    expect(received.map(({ rank }) => rank.settled.at(-1)?.outcome)).toEqual(['completed']);
  });

  it('of that writer ends the receive', async () => {
    const { world, context, generation } = await underWay();
    const { rid, ticket } = questionTo(world, context);
    const { endpoint } = context.transceiver;
    speak(world, context, generation, {
      type: 'CANCEL',
      rid,
      ticket,
      from: 'context',
      endpoint,
      reason: 'done with it',
    });
    await world.run(30);
    expect(generation.settled).toMatchObject([{ outcome: 'cancelled', error: { code: 'ERR_KVT_TRANSFER_CANCELLED' } }]);
  });
});
