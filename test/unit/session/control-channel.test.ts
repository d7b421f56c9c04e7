import { describe, expect, it } from 'vitest';
import { ControlChannel } from '../../../src/session/control-channel.js';
import { Counters } from '../../../src/session/counters.js';
import { type Peer, PeerRegistry } from '../../../src/session/peer-registry.js';
import { peekHeader } from '../../../src/wire/frame-header.js';
import { decodeFrame, encodeFrame, type Message } from '../../../src/wire/index.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { FakeNetwork } from '../../sim-lite/fake-messenger.js';
import { forge, helloOf, underWay } from './under-way.js';

const PING = { type: 'PING', endpoint: 'tcp://127.0.0.1:5', sessions: 0, freeAuxSlots: 0 } as const;

describe('the minor in use', () => {
  it('is the smaller of the two, per peer, and our own towards a peer that is not known', () => {
    const network = new FakeNetwork(new FakeClock());
    const listeners = { onMessage: () => undefined, onBadFrame: () => undefined };
    const channel = new ControlChannel(network.bind(), 7n, new Counters(), listeners, 3);
    const minorTo = (endpoint: string, message: Message = PING): number | undefined => {
      channel.send(endpoint, message);
      return peekHeader(network.log.at(-1)?.bytes ?? new Uint8Array())?.minor;
    };
    channel.agree('old', 1);
    channel.agree('new', 9);
    expect([minorTo('old'), minorTo('new'), minorTo('unknown')]).toEqual([1, 3, 3]);
    // What introduces this rank says what it speaks.
    const answer = { accepted: false, message: '', findings: [] } as const;
    expect(minorTo('old', { type: 'HELLO_ACK', nonce: 1n, endpoint: PING.endpoint, answer })).toBe(3);
    channel.forget('old');
    expect(minorTo('old')).toBe(3);
  });

  it('is agreed with whoever becomes a peer, and forgotten with it', async () => {
    const { world, context, generation } = await underWay();
    const messenger = world.network.bind();
    const counters = new Counters();
    const channel = new ControlChannel(messenger, 7n, counters, { onMessage: () => {}, onBadFrame: () => {} }, 3);
    const accepted = world.network.log.find(({ message }) => message.type === 'HELLO_ACK')?.message;
    if (accepted?.type !== 'HELLO_ACK' || !accepted.answer.accepted) throw new Error('no HELLO was accepted');
    const own = { endpoint: messenger.endpoint, rankEndpoints: [messenger.endpoint] };
    const self = { ...accepted.answer.rankInfo, ...own };
    const ready: Peer[] = [];
    const events = { onReady: (peer: Peer) => void ready.push(peer), onRefused: () => {}, onLost: () => {} };
    const { clock } = world;
    const registry = new PeerRegistry({
      channel,
      agent: context.agent,
      clock,
      self: () => self,
      newNonce: () => 5n,
      busy: () => new Set(),
      counters,
      events,
    });
    const minorNow = (endpoint: string): number | undefined => {
      channel.send(endpoint, PING);
      return peekHeader(world.network.log.at(-1)?.bytes ?? new Uint8Array())?.minor;
    };
    // One that greets us.
    const { hello } = helloOf(world, generation);
    registry.onHello(hello, 1);
    await world.run(10);
    expect(ready).toHaveLength(1);
    expect(minorNow(hello.rankInfo.endpoint)).toBe(1);
    registry.lose(ready[0] as Peer, 'over');
    expect(minorNow(hello.rankInfo.endpoint)).toBe(3);
    // One that we greet.
    const { endpoint, incarnation } = hello.rankInfo;
    registry.greet(endpoint);
    const answer = { accepted: true, rankInfo: hello.rankInfo } as const;
    registry.onHelloAck({ type: 'HELLO_ACK', nonce: 5n, endpoint, answer }, { incarnation, minor: 2 });
    expect(minorNow(endpoint)).toBe(2);
    registry.close();
  });

  it('a peer of a newer minor, and one that speaks a newer major as well, are spoken to in ours', async () => {
    const { world, context, generation } = await underWay();
    const { hello } = helloOf(world, generation);
    const newer = world.network.bind();
    const { endpoint } = newer;
    const rankInfo = { ...hello.rankInfo, endpoint, incarnation: 77n, rankEndpoints: [endpoint] };
    const frame = encodeFrame({ ...hello, supportedMajors: [1, 2], rankInfo }, { incarnation: 77n, minor: 9 });
    newer.send(context.transceiver.endpoint, frame);
    await world.run(20);
    newer.send(context.transceiver.endpoint, encodeFrame({ ...PING, endpoint }, { incarnation: 77n, minor: 9 }));
    await world.run(20);
    const answers = world.network.log.filter(({ to }) => to === endpoint).map(({ bytes }) => decodeFrame(bytes));
    expect(answers).toMatchObject([
      { major: 1, minor: 0, message: { type: 'HELLO_ACK', answer: { accepted: true } } },
      { major: 1, minor: 0, message: { type: 'PONG' } },
    ]);
  });

  it('a peer that shares no major is refused with the versions of both', async () => {
    const { world, context, generation } = await underWay();
    const { hello } = helloOf(world, generation);
    const { endpoint } = world.network.bind();
    const rankInfo = { ...hello.rankInfo, endpoint, incarnation: 77n, rankEndpoints: [endpoint] };
    forge(world, context, { ...hello, supportedMajors: [2, 3], rankInfo }, 77n);
    await world.run(20);
    expect(world.network.log.filter(({ to }) => to === endpoint).map(({ message }) => message)).toMatchObject([
      { answer: { accepted: false, message: expect.stringMatching(/wire version 1, the peer 2, 3/) } },
    ]);
  });
});
