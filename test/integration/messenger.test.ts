import { connect } from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import { Dealer } from 'zeromq';
import { ConfigError, StateError } from '../../src/errors.js';
import { LOOK_AGAIN_MS, MAX_FRAME_BYTES } from '../../src/wire/limits.js';
import { ZeromqMessenger, type ZeromqMessengerOptions } from '../../src/wire/zeromq-messenger.js';
import { Collector, HANG_LIMIT_MS, until, withDeadline } from '../support/deadline.js';
import { ownAddress } from '../support/own-address.js';
import { TurnLog, workMs } from '../support/turn-log.js';

const open: ZeromqMessenger[] = [];

async function openMessenger(options: ZeromqMessengerOptions = {}): Promise<ZeromqMessenger> {
  const messenger = await ZeromqMessenger.open(options);
  open.push(messenger);
  return messenger;
}

async function openPair(options: ZeromqMessengerOptions = {}) {
  const a = await openMessenger(options);
  const b = await openMessenger(options);
  const atA = new Collector<Uint8Array>();
  const atB = new Collector<Uint8Array>();
  a.onFrame(atA.push);
  b.onFrame(atB.push);
  return { a, b, atA, atB };
}

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);
const texts = (frames: readonly Uint8Array[]): string[] => frames.map((frame) => new TextDecoder().decode(frame));
const portOf = (endpoint: string): number => Number(endpoint.split(':')[2]);

afterEach(async () => {
  await Promise.all(open.splice(0).map((messenger) => messenger.close(0)));
});

describe('frames', () => {
  it('arrive in both directions, those of a connection in order', async () => {
    const { a, b, atA, atB } = await openPair();
    for (let i = 0; i < 2000; i++) a.send(b.endpoint, bytes(`a${i}`));
    b.send(a.endpoint, bytes('back'));
    expect(texts(await atB.waitFor(2000))).toEqual(Array.from({ length: 2000 }, (_, i) => `a${i}`));
    expect(texts(await atA.waitFor(1))).toEqual(['back']);
    expect(a.counts()).toMatchObject({ framesSent: 2000, framesReceived: 1, bytesReceived: 4 });
    expect(b.counts()).toMatchObject({ framesSent: 1, framesReceived: 2000 });
  });

  it('wait for the listener', async () => {
    const a = await openMessenger();
    const b = await openMessenger();
    const probe = new Collector<Uint8Array>();
    a.send(b.endpoint, bytes('early'));
    b.onFrame(probe.push);
    expect(texts(await probe.waitFor(1))).toEqual(['early']);
  });

  it('that came together are handed on in portions: others have their turn in between', async () => {
    const a = await openMessenger();
    const b = await openMessenger();
    const first = new Collector<Uint8Array>();
    a.onFrame(first.push);
    // ZeroMQ holds them for the listener.
    for (let i = 0; i < 400; i++) a.send(b.endpoint, bytes(`f${i}`));
    await until(
      () => a.counts().framesSent === 400,
      () => `${a.counts().framesSent} of 400 frames were sent`,
    );
    const log = new TurnLog<string>();
    const atB = new Collector<Uint8Array>();
    b.onFrame((frame) => {
      log.done(new TextDecoder().decode(frame));
      workMs(0.2);
      atB.push(frame);
    });
    await atB.waitFor(400);
    log.stop();
    expect(log.doneIn.map(({ what }) => what)).toEqual(Array.from({ length: 400 }, (_, i) => `f${i}`));
    // A portion is a millisecond, five of these frames.
    expect(log.mostInATurn).toBeLessThanOrEqual(12);
  });

  it('of 16 MiB arrive whole; larger ones are dropped and counted', async () => {
    const { a, b, atB } = await openPair();
    const big = new Uint8Array(MAX_FRAME_BYTES);
    for (let i = 0; i < big.length; i += 4093) big[i] = i % 251;
    a.send(b.endpoint, big);
    a.send(b.endpoint, new Uint8Array(MAX_FRAME_BYTES + 1));
    a.send(b.endpoint, bytes('after'));
    const [first, second] = await atB.waitFor(2);
    expect(Buffer.compare(first as Uint8Array, big)).toBe(0);
    expect(texts([second as Uint8Array])).toEqual(['after']);
    expect(a.counts().framesDropped['frame-too-large']).toBe(1);
  });

  it('reach a messenger through its own endpoint', async () => {
    const a = await openMessenger();
    const received = new Collector<Uint8Array>();
    a.onFrame(received.push);
    a.send(a.endpoint, bytes('self'));
    expect(texts(await received.waitFor(1))).toEqual(['self']);
  });

  it('reach a peer that is named, not numbered', async () => {
    const { a, b, atB } = await openPair();
    a.send(`tcp://localhost:${portOf(b.endpoint)}`, bytes('named'));
    expect(texts(await atB.waitFor(1))).toEqual(['named']);
  });
});

