import { describe, expect, it } from 'vitest';
import type { Peer } from '../../../src/session/peer.js';
import { PeerUse, UNVERIFIED_IDLE_MS, VERIFIED_IDLE_MS } from '../../../src/session/peer-use.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import type { RankRequest } from '../../sim-lite/rank-world.js';
import { Stranger } from '../../sim-lite/stranger.js';
import { completes, helloOf, underWay } from './under-way.js';

const peerAt = (endpoint: string, greeted: boolean) => ({ endpoint, greeted }) as Peer;

describe('PeerUse', () => {
  it('gives up the one that was of use longest ago, first of those that were never verified, never one in use', () => {
    const clock = new FakeClock(0);
    const use = new PeerUse(clock);
    const [a, b, c, d] = [peerAt('a', true), peerAt('b', false), peerAt('c', false), peerAt('d', false)];
    for (const peer of [a, b, c]) {
      use.used(peer);
      clock.advance(1);
    }
    const least = (busy: string[], alsoVerified: boolean) =>
      use.leastUsed(new Set(['a', 'b', 'c', 'd'].filter((name) => !busy.includes(name))), { alsoVerified });
    expect(least([], true)).toBeNull();
    clock.advance(5000);
    use.used(d);
    expect(least([], true)).toBe(b);
    expect(least(['b'], true)).toBe(c);
    expect(least(['b', 'c'], true)).toBe(a);
    expect(least(['b', 'c'], false)).toBeNull();
    use.forget(b);
    expect(least([], false)).toBe(c);
    // One that never had a request goes before one that had, however long that is idle.
    use.used(b);
    use.served(c);
    use.forget(d);
    clock.advance(5000);
    expect(least([], false)).toBe(b);
  });
});

/** Processes that greet, all of them there. */
async function flood({ world, context, generation }: Awaited<ReturnType<typeof underWay>>, count: number) {
  const { hello } = helloOf(world, generation);
  const strangers: Stranger[] = [];
  for (let i = 0; i < count; i += 1) {
    const stranger = new Stranger(world.network, BigInt(0x10_0000 + world.network.log.length + i));
    stranger.greet(context.transceiver.endpoint, hello);
    strangers.push(stranger);
    if (i % 4 === 3) await world.run(10);
  }
  await world.run(20);
  return strangers;
}

describe('HELLOs from ever new processes', () => {
  it('beyond the bound are refused, then displace the longest idle; the transfer under way goes on', async () => {
    // 40 connections: 32 peers, and 5 strangers that are being asked.
    const parts = await underWay({ maxConnections: 40 });
    const { world, context, sent, received } = parts;
    const strangers = await flood(parts, 40);
    const { counters, peers } = context.transceiver.stats();
    expect(peers).toHaveLength(32);
    expect(counters).toMatchObject({ hello_refused_full: 9 });
    expect(context.warnings.filter((text) => text.includes('ulimit -n'))).toHaveLength(1);
    expect(strangers.at(-1)?.heard).toMatchObject([
      {
        type: 'HELLO_ACK',
        answer: { accepted: false, message: expect.stringContaining('32 ranks are peers'), findings: [] },
      },
    ]);
    // Nothing was connected to for those that were refused.
    expect(context.messenger.connectionTo(strangers.at(-1)?.endpoint ?? '')).toBeUndefined();
    // Later they are idle, and the one that transfers is not.
    await world.run(6_000, 100);
    await flood(parts, 3);
    expect(context.transceiver.stats().peers).toHaveLength(32);
    expect(context.transceiver.stats().counters).toMatchObject({ peers_displaced: 3, hello_refused_full: 9 });
    await completes(world, sent, received);
  });

  it('one that holds the room is a peer with a request, whatever comes', async () => {
    const parts = await underWay({ maxConnections: 2 });
    const { world, context, generation, sent, received } = parts;
    await world.run(2_000, 100);
    await flood(parts, 5);
    expect(context.transceiver.stats().peers).toEqual([expect.stringContaining(generation.transceiver.endpoint)]);
    await completes(world, sent, received);
  });
});

