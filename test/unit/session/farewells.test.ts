import { describe, expect, it } from 'vitest';
import { encodeFrame } from '../../../src/wire/index.js';
import { type InstanceShape, type Rank, type RankRequest, RankWorld } from '../../sim-lite/rank-world.js';
import { speak } from './under-way.js';

const ALL = 16;

/** One writer, two receivers: rank 0 has its part, rank 1 cannot reach the writer. */
async function oneCutOff(shape: InstanceShape = { tpSize: 2 }) {
  const world = new RankWorld();
  const [context] = (await world.instance('context')) as [Rank];
  const generation = await world.instance('generation', shape);
  const cut = generation[1] as Rank;
  const heal = world.network.addRule(({ from, to }) =>
    [from, to].includes(cut.transceiver.endpoint) ? { copies: 0 } : null,
  );
  const endpoint = context.transceiver.endpoint;
  const sent = world.place([context], 'context', { style: 'context_first' });
  const received = world.place(generation, 'generation', { style: 'context_first', endpoint });
  world.ask(received);
  await world.run(50);
  world.chunk(sent, 0, ALL);
  await world.run(50);
  expect(received.map(outcome)).toEqual(['completed', undefined]);
  expect(sent.map(outcome)).toEqual([undefined]);
  return { world, context, generation, cut, heal, sent, received };
}

const outcome = ({ rank, request }: RankRequest) =>
  rank.settled.find((settled) => settled.request === request)?.outcome;

const cancelsTo = (world: RankWorld, { transceiver }: Rank) =>
  world.network.log.filter(({ to, message }) => to === transceiver.endpoint && message.type === 'CANCEL').length;

const give = (received: readonly RankRequest[]) => {
  const { rank, request } = received[1] as RankRequest;
  expect(rank.transceiver.cancelRequest(request, 'its user left')).toBe(true);
};

