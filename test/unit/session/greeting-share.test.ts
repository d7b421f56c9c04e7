import { describe, expect, it } from 'vitest';
import type { Clock } from '../../../src/clock.js';
import { Counters } from '../../../src/session/counters.js';
import { GreetingShare, isGreeting } from '../../../src/session/greeting-share.js';
import { encodeFrame, type FrameOrigin } from '../../../src/wire/index.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { helloOf, underWay } from './under-way.js';

/** A share whose every greeting takes `costMs` to read. */
function share(costMs: number) {
  const clock = new FakeClock(0);
  const counters = new Counters();
  const read: string[] = [];
  const greetings = new GreetingShare(
    busyClock(clock, () => read.length * costMs),
    (_, origin) => {
      read.push(nameOf(origin));
    },
    () => counters.add('greetings_dropped'),
  );
  const from = (connection: string, bytes = 1): void =>
    greetings.take(new Uint8Array(bytes), { kind: 'accepted', connection });
  return { clock, counters, read, from, greetings };
}

/** Time that passes while this thread works, beside that of the timers. */
function busyClock(clock: FakeClock, workedMs: () => number): Clock {
  return {
    now: () => clock.now() + workedMs(),
    setTimer: (delayMs, callback) => clock.setTimer(delayMs, callback),
    nextTurn: () => clock.nextTurn(),
  };
}

const nameOf = (origin: FrameOrigin): string => (origin.kind === 'accepted' ? origin.connection : origin.endpoint);

describe('the time that greetings get', () => {
  it('is not limited while they cost nothing', () => {
    const { read, from } = share(0);
    for (let i = 0; i < 1000; i += 1) from('a');
    expect(read).toHaveLength(1000);
  });

  it('is half of all: after each slice everybody else gets as long', () => {
    const { clock, read, from } = share(1);
    const greet = (): void => {
      for (let i = 0; i < 20; i += 1) from(`c${i}-`);
    };
    greet();
    expect(read).toHaveLength(4);
    for (let ms = 0; ms < 3; ms += 1) {
      clock.advance(1);
      expect(read).toHaveLength(4);
    }
    clock.advance(1);
    expect(read).toHaveLength(8);
    // One that takes long is followed by as long a pause.
    const slow = share(300);
    slow.from('a');
    slow.from('b');
    slow.clock.advance(299);
    expect(slow.read).toEqual(['a']);
    slow.clock.advance(1);
    expect(slow.read).toEqual(['a', 'b']);
  });

  it('goes round the connections, so that one that floods does not keep the others out', () => {
    const { clock, counters, read, from } = share(4);
    for (let i = 0; i < 1000; i += 1) from('flood');
    from('rank');
    clock.advance(4);
    clock.advance(4);
    expect(read).toEqual(['flood', 'flood', 'rank']);
    expect(counters.get('greetings_dropped')).toBe(997);
  });

  it('is waited for by a bounded number and size', () => {
    const many = share(4);
    for (let i = 0; i < 3000; i += 1) many.from(`c${i}`);
    expect(many.counters.get('greetings_dropped')).toBe(3000 - 1 - 1024);
    const large = share(4);
    for (let i = 0; i < 4; i += 1) large.from(`c${i}`, 12 * 1024 * 1024);
    expect(large.counters.get('greetings_dropped')).toBe(1);
    // Room is made as they are read.
    large.clock.advance(4);
    large.from('late', 12 * 1024 * 1024);
    expect(large.counters.get('greetings_dropped')).toBe(1);
  });

  it('ends with the rank, and goes on after a listener threw', () => {
    const { clock, read, from, greetings } = share(4);
    from('a');
    from('b');
    greetings.close();
    clock.advance(100);
    from('c');
    expect(read).toEqual(['a']);
    let failures = 0;
    const failing = new GreetingShare(
      busyClock(clock, () => failures * 5),
      () => {
        failures += 1;
        throw new Error('bug');
      },
      () => {},
    );
    const origin = { kind: 'dialed', endpoint: 'tcp://127.0.0.1:1' } as const;
    expect(() => failing.take(new Uint8Array(1), origin)).toThrow('bug');
    failing.take(new Uint8Array(1), origin);
    expect(() => clock.advance(5)).toThrow('bug');
  });
});

describe('a greeting', () => {
  it('is told by the type in its header', async () => {
    const { world, generation } = await underWay();
    const { hello } = helloOf(world, generation);
    const header = { incarnation: 7n };
    expect(isGreeting(encodeFrame(hello, header))).toBe(true);
    const ping = { type: 'PING', endpoint: hello.rankInfo.endpoint, sessions: 0, freeAuxSlots: 0 } as const;
    expect(isGreeting(encodeFrame(ping, header))).toBe(false);
    expect(isGreeting(Uint8Array.of(0, 0, 0, 0, 0, 0, 1))).toBe(false);
  });
});
