import { expect, it, vi } from 'vitest';
import { ZeromqMessenger } from '../../src/wire/zeromq-messenger.js';
import { Collector, until } from '../support/deadline.js';

const signals = vi.hoisted(() => ({ count: 0 }));

/** Every other call is interrupted before it has done anything. */
vi.mock('zeromq', async (importOriginal) => {
  const zeromq = await importOriginal<typeof import('zeromq')>();
  const interrupted = <T>(call: () => Promise<T>): Promise<T> => {
    signals.count += 1;
    if (signals.count % 2 === 0) return call();
    return Promise.reject(Object.assign(new Error('Interrupted system call'), { code: 'EINTR' }));
  };
  class Router extends zeromq.Router {
    override receive() {
      return interrupted(() => super.receive());
    }
  }
  class Dealer extends zeromq.Dealer {
    override receive() {
      return interrupted(() => super.receive());
    }
    override send(...args: Parameters<InstanceType<typeof zeromq.Dealer>['send']>) {
      return interrupted(() => super.send(...args));
    }
  }
  Object.defineProperty(Dealer.prototype, 'events', {
    get(this: object) {
      return new Proxy(Reflect.get(zeromq.Dealer.prototype, 'events', this), {
        get: (observer, name) => {
          const value: unknown = Reflect.get(observer, name, observer);
          if (typeof value !== 'function') return value;
          const call = value.bind(observer);
          return name === 'receive' ? () => interrupted(call) : call;
        },
      });
    },
  });
  return { ...zeromq, Router, Dealer };
});

it('a signal in the middle of a call of ZeroMQ, such as a profiler sends, loses nothing and leaves nobody deaf', async () => {
  const a = await ZeromqMessenger.open();
  const b = await ZeromqMessenger.open();
  try {
    const texts = new Collector<string>();
    b.onFrame((frame) => texts.push(new TextDecoder().decode(frame)));
    for (const text of ['first', 'second', 'third']) a.send(b.endpoint, new TextEncoder().encode(text));
    expect(await texts.waitFor(3)).toEqual(['first', 'second', 'third']);
    expect(signals.count).toBeGreaterThan(6);
    expect(a.counts().framesDropped['socket-error']).toBe(0);
    // The monitor is still read: the end of a peer is heard.
    const lost: string[] = [];
    a.onDisconnect((endpoint) => lost.push(endpoint));
    await b.close(0);
    await until(
      () => lost.length > 0,
      () => JSON.stringify(a.counts()),
    );
    expect(lost).toEqual([b.endpoint]);
  } finally {
    await Promise.all([a.close(0), b.close(0)]);
  }
});
