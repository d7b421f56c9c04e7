import { describe, expect, it } from 'vitest';
import { CallbackGuard } from '../../../src/session/callback-guard.js';
import { ControlChannel } from '../../../src/session/control-channel.js';
import { Counters } from '../../../src/session/counters.js';
import { type Peer, PeerRegistry } from '../../../src/session/peer-registry.js';
import type { WireVersions } from '../../../src/wire/frame-header.js';
import { decodeFrame, negotiate, peekHeader } from '../../../src/wire/index.js';
import { helloOf, underWay } from './under-way.js';

const N_AND_BEFORE: WireVersions = [
  { major: 1, minor: 4 },
  { major: 2, minor: 3 },
];
const N_AND_AFTER: WireVersions = [
  { major: 2, minor: 1 },
  { major: 3, minor: 0 },
];
const ALL: WireVersions = [1, 2, 3, 4, 5].map((major) => ({ major, minor: 9 })) as unknown as WireVersions;

type Parts = Awaited<ReturnType<typeof underWay>>;

/** A rank of another build: what it speaks decides, the rest is as here. */
function buildOf({ world, context, generation }: Parts, versions: WireVersions, incarnation: bigint) {
  const messenger = world.network.bind();
  const counters = new Counters();
  const guard = new CallbackGuard({ clock: world.clock, counters, warn: () => {} });
  const ready: Peer[] = [];
  const refused: string[] = [];
  const { endpoint } = messenger;
  const { hello } = helloOf(world, generation);
  const self = { ...hello.rankInfo, endpoint, incarnation, rankEndpoints: [endpoint] };
  const channel: ControlChannel = new ControlChannel({
    messenger,
    incarnation,
    clock: world.clock,
    counters,
    guard,
    listeners: {
      onMessage: ({ message, major, minor, incarnation: sender }, origin) => {
        if (message.type === 'HELLO') registry.onHello(message, { major, minor }, origin);
        else if (message.type === 'HELLO_ACK')
          registry.onHelloAck(message, { incarnation: sender, major, minor }, origin);
        else counters.add(`got:${message.type}`);
      },
      onBadFrame: (error, origin) => registry.onBadFrame(error, origin),
    },
    versions,
  });
  let nonce = incarnation * 1000n;
  const registry: PeerRegistry = new PeerRegistry({
    channel,
    agent: context.agent,
    clock: world.clock,
    self: () => self,
    newNonce: () => nonce++,
    idle: (endpoints) => new Set(endpoints),
    counters,
    guard,
    events: {
      onReady: (peer) => void ready.push(peer),
      onRefused: (_, error) => void refused.push(`${error.code}: ${error.message}`),
      onLost: () => {},
    },
  });
  return { registry, channel, counters, ready, refused, endpoint };
}

/** Two builds, the first greets. */
async function meet(first: WireVersions, second: WireVersions) {
  const parts = await underWay();
  parts.world.network.versions = ALL;
  const [a, b] = [buildOf(parts, first, 0x501n), buildOf(parts, second, 0x502n)];
  a.registry.greet(b.endpoint);
  await parts.world.run(3000, 10);
  const spoken = (from: string, to: string) =>
    parts.world.network.log
      .filter((frame) => frame.from === from && frame.to === to)
      .map(({ bytes }) => ({ ...peekHeader(bytes), ...decodeFrame(bytes, ALL).message }));
  return { world: parts.world, a, b, spoken };
}

describe('builds of different majors', () => {
  for (const [name, first, second] of [
    ['N and N-1 greets N+1 and N', N_AND_BEFORE, N_AND_AFTER],
    ['N+1 and N greets N and N-1', N_AND_AFTER, N_AND_BEFORE],
  ] as const)
    it(`${name}: they speak N, of which the smaller minor, from the first accepted HELLO on`, async () => {
      const { world, a, b, spoken } = await meet(first, second);
      expect(a.refused).toEqual([]);
      expect(a.ready.map(({ endpoint }) => endpoint)).toContain(b.endpoint);
      expect(b.ready.map(({ endpoint }) => endpoint)).toContain(a.endpoint);
      for (const [from, to] of [
        [a, b],
        [b, a],
      ] as const) {
        from.channel.send(to.endpoint, { type: 'CANCEL_ACK', rid: 1n, ticket: 1n });
        await world.run(10);
        expect(to.counters.get('got:CANCEL_ACK')).toBe(1);
        expect(spoken(from.endpoint, to.endpoint).at(-1)).toMatchObject({ type: 'CANCEL_ACK', major: 2, minor: 1 });
      }
      const accepted = spoken(b.endpoint, a.endpoint).filter(({ type }) => type === 'HELLO_ACK');
      expect(accepted.at(-1)).toMatchObject({ major: 2, answer: { accepted: true } });
    });

  it('N alone greets N+1 alone: refused on both sides, counted, and the message has both versions', async () => {
    const { a, b } = await meet([{ major: 1, minor: 0 }], [{ major: 2, minor: 0 }]);
    expect([a.ready, b.ready]).toEqual([[], []]);
    expect(a.refused).toEqual([
      expect.stringMatching(/^ERR_KVT_PROTOCOL: .*peer speaks wire major 2, this build 1; upgrade/),
    ]);
    expect(a.counters.get('wire_error:unsupported-major')).toBe(1);
    expect(b.counters.get('wire_error:unsupported-major')).toBe(1);
  });

  it('N-1 and N greets N+1 and N+2: refused once each of its majors was tried', async () => {
    const { a, b, spoken } = await meet(N_AND_BEFORE, [
      { major: 3, minor: 0 },
      { major: 4, minor: 0 },
    ]);
    expect(a.refused).toEqual([expect.stringMatching(/peer speaks wire major 3, this build 1, 2; upgrade/)]);
    expect(spoken(a.endpoint, b.endpoint).map(({ type, major }) => [type, major])).toEqual([
      ['HELLO', 1],
      ['HELLO', 2],
    ]);
    expect(b.counters.get('wire_error:unsupported-major')).toBe(2);
  });

  it('one that can be read but shares no major is told so in the answer', async () => {
    // Its HELLO travels in a major that it does not list: a build that takes back what it spoke.
    const parts = await underWay();
    parts.world.network.versions = ALL;
    const [old, fresh] = [buildOf(parts, [{ major: 2, minor: 0 }], 0x501n), buildOf(parts, N_AND_AFTER, 0x502n)];
    fresh.registry.greet(old.endpoint);
    await parts.world.run(1000);
    expect(fresh.ready).toHaveLength(1);
    expect(negotiate({ major: 2, minor: 0 }, [4, 5], N_AND_AFTER)).toBeNull();
    expect(negotiate({ major: 2, minor: 7 }, [2, 3], N_AND_AFTER)).toEqual({ major: 3, minor: 0 });
    expect(negotiate({ major: 3, minor: 7 }, [2, 3], N_AND_AFTER)).toEqual({ major: 3, minor: 0 });
    expect(negotiate({ major: 2, minor: 7 }, null, N_AND_AFTER)).toEqual({ major: 2, minor: 1 });
  });
});
