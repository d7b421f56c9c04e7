import { describe, expect, it } from 'vitest';
import { encodeFrame } from '../../../src/wire/frame-codec.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { DROP, FakeNetwork, type NetworkOptions } from '../../sim-lite/fake-messenger.js';

const accepted = (ticket: number): Uint8Array =>
  encodeFrame({ type: 'ACCEPTED', rid: 1n, ticket: BigInt(ticket) }, { incarnation: 1n });

function setUp(options: NetworkOptions = {}) {
  const clock = new FakeClock();
  const network = new FakeNetwork(clock, options);
  const a = network.bind();
  const b = network.bind();
  const received: number[] = [];
  const lost: string[] = [];
  b.onFrame((frame) => received.push(Number(new DataView(frame.buffer).getBigUint64(24, true))));
  a.onDisconnect((endpoint) => lost.push(endpoint));
  return { clock, network, a, b, received, lost };
}

describe('FakeClock', () => {
  it('fires due timers by time, then by creation, also those set on the way', () => {
    const clock = new FakeClock(0);
    const fired: string[] = [];
    const note = (name: string) => () => fired.push(`${name}@${clock.now()}`);
    clock.setTimer(20, note('late'));
    clock.setTimer(10, note('first'));
    clock.setTimer(10, () => {
      note('second')();
      clock.setTimer(5, note('nested'));
      clock.setTimer(50, note('beyond'));
    });
    clock.setTimer(1, note('cancelled')).cancel();
    clock.advance(30);
    expect(fired).toEqual(['first@10', 'second@10', 'nested@15', 'late@20']);
    expect([clock.now(), clock.pendingTimerCount, clock.nextDueAt]).toEqual([30, 1, 60]);
  });

  it('releases turns only when told to, and between timers in run', async () => {
    const clock = new FakeClock(0);
    const seen: number[] = [];
    let stop = false;
    const loop = (async () => {
      while (!stop) {
        await clock.nextTurn();
        seen.push(clock.now());
      }
    })();
    clock.advance(5);
    expect(seen).toEqual([]);
    await clock.turn(2);
    expect(seen).toEqual([5, 5]);
    clock.setTimer(3, () => undefined);
    await clock.run(10);
    expect(seen).toEqual([5, 5, 5, 8, 15]);
    stop = true;
    await clock.turn();
    await loop;
  });

  it('advanceUntilIdle ends, or says that it does not', () => {
    const clock = new FakeClock(0);
    const again = (): void => void clock.setTimer(1000, again);
    again();
    expect(() => clock.advanceUntilIdle(5000)).toThrow('1 timers still pending');
  });
});

describe('FakeNetwork', () => {
  it('delivers after the latency, in order', () => {
    const { clock, a, b, received } = setUp({ latencyMs: 2 });
    for (let i = 0; i < 5; i++) a.send(b.endpoint, accepted(i));
    clock.advance(1.9);
    expect(received).toEqual([]);
    clock.advance(0.2);
    expect(received).toEqual([0, 1, 2, 3, 4]);
  });

  it('rules drop, duplicate and delay', () => {
    const { clock, network, a, b, received } = setUp();
    const remove = network.addRule((frame) => [DROP, { copies: 2 }, { delayMs: 50 }, null][frame.index]);
    for (let i = 0; i < 4; i++) a.send(b.endpoint, accepted(i));
    clock.advance(100);
    expect(received).toEqual([1, 1, 3, 2]);
    remove();
    network.dropNext('ACCEPTED');
    a.send(b.endpoint, accepted(4));
    a.send(b.endpoint, accepted(5));
    clock.advance(1);
    expect(received).toEqual([1, 1, 3, 2, 5]);
    expect(network.log.map((frame) => frame.fate.copies)).toEqual([0, 2, 1, 1, 0, 1]);
    expect(network.sentTypes((frame) => frame.index >= 4)).toEqual(['ACCEPTED', 'ACCEPTED']);
  });

  it('a kill loses what is under way and is noticed by who sent there; a successor is reached', () => {
    const { clock, network, a, b, received, lost } = setUp();
    a.send(b.endpoint, accepted(1));
    network.kill(b.endpoint);
    const successor = network.bind(b.endpoint);
    const atSuccessor: number[] = [];
    successor.onFrame((frame) => atSuccessor.push(frame.length));
    clock.advance(1);
    expect([received, lost, atSuccessor]).toEqual([[], [b.endpoint], []]);
    a.send(b.endpoint, accepted(2));
    clock.advance(1);
    expect(atSuccessor).toEqual([32]);
  });

  it('close lets sent frames arrive; forget and a broken connection do not', async () => {
    const first = setUp();
    first.a.send(first.b.endpoint, accepted(1));
    await first.a.close();
    first.a.send(first.b.endpoint, accepted(2));
    first.clock.advance(1);
    expect(first.received).toEqual([1]);

    const second = setUp();
    second.a.send(second.b.endpoint, accepted(1));
    second.a.forget(second.b.endpoint);
    second.a.send(second.b.endpoint, accepted(2));
    second.network.breakConnection(second.a.endpoint, second.b.endpoint);
    second.clock.advance(1);
    expect([second.received, second.lost]).toEqual([[], [second.b.endpoint]]);
  });

  it('a frame changed after send arrives as it was sent', () => {
    const { clock, a, b, received } = setUp();
    const frame = accepted(3);
    a.send(b.endpoint, frame);
    frame.fill(0);
    clock.advance(1);
    expect(received).toEqual([3]);
  });

  it('equal seeds give equal histories, others do not', () => {
    const history = (seed: number): number[] => {
      const { clock, a, b, received } = setUp({ seed, loss: 0.2, duplication: 0.2, jitterMs: 5 });
      for (let i = 0; i < 100; i++) {
        a.send(b.endpoint, accepted(i));
        clock.advance(0.5);
      }
      clock.advance(10);
      return received;
    };
    expect(history(1)).toEqual(history(1));
    expect(history(1)).not.toEqual(history(2));
    const distinct = new Set(history(1));
    expect(distinct.size).toBeGreaterThan(60);
    expect(distinct.size).toBeLessThan(100);
  });

  it('refuses a frame that does not decode, so that no test sends one unnoticed', () => {
    const { a, b } = setUp();
    expect(() => a.send(b.endpoint, new Uint8Array(3))).toThrow('frame ends inside magic');
  });
});
