import { describe, expect, it } from 'vitest';
import type { Peer } from '../../../src/session/peer.js';
import { PeerUse, UNVERIFIED_IDLE_MS, VERIFIED_IDLE_MS } from '../../../src/session/peer-use.js';
import { MAX_PEERS } from '../../../src/wire/limits.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import type { RankRequest, RankWorld } from '../../sim-lite/rank-world.js';
import { completes, forge, helloOf, underWay } from './under-way.js';

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
    const least = (busy: string[], alsoVerified: boolean) => use.leastUsed(new Set(busy), { alsoVerified });
    expect(least([], true)).toBeNull();
    clock.advance(5000);
    use.used(d);
    expect(least([], true)).toBe(b);
    expect(least(['b'], true)).toBe(c);
    expect(least(['b', 'c'], true)).toBe(a);
    expect(least(['b', 'c'], false)).toBeNull();
    use.forget(b);
    expect(least([], false)).toBe(c);
  });
});

/** HELLOs that claim to come from `count` endpoints, every one accepted as far as there is room. */
async function flood(parts: Awaited<ReturnType<typeof underWay>>, first: number, count: number): Promise<void> {
  const { world, context, generation } = parts;
  const { hello } = helloOf(world, generation);
  for (let i = first; i < first + count; i += 1) {
    const [endpoint, incarnation] = [`tcp://10.1.${i >> 8}.${i & 255}:9`, 0x10_0000n + BigInt(i)];
    const rankInfo = { ...hello.rankInfo, endpoint, incarnation, rankEndpoints: [endpoint] };
    forge(world, context, { ...hello, rankInfo }, incarnation);
    if (i % 256 === 255) await world.run(10);
  }
  await world.run(20);
}

function answersTo(world: RankWorld, endpoint: string) {
  return world.network.log.filter(({ to }) => to === endpoint).map(({ message }) => message);
}

describe('HELLOs from ever new endpoints', () => {
  it('beyond the bound are refused, then displace the longest idle; the transfer under way goes on', async () => {
    const parts = await underWay();
    const { world, context, sent, received } = parts;
    await flood(parts, 0, MAX_PEERS);
    const { counters, peers } = context.transceiver.stats();
    expect(peers).toHaveLength(MAX_PEERS);
    expect(counters).toMatchObject({ hello_refused_full: 1 });
    const last = MAX_PEERS - 1;
    expect(answersTo(world, `tcp://10.1.${last >> 8}.${last & 255}:9`)).toMatchObject([
      {
        type: 'HELLO_ACK',
        answer: { accepted: false, message: expect.stringContaining(`${MAX_PEERS} ranks are peers`), findings: [] },
      },
    ]);
    world.network.log.splice(0, world.network.log.length - 200, ...world.network.log.slice(0, 20));
    // Later they are idle, and the one that transfers is not.
    await world.run(6_000, 100);
    await flood(parts, MAX_PEERS, 3);
    expect(context.transceiver.stats().peers).toHaveLength(MAX_PEERS);
    expect(context.transceiver.stats().counters).toMatchObject({ peers_displaced: 3, hello_refused_full: 1 });
    await completes(world, sent, received);
  }, 60_000);
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

  it('that only greeted is let go later, without a word to an address that anybody may have named', async () => {
    const parts = await underWay();
    const { world, context, sent, received } = parts;
    await flood(parts, 1, 1);
    await completes(world, sent, received);
    await world.run(UNVERIFIED_IDLE_MS - 1000, 1000);
    expect(context.transceiver.stats().peers).toEqual([expect.stringContaining('10.1.0.1')]);
    await world.run(2000, 100);
    expect(context.transceiver.stats().peers).toEqual([]);
    expect(answersTo(world, 'tcp://10.1.0.1:9').map(({ type }) => type)).toEqual(['HELLO_ACK']);
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
