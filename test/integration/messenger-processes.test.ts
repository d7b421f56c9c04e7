import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { ZeromqMessenger } from '../../src/wire/zeromq-messenger.js';
import { type Child, startChild } from '../support/child.js';
import { Collector, HANG_LIMIT_MS, withDeadline } from '../support/deadline.js';
import { ownAddress } from '../support/own-address.js';
import { type TranspiledSources, transpileSources } from '../support/transpiled-sources.js';

const CHILD = fileURLToPath(new URL('messenger-child.mjs', import.meta.url));
let sources: TranspiledSources;
const children: Child[] = [];
let messenger: ZeromqMessenger;
let frames: Collector<Uint8Array>;
let lost: Collector<string>;

beforeAll(() => {
  sources = transpileSources(['wire/index']);
});
afterAll(() => sources.remove());

async function child(mode: string, options: object): Promise<Child> {
  const started = await startChild([CHILD, sources.path('wire/index'), mode, JSON.stringify(options)]);
  children.push(started);
  return started;
}

async function setUp(): Promise<void> {
  messenger = await ZeromqMessenger.open();
  frames = new Collector();
  lost = new Collector();
  messenger.onFrame(frames.push);
  messenger.onDisconnect(lost.push);
}

afterEach(async () => {
  await messenger.close(0);
  for (const each of children.splice(0)) {
    each.kill('SIGKILL');
    await each.exited;
  }
});

const say = (text: string): Uint8Array => new TextEncoder().encode(`${messenger.endpoint}\n${text}`);
const heard = (): string[] => frames.values.map((frame) => new TextDecoder().decode(frame).split('\n')[1] ?? '');

describe('a peer in another process', () => {
  it('killed: the disconnect is reported; a successor on its port receives again', async () => {
    await setUp();
    const { host } = await ownAddress();
    const first = await child('echo', { host });
    const endpoint = first.firstLine;
    messenger.send(endpoint, say('one'));
    await frames.waitFor(1);

    first.kill('SIGKILL');
    expect(await lost.waitFor(1)).toEqual([endpoint]);
    expect(await first.exited).toBe('SIGKILL');

    const second = await child('echo', { host, port: Number(endpoint.split(':')[2]) });
    expect(second.firstLine).toBe(endpoint);
    messenger.send(endpoint, say('two'));
    await frames.waitFor(2);
    expect(heard()).toEqual(['one', 'two']);

    second.kill('SIGKILL');
    await lost.waitFor(2);
  });

  it('killed and forgotten: nothing is reported twice, and the port is not bothered any more', async () => {
    await setUp();
    const { host } = await ownAddress();
    const first = await child('echo', { host });
    messenger.send(first.firstLine, say('one'));
    await frames.waitFor(1);
    first.kill('SIGKILL');
    await lost.waitFor(1);
    messenger.forget(first.firstLine);
    const second = await child('echo', { host, port: Number(first.firstLine.split(':')[2]) });
    second.kill('SIGTERM');
    await second.exited;
    expect(lost.values).toHaveLength(1);
  });

  for (const exit of ['at-once', 'by-itself']) {
    it(`closes with a linger time and ends ${exit}: every frame arrives`, async () => {
      await setUp();
      const sender = await child('farewell', {
        to: messenger.endpoint,
        count: 300,
        padding: 5000,
        lingerMs: HANG_LIMIT_MS,
        exit,
      });
      const received = await frames.waitFor(300);
      expect(received.map((frame) => Number(new TextDecoder().decode(frame).split(':')[0]))).toEqual(
        Array.from({ length: 300 }, (_, i) => i),
      );
      expect(await withDeadline(sender.exited, HANG_LIMIT_MS, () => 'the sender does not end')).toBe(0);
    });
  }

  it('ends in time when nobody takes its last frames', async () => {
    await setUp();
    const sender = await child('farewell', {
      to: 'tcp://127.0.0.1:1',
      count: 3,
      padding: 10,
      lingerMs: 2000,
      exit: 'by-itself',
    });
    expect(await withDeadline(sender.exited, HANG_LIMIT_MS, () => 'the sender does not end')).toBe(0);
  });
});