describe('a receiver that gives up before it has asked', () => {
  it('greets and tells, so that the context side does not wait for it', async () => {
    const { world, context, heal, sent, received } = await oneCutOff();
    give(received);
    heal();
    await world.run(1000);
    expect(sent.map(outcome)).toEqual(['cancelled']);
    expect(context.settled[0]?.error?.message).toMatch(/its user left/);
    expect(received.map(outcome)).toEqual(['completed', 'cancelled']);
    expect(world.leftovers()).toEqual([]);
    expect(cancelsTo(world, context)).toBe(1);
    await world.run(5000, 100);
    expect(cancelsTo(world, context)).toBe(1);
  });

  it('says so again until it is answered', async () => {
    const { world, context, heal, sent, received } = await oneCutOff();
    world.network.dropNext('CANCEL');
    world.network.dropNext('WRITER_REPORT');
    give(received);
    heal();
    await world.run(2000);
    expect(sent.map(outcome)).toEqual(['cancelled']);
    await world.run(5000, 100);
    expect(cancelsTo(world, context)).toBe(3);
  });

  it('stops when the context rank never answers', async () => {
    const { world, cut, received } = await oneCutOff();
    give(received);
    await world.run(12_000, 100);
    const hellos = world.network.log.filter(
      ({ from, message }) => from === cut.transceiver.endpoint && message.type === 'HELLO',
    ).length;
    await world.run(20_000, 100);
    expect(
      world.network.log.filter(({ from, message }) => from === cut.transceiver.endpoint && message.type === 'HELLO'),
    ).toHaveLength(hellos);
  });

  it('stops after the time that the other side would wait, when only its words are lost', async () => {
    const { world, context, cut, heal, received } = await oneCutOff();
    world.network.addRule(({ message }) => (message.type === 'CANCEL' ? { copies: 0 } : null));
    give(received);
    heal();
    await world.run(20_300, 100);
    expect(cut.transceiver.stats().counters['farewells_unanswered']).toBe(1);
    const told = cancelsTo(world, context);
    expect(told).toBeGreaterThan(5);
    await world.run(5000, 100);
    expect(cancelsTo(world, context)).toBe(told);
  });

  it('is told by one whose executor never asked for the pages, and once', async () => {
    const world = new RankWorld();
    const [context] = (await world.instance('context')) as [Rank];
    const generation = await world.instance('generation', { tpSize: 2 });
    const endpoint = context.transceiver.endpoint;
    const sent = world.place([context], 'context');
    const received = world.place(generation, 'generation', { endpoint });
    world.ask(received.slice(0, 1));
    await world.run(50);
    world.chunk(sent, 0, ALL);
    await world.run(50);
    // The one that asked has its pages; the other one's user left before it was its turn.
    give(received);
    give(received);
    await world.run(1000);
    expect(sent.map(outcome)).toEqual(['cancelled']);
    expect(context.settled[0]?.error?.message).toMatch(/its user left/);
    expect(cancelsTo(world, context)).toBe(1);
    expect(world.leftovers()).toEqual([]);
  });

  it('is not told of a request that was received and is over', async () => {
    const world = new RankWorld();
    const [context] = (await world.instance('context')) as [Rank];
    const [generation] = (await world.instance('generation')) as [Rank];
    const sent = world.place([context], 'context');
    const received = world.place([generation], 'generation', { endpoint: context.transceiver.endpoint });
    world.ask(received);
    world.chunk(sent, 0, ALL);
    await world.run(100);
    const [{ request }] = received as [RankRequest];
    expect(received.map(outcome)).toEqual(['completed']);
    expect(generation.transceiver.cancelRequest(request, 'too late')).toBe(true);
    await world.run(1000);
    expect(cancelsTo(world, context)).toBe(0);
  });

  it('is told by a receiver that waits for an aux slot, too', async () => {
    const world = new RankWorld();
    const [context] = (await world.instance('context')) as [Rank];
    const [generation] = (await world.instance('generation', { auxSlots: 1 })) as [Rank];
    const { endpoint } = context.transceiver;
    world.ask(world.place([generation], 'generation', { endpoint }));
    await world.run(50);
    const rid = (1n << 41n) + 7n;
    const sent = world.place([context], 'context', { rid, firstSlot: 2 }) as [RankRequest];
    const second = world.place([generation], 'generation', { rid, endpoint, firstSlot: 4 }) as [RankRequest];
    expect(context.transceiver.receiverReady(sent[0].request)).toBe(false);
    world.ask(second);
    await world.run(50);
    generation.transceiver.cancelRequest(second[0].request, 'its user left');
    await world.run(50);
    expect(sent.map(outcome)).toEqual(['cancelled']);
    expect(cancelsTo(world, context)).toBe(1);
  });
});

describe('CANCEL of a ticket that nobody asked with', () => {
  it('of a peer of another instance, or of a rank that has asked, changes nothing', async () => {
    const { world, context, generation, sent, received } = await oneCutOff();
    const others = await world.instance('other', { tpSize: 2 });
    const { endpoint } = context.transceiver;
    // They are peers: they had a request of their own.
    const options = { style: 'context_first', rid: (1n << 41n) + 7n, firstSlot: 2 } as const;
    const own = world.place([context], 'context', options);
    const theirs = world.place(others, 'generation', { ...options, endpoint });
    world.ask(theirs);
    await world.run(50);
    world.chunk(own, 0, ALL);
    await world.run(100);
    expect(theirs.map(outcome)).toEqual(['completed', 'completed']);
    const rid = 1n << 41n;
    const cancel = { type: 'CANCEL', rid, from: 'generation', reason: 'forged' } as const;
    let ticket = 0x7000n;
    for (const rank of [...others, generation[0] as Rank]) {
      ticket += 1n;
      speak(world, rank, context, { ...cancel, ticket, endpoint: rank.transceiver.endpoint });
    }
    const stranger = world.network.bind();
    stranger.send(
      endpoint,
      encodeFrame({ ...cancel, ticket: 0x7100n, endpoint: stranger.endpoint }, { incarnation: 0xdeadn }),
    );
    await world.run(200);
    expect(sent.map(outcome)).toEqual([undefined]);
    expect(context.transceiver.stats().sendSessions).toBe(1);
    expect(received.map(outcome)).toEqual(['completed', undefined]);
  });
});