describe('a peer that cannot be had', () => {
  it('a bad endpoint is dropped and counted, never connected to', async () => {
    const a = await openMessenger();
    for (const endpoint of ['ipc:///tmp/x', 'tcp://*:1', 'tcp://127.0.0.1', 'tcp://127.0.0.1:0', '', 'inproc://a']) {
      a.send(endpoint, bytes('x'));
    }
    expect(a.counts().framesDropped['bad-endpoint']).toBe(6);
  });

  it('its queue is bounded by frames and by bytes, and forget empties it', async () => {
    const { endpoint: nobody } = await ownAddress();
    const a = await openMessenger({ maxQueuedFrames: 10 });
    for (let i = 0; i < 25; i++) a.send(nobody, bytes('x'));
    // One frame is with the socket, waiting for the connection; ten are queued.
    expect(a.counts().framesDropped['queue-full']).toBe(14);
    a.forget(nobody);
    expect(a.counts().framesDropped.forgotten).toBe(10);
    expect(a.counts().framesSent).toBe(0);

    const b = await openMessenger({ maxQueuedBytes: 1000 });
    for (let i = 0; i < 5; i++) b.send(nobody, new Uint8Array(400));
    expect(b.counts().framesDropped['queue-full']).toBe(2);
  });

  it('frames sent before the peer listens arrive once it does', async () => {
    const { host, port, endpoint } = await ownAddress();
    const a = await openMessenger();
    a.send(endpoint, bytes('first'));
    const b = await openMessenger({ host, port });
    const received = new Collector<Uint8Array>();
    b.onFrame(received.push);
    expect(texts(await received.waitFor(1))).toEqual(['first']);
  });

  it('those who wait at a socket look at it again: nothing is lost by that, and nothing comes twice', async () => {
    const lookedAgain = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 3 * LOOK_AGAIN_MS));
    const { host, port, endpoint } = await ownAddress();
    const a = await openMessenger();
    for (const text of ['first', 'second']) a.send(endpoint, bytes(text));
    await lookedAgain();
    const b = await openMessenger({ host, port });
    const received = new Collector<Uint8Array>();
    b.onFrame(received.push);
    await received.waitFor(2);
    await lookedAgain();
    a.send(endpoint, bytes('third'));
    expect(texts(await received.waitFor(3))).toEqual(['first', 'second', 'third']);
    expect(Object.values(a.counts().framesDropped).every((count) => count === 0)).toBe(true);
  });

  it('a name that does not resolve is counted, and the next frame asks again', async () => {
    const a = await openMessenger();
    const endpoint = 'tcp://no-such-host.invalid:4000';
    for (let round = 1; round <= 2; round++) {
      a.send(endpoint, bytes('x'));
      await until(
        () => a.counts().framesDropped['unresolved-host'] === round,
        () => JSON.stringify(a.counts().framesDropped),
      );
    }
  });

  it('does not hold up close', async () => {
    const { endpoint } = await ownAddress();
    const a = await openMessenger();
    a.send(endpoint, bytes('x'));
    // Far longer than the test lasts.
    await withDeadline(a.close(2 * HANG_LIMIT_MS), HANG_LIMIT_MS, () => 'close waits for a peer that refused');
    expect(a.counts().framesDropped.closed).toBe(1);
  });

  it('makes room for another when there are too many', async () => {
    const { b, atB } = await openPair();
    const a = await openMessenger({ maxPeers: 2 });
    a.send(b.endpoint, bytes('kept'));
    await atB.waitFor(1);
    for (let i = 0; i < 3; i++) a.send((await ownAddress()).endpoint, bytes('x'));
    a.send(b.endpoint, bytes('still there'));
    expect(texts(await atB.waitFor(2))).toEqual(['kept', 'still there']);
    expect(a.counts()).toMatchObject({ connectionsLost: 0, framesDropped: { 'too-many-peers': 0 } });
  });
});

describe('a connection that breaks', () => {
  it('is reported to those who send on it, and works again when the peer is back', async () => {
    const { host } = await ownAddress();
    const a = await openMessenger();
    const b = await openMessenger({ host });
    const atB = new Collector<Uint8Array>();
    b.onFrame(atB.push);
    const lost = new Collector<string>();
    a.onDisconnect(lost.push);
    a.send(b.endpoint, bytes('one'));
    await atB.waitFor(1);
    await b.close(0);
    expect(await lost.waitFor(1)).toEqual([b.endpoint]);
    expect(a.counts().connectionsLost).toBe(1);

    const successor = await openMessenger({ host, port: portOf(b.endpoint) });
    const received = new Collector<Uint8Array>();
    successor.onFrame(received.push);
    a.send(b.endpoint, bytes('two'));
    expect(texts(await received.waitFor(1))).toEqual(['two']);
    expect(lost.values).toHaveLength(1);
  });
});

describe('close', () => {
  it('sends what is queued, then drops and counts later frames', async () => {
    const { a, b, atB } = await openPair();
    for (let i = 0; i < 500; i++) a.send(b.endpoint, new Uint8Array(10_000).fill(i % 256));
    await a.close(5000);
    const frames = await atB.waitFor(500);
    expect(frames.every((frame, i) => frame.length === 10_000 && frame[0] === i % 256)).toBe(true);
    a.send(b.endpoint, bytes('late'));
    expect(a.counts().framesDropped.closed).toBe(1);
    await a.close(0);
  });

  it('frees the port at once', async () => {
    const { host } = await ownAddress();
    const a = await openMessenger({ host });
    await a.close(0);
    const b = await openMessenger({ host, port: portOf(a.endpoint) });
    expect(b.endpoint).toBe(a.endpoint);
  });
});

