import { describe, expect, it } from 'vitest';
import { decodeFrame, encodeFrame, type Message } from '../../../src/wire/index.js';
import { completes, forge, helloOf, questionTo, sentSince, underWay } from './under-way.js';

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
    const { incarnation } = helloOf(world, generation);
    const { endpoint } = elsewhere;
    const at = world.clock.now();
    const unknown = { rid: 5n, ticket: 6n, endpoint };
    forge(world, context, { type: 'PING', endpoint, ...LOAD }, incarnation);
    forge(world, context, { type: 'CANCEL', ...unknown, from: 'context', reason: '' }, incarnation);
    forge(world, context, { type: 'CANCEL', ...unknown, from: 'generation', reason: '' }, incarnation);
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
    const frame = world.network.log.find(({ from }) => from === context.transceiver.endpoint);
    const { incarnation } = decodeFrame(frame?.bytes ?? new Uint8Array());
    const { endpoint } = world.network.bind();
    const at = world.clock.now();
    forge(world, generation, { ...questionTo(world, context), rid: 7n, ticket: 8n, endpoint }, incarnation);
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
    const { incarnation } = helloOf(world, other);
    const at = world.clock.now();
    const { rid, ticket, endpoint } = question;
    const cancel = { type: 'CANCEL', rid, ticket, endpoint, from: 'generation', reason: '' } as const;
    forge(world, context, cancel, incarnation);
    // The same ticket under another request, which exists or not.
    forge(world, context, { ...cancel, rid: (1n << 41n) + 5n }, incarnation);
    forge(world, context, { ...cancel, rid: 77n }, incarnation);
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
    const { incarnation } = helloOf(world, other);
    const stranger = world.network.bind().endpoint;
    for (const [frame, from] of [
      [{ ...question, rid: 77n }, incarnation],
      [question, incarnation],
      [{ ...question, rid: 77n, endpoint: stranger }, 99n],
    ] as const) {
      forge(world, context, frame, from);
      const { rid, ticket, endpoint } = frame;
      forge(world, context, { type: 'STATUS', rid, ticket, endpoint }, from);
    }
    await world.run(30);
    expect(context.transceiver.stats().counters).toMatchObject({
      'foreign_ticket:STATUS': 3,
      'foreign_ticket:REQUEST_DATA': 3,
    });
    await finishes(parts);
  });

  it('a question that waits for its request is its asker’s as well', async () => {
    const { world, context, generation, own, other, ownRequests, options } = await withOther();
    const { incarnation } = helloOf(world, generation);
    const { ticket, endpoint } = own;
    forge(world, context, { type: 'CANCEL', rid: 77n, ticket, endpoint, from: 'generation', reason: '' }, incarnation);
    forge(world, context, { type: 'STATUS', rid: 77n, ticket, endpoint }, incarnation);
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
    forge(world, context, { type: 'REPORT_ACK', rid, ticket, drained: true }, helloOf(world, other).incarnation);
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
    forge(world, generation, cancel, helloOf(world, other).incarnation);
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
    const frame = world.network.log.find(({ from }) => from === endpoint);
    const { incarnation } = decodeFrame(frame?.bytes ?? new Uint8Array());
    const cancel = { type: 'CANCEL', rid, ticket, from: 'context', endpoint, reason: 'done with it' } as const;
    world.network.bind().send(generation.transceiver.endpoint, encodeFrame(cancel, { incarnation }));
    await world.run(30);
    expect(generation.settled).toMatchObject([{ outcome: 'cancelled', error: { code: 'ERR_KVT_TRANSFER_CANCELLED' } }]);
  });
});

describe('one incarnation at two endpoints', () => {
  it('that greet at once: the first is a peer, the other one is refused and its mapping removed', async () => {
    const { world, context, generation, sent, received } = await underWay();
    const { hello } = helloOf(world, generation);
    const claim = (endpoint: string): Message => ({
      ...hello,
      rankInfo: { ...hello.rankInfo, incarnation: 77n, endpoint, rankEndpoints: [endpoint] },
    });
    const [first, second] = [world.network.bind(), world.network.bind()];
    const peers = context.transceiver.stats().peers.length;
    const addPeer = context.agent.addPeer.bind(context.agent);
    let mapped = 0;
    let open = (): void => undefined;
    const gate = new Promise<void>((resolve) => {
      open = resolve;
    });
    context.agent.addPeer = async (metadata, name) => {
      mapped += 1;
      await gate;
      return addPeer(metadata, name);
    };
    forge(world, context, claim(first.endpoint), 77n);
    forge(world, context, claim(second.endpoint), 77n);
    await world.run(30);
    open();
    await world.run(30);
    expect(context.transceiver.stats().peers).toHaveLength(peers + 1);
    expect(context.transceiver.stats().peers.at(-1)).toContain(first.endpoint);
    expect(context.transceiver.stats().counters['protocol_error:hello_incarnation']).toBe(1);
    // From now on it is refused before anything is mapped.
    forge(world, context, claim(world.network.bind().endpoint), 77n);
    await world.run(30);
    expect(context.transceiver.stats().counters['protocol_error:hello_incarnation']).toBe(2);
    expect(mapped).toBe(2);
    await completes(world, sent, received);
  });
});