describe('endpoints that strangers name', () => {
  it('are asked one at a time for each connection, an eighth of the connections in all, and forgotten', async () => {
    const parts = await underWay({ maxConnections: 40 });
    const { world, context, generation, sent, received } = parts;
    const { hello } = helloOf(world, generation);
    const to = context.transceiver.endpoint;
    const one = new Stranger(world.network, 0x777n);
    const nobody = (i: number) => `tcp://127.0.0.1:${1000 + i}`;
    const named = (i: number) => ({ endpoint: nobody(i), rankEndpoints: [nobody(i)] });
    for (let i = 0; i < 1100; i += 1) one.greet(to, hello, named(i));
    await world.run(20);
    expect(context.transceiver.stats().counters).toMatchObject({ 'introductions_refused:connection_full': 1099 });
    const connected = () =>
      Array.from({ length: 1200 }, (_, i) => i).filter((i) => context.messenger.connectionTo(nobody(i)));
    expect(connected()).toEqual([0]);
    for (let i = 1100; i < 1110; i += 1) new Stranger(world.network, 0x800n + BigInt(i)).greet(to, hello, named(i));
    await world.run(20);
    expect(connected()).toHaveLength(5);
    expect(context.transceiver.stats().counters).toMatchObject({ 'introductions_refused:full': 6 });
    // One that is there is known all the same: whom nobody answered for half a second makes room.
    await world.run(500);
    const [honest] = await flood(parts, 1);
    expect(context.transceiver.stats().counters).toMatchObject({ introductions_displaced: 1 });
    expect(context.transceiver.stats().peers).toContainEqual(expect.stringContaining(honest?.endpoint ?? '-'));
    await world.run(5_500, 100);
    expect(connected()).toEqual([]);
    expect(context.transceiver.stats().counters).toMatchObject({ introductions_unanswered: 4 });
    await completes(world, sent, received);
  });

  it('that others than strangers of this machine can be at are not connected to; the stranger is told', async () => {
    const { world, context, generation, sent, received } = await underWay();
    const { hello } = helloOf(world, generation);
    const one = new Stranger(world.network, 0x777n);
    for (const endpoint of ['tcp://169.254.169.254:80', 'tcp://db.internal:5432', context.transceiver.endpoint]) {
      one.greet(context.transceiver.endpoint, hello, { endpoint, rankEndpoints: [endpoint] });
      await world.run(20);
      expect(context.messenger.connectionTo(endpoint)).toBeUndefined();
      expect(one.heard.at(-1)).toMatchObject({
        answer: { accepted: false, message: expect.stringContaining('listen.host') },
      });
    }
    expect(context.transceiver.stats().counters).toMatchObject({
      'introductions_refused:address': 2,
      'introductions_refused:own_endpoint': 1,
    });
    await completes(world, sent, received);
  });

  it('in a PING, a CANCEL or a question are never connected to: the answer goes where the frame came from', async () => {
    const { world, context, sent, received } = await underWay();
    const one = new Stranger(world.network, 0x777n);
    const endpoint = 'tcp://127.0.0.1:999';
    const about = { rid: 5n, ticket: 6n, endpoint } as const;
    const to = context.transceiver.endpoint;
    for (let i = 0; i < 1100; i += 1)
      one.say(to, { type: 'PING', endpoint: `tcp://127.0.0.1:${1000 + i}`, sessions: 0, freeAuxSlots: 0 });
    one.say(to, { type: 'CANCEL', ...about, from: 'generation', reason: '' });
    one.say(to, { type: 'CANCEL', ...about, from: 'context', reason: '' });
    one.say(to, { type: 'STATUS', ...about });
    await world.run(20);
    const [types, targets] = [new Set<string>(), new Set<string>()];
    for (const frame of world.network.log)
      if (frame.from === to && frame.to !== received[0]?.rank.transceiver.endpoint) targets.add(frame.to);
    for (const { type } of one.heard) types.add(type);
    expect([...types]).toEqual(['GOODBYE', 'WRITER_REPORT', 'CANCEL_ACK']);
    expect([...targets]).toEqual([one.endpoint]);
    expect(context.messenger.connectionTo(one.endpoint)).toBeUndefined();
    await completes(world, sent, received);
  });
});

describe('a peer that is idle for long', () => {
  it('is let go by the side that asked, told so, and greeted again for the next request', async () => {
    const parts = await underWay();
    const { world, context, generation, sent, received } = parts;
    await completes(world, sent, received);
    const begun = world.clock.now();
    await world.run(VERIFIED_IDLE_MS - 1000, 1000);
    expect(context.transceiver.stats().peers).toHaveLength(1);
    await world.run(2000, 100);
    expect(world.network.sentTypes(({ sentAt }) => sentAt > begun)).toEqual(['GOODBYE']);
    for (const rank of [context, generation]) expect(rank.transceiver.stats().peers).toEqual([]);
    const options = { rid: (1n << 41n) + 5n, firstSlot: 1 };
    const next = world.place([context], 'context', options);
    const again = world.place([generation], 'generation', { ...options, endpoint: context.transceiver.endpoint });
    world.ask(again);
    await world.run(50);
    world.chunk(next, 0, 16);
    await world.run(100);
    expect(generation.settled.at(-1)?.outcome).toBe('completed');
    expect(world.wrongWords(again[0] as RankRequest)).toBe(0);
  });

  it('that only greeted is let go later, without a word', async () => {
    const parts = await underWay();
    const { world, context, sent, received } = parts;
    const [only] = await flood(parts, 1);
    await completes(world, sent, received);
    await world.run(UNVERIFIED_IDLE_MS - 1000, 1000);
    expect(context.transceiver.stats().peers).toEqual([expect.stringContaining(only?.endpoint ?? '-')]);
    await world.run(2000, 100);
    expect(context.transceiver.stats().peers).toEqual([]);
    expect(only?.heard.map(({ type }) => type)).toEqual(['HELLO', 'HELLO_ACK']);
  });

  it('is not idle while it has a request', async () => {
    const { world, context, generation, sent, received } = await underWay();
    const lastly = world.chunk.bind(world, sent, 8, 16);
    // Chunk by chunk, so that no clock runs out.
    for (const { rank } of received) expect(rank.settled).toEqual([]);
    await world.run(5_000, 100);
    lastly();
    await world.run(100);
    for (const rank of [context, generation]) expect(rank.transceiver.stats().peers).toHaveLength(1);
  });
});