describe('hostile peers', () => {
  it('messages of a wrong shape are counted, the rest is served', async () => {
    const { a, b, atB } = await openPair();
    const raw = new Dealer({ linger: 1000 });
    raw.connect(b.endpoint);
    await raw.send(['two', 'parts']);
    raw.close();
    a.send(b.endpoint, bytes('fine'));
    expect(texts(await atB.waitFor(1))).toEqual(['fine']);
    await until(
      () => b.counts().framesDropped['malformed-message'] === 1,
      () => JSON.stringify(b.counts().framesDropped),
    );
  });

  it('a message over the cap costs its sender the connection and nobody else', async () => {
    const { a, b, atB } = await openPair();
    const raw = new Dealer({ linger: 0 });
    const broken = new Promise<void>((resolve) => raw.events.on('disconnect', () => resolve()));
    raw.connect(b.endpoint);
    await raw.send(new Uint8Array(MAX_FRAME_BYTES + 1));
    await withDeadline(broken, HANG_LIMIT_MS, () => 'the oversized message was not refused');
    raw.close();
    a.send(b.endpoint, bytes('fine'));
    expect(texts(await atB.waitFor(1))).toEqual(['fine']);
  });

  it('bytes that are not ZeroMQ do not disturb it', async () => {
    const { a, b, atB } = await openPair();
    const socket = connect(portOf(b.endpoint), '127.0.0.1');
    const ended = new Promise<void>((resolve) => socket.on('close', () => resolve()));
    socket.on('error', () => undefined);
    socket.resume();
    socket.end('GET / HTTP/1.1\r\nHost: x\r\n\r\n');
    await withDeadline(ended, HANG_LIMIT_MS, () => 'the stray connection stays open');
    a.send(b.endpoint, bytes('fine'));
    expect(texts(await atB.waitFor(1))).toEqual(['fine']);
    expect(b.counts().framesReceived).toBe(1);
  });
});

describe('open', () => {
  async function refusal(options: ZeromqMessengerOptions): Promise<ConfigError> {
    const error = await openMessenger(options).catch((thrown: unknown) => thrown);
    if (!(error instanceof ConfigError)) throw new Error(`expected a ConfigError, got ${String(error)}`);
    return error;
  }

  it('names the port that is in use and the setting', async () => {
    const a = await openMessenger();
    const port = portOf(a.endpoint);
    const error = await refusal({ port });
    expect(error.message).toContain(`port ${port} on 127.0.0.1 is in use`);
    expect(error.message).toContain('listen.port');
    expect(error.details).toEqual({ host: '127.0.0.1', firstPort: port, lastPort: port });
  });

  it('takes the first free port of a range, and says so when none is', async () => {
    const a = await openMessenger();
    const first = portOf(a.endpoint);
    expect((await refusal({ port: { first, last: first } })).message).toContain('is in use');
    const b = await openMessenger({ port: { first, last: Math.min(first + 50, 65535) } });
    expect(portOf(b.endpoint)).toBeGreaterThan(first);
  });

  it('refuses what it cannot keep', async () => {
    expect((await refusal({ host: '0.0.0.0' })).message).toContain('listen.advertiseHost');
    expect((await refusal({ host: '0.0.0.0', advertiseHost: '10.0.0.1' })).message).toContain(
      'security.allowPlaintext',
    );
    expect((await refusal({ host: '192.0.2.1', allowPlaintext: true })).message).toContain('listen.host 192.0.2.1');
    expect((await refusal({ host: 'no-such-host.invalid', allowPlaintext: true })).message).toContain('listen.host');
    expect((await refusal({ port: 70_000 })).message).toContain('listen.port');
    expect((await refusal({ port: { first: 9, last: 3 } })).message).toContain('listen.port');
    expect((await refusal({ advertiseHost: 'a b' })).message).toContain('listen.advertiseHost');
  });

  it('listens beyond loopback when told to', async () => {
    const a = await openMessenger({ host: '0.0.0.0', advertiseHost: '127.0.0.1', allowPlaintext: true });
    const received = new Collector<Uint8Array>();
    a.onFrame(received.push);
    const b = await openMessenger();
    b.send(a.endpoint, bytes('x'));
    expect(texts(await received.waitFor(1))).toEqual(['x']);
    expect(a.endpoint).toMatch(/^tcp:\/\/127\.0\.0\.1:\d+$/);
  });

  it('takes one listener of each kind', async () => {
    const a = await openMessenger();
    a.onFrame(() => undefined);
    a.onDisconnect(() => undefined);
    expect(() => a.onFrame(() => undefined)).toThrow(StateError);
    expect(() => a.onDisconnect(() => undefined)).toThrow(StateError);
  });
});
