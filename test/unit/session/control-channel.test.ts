import { describe, expect, it } from 'vitest';
import { CallbackGuard } from '../../../src/session/callback-guard.js';
import { ControlChannel } from '../../../src/session/control-channel.js';
import { Counters } from '../../../src/session/counters.js';
import { peekHeader } from '../../../src/wire/frame-header.js';
import { decodeFrame, encodeFrame, type Message } from '../../../src/wire/index.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { FakeNetwork } from '../../sim-lite/fake-messenger.js';
import { Stranger } from '../../sim-lite/stranger.js';
import { helloOf, underWay } from './under-way.js';

const PING = { type: 'PING', endpoint: 'tcp://127.0.0.1:5', sessions: 0, freeAuxSlots: 0 } as const;

describe('the minor in use', () => {
  it('is the smaller of the two, per peer, and our own towards a peer that is not known', () => {
    const clock = new FakeClock();
    const network = new FakeNetwork(clock);
    const counters = new Counters();
    const channel = new ControlChannel({
      messenger: network.bind(),
      incarnation: 7n,
      clock,
      counters,
      guard: new CallbackGuard({ clock, counters, warn: () => {} }),
      listeners: { onMessage: () => undefined, onBadFrame: () => undefined },
      versions: [{ major: 1, minor: 3 }],
    });
    const minorTo = (endpoint: string, message: Message = PING): number | undefined => {
      channel.send(endpoint, message);
      return peekHeader(network.log.at(-1)?.bytes ?? new Uint8Array())?.minor;
    };
    channel.agree('old', { major: 1, minor: 1 }, [1]);
    channel.agree('new', { major: 1, minor: 9 }, null);
    expect([minorTo('old'), minorTo('new'), minorTo('unknown')]).toEqual([1, 3, 3]);
    // What introduces this rank says what it speaks.
    const answer = { accepted: false, message: '', findings: [] } as const;
    expect(minorTo('old', { type: 'HELLO_ACK', nonce: 1n, endpoint: PING.endpoint, answer })).toBe(3);
    channel.forget('old');
    expect(minorTo('old')).toBe(3);
  });

  it('a peer of a newer minor, and one that speaks a newer major as well, are spoken to in ours', async () => {
    const { world, context, generation } = await underWay();
    const { hello } = helloOf(world, generation);
    const newer = new Stranger(world.network, 77n);
    const { endpoint } = newer;
    const rankInfo = { ...hello.rankInfo, endpoint, incarnation: 77n, rankEndpoints: [endpoint] };
    const frame = encodeFrame({ ...hello, supportedMajors: [1, 2], rankInfo }, { incarnation: 77n, minor: 9 });
    newer.messenger.send(context.transceiver.endpoint, frame);
    await world.run(20);
    const ping = encodeFrame({ ...PING, endpoint }, { incarnation: 77n, minor: 9 });
    newer.messenger.send(context.transceiver.endpoint, ping);
    await world.run(20);
    const answers = world.network.log.filter(({ to }) => to === endpoint).map(({ bytes }) => decodeFrame(bytes));
    expect(answers).toMatchObject([
      { major: 1, minor: 0, message: { type: 'HELLO', probe: true } },
      { major: 1, minor: 0, message: { type: 'HELLO_ACK', answer: { accepted: true } } },
      { major: 1, minor: 0, message: { type: 'PONG' } },
    ]);
  });

  it('a peer that shares no major is refused with the versions of both', async () => {
    const { world, context, generation } = await underWay();
    const { hello } = helloOf(world, generation);
    const newer = new Stranger(world.network, 77n);
    newer.greet(context.transceiver.endpoint, { ...hello, supportedMajors: [2, 3] });
    await world.run(20);
    expect(newer.heard.at(-1)).toMatchObject({
      answer: { accepted: false, message: expect.stringMatching(/wire version 1, the peer 2, 3/) },
    });
  });
});
