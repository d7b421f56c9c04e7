import { afterAll, beforeAll, expect, it } from 'vitest';
import { MAX_CONNECTIONS, MAX_PEERS } from '../../src/wire/limits.js';
import { ZeromqMessenger } from '../../src/wire/zeromq-messenger.js';
import { Collector } from '../support/deadline.js';

let a: ZeromqMessenger;
let b: ZeromqMessenger;

beforeAll(async () => {
  // What a limit of open files takes away is hostile-peers.test.ts's; these connections need several thousand.
  const descriptorLimit = Number.POSITIVE_INFINITY;
  a = await ZeromqMessenger.open({ descriptorLimit });
  b = await ZeromqMessenger.open({
    descriptorLimit,
    host: '0.0.0.0',
    advertiseHost: '127.0.0.1',
    allowPlaintext: true,
  });
});

afterAll(async () => {
  await Promise.all([a.close(0), b.close(0)]);
});

it('has room, where files do not bound it, for every peer of a transceiver: of 1100 that are connected at once none is dropped', async () => {
  const received = new Collector<Uint8Array>();
  b.onFrame(received.push);
  const port = b.endpoint.split(':')[2];
  // Loopback has as many names as it takes.
  for (let i = 0; i < 1100; i++) {
    a.send(`tcp://127.1.${i >> 8}.${i & 255}:${port}`, Uint8Array.of(i & 255, i >> 8));
    if (i % 100 === 99) await received.waitFor(i + 1);
  }
  const numbers = received.values.map(([low = 0, high = 0]) => low + 256 * high);
  expect(numbers.toSorted((x, y) => x - y)).toEqual(Array.from({ length: 1100 }, (_, i) => i));
  expect(a.counts().framesDropped['too-many-peers']).toBe(0);
  expect(MAX_CONNECTIONS).toBeGreaterThan(MAX_PEERS);
});
