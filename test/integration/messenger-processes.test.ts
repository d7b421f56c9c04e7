import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { ZeromqMessenger } from '../../src/wire/zeromq-messenger.js';
import { type Child, startChild } from '../support/child.js';
import { Collector, withDeadline } from '../support/deadline.js';
import { type TranspiledSources, transpileSources } from '../support/transpiled-sources.js';

const CHILD = fileURLToPath(new URL('messenger-child.mjs', import.meta.url));
let sources: TranspiledSources;
const children: Child[] = [];
let messenger: ZeromqMessenger;
let frames: Collector<Uint8Array>;
let lost: Collector<{ readonly endpoint: string; readonly at: number }>;

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
  messenger.onDisconnect((endpoint) => lost.push({ endpoint, at: performance.now() }));
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
  it('killed: the disconnect is reported within a second; a successor on its port receives again', async () => {
    await setUp();
    const first = await child('echo', {});
    const endpoint = first.firstLine;
    messenger.send(endpoint, say('one'));
    await frames.waitFor(1);

    const killedAt = performance.now();
    first.kill('SIGKILL');
    const [notice] = await lost.waitFor(1, 2000);
    expect(notice?.endpoint).toBe(endpoint);
    expect((notice?.at ?? Number.POSITIVE_INFINITY) - killedAt).toBeLessThan(1000);
    expect(await first.exited).toBe('SIGKILL');

    const second = await child('echo', { port: Number(endpoint.split(':')[2]) });
    expect(second.firstLine).toBe(endpoint);
    messenger.send(endpoint, say('two'));
    await frames.waitFor(2);
    expect(heard()).toEqual(['one', 'two']);

    second.kill('SIGKILL');
    await lost.waitFor(2, 2000);
  });

  it('killed and forgotten: nothing is reported twice, and the port is not bothered any more', async () => {
    await setUp();
    const first = await child('echo', {});
    messenger.send(first.firstLine, say('one'));
    await frames.waitFor(1);
    first.kill('SIGKILL');
    await lost.waitFor(1, 2000);
    messenger.forget(first.firstLine);
    const second = await child('echo', { port: Number(first.firstLine.split(':')[2]) });
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
        lingerMs: 5000,
        exit,
      });
      const received = await frames.waitFor(300, 10_000);
      expect(received.map((frame) => Number(new TextDecoder().decode(frame).split(':')[0]))).toEqual(
        Array.from({ length: 300 }, (_, i) => i),
      );
      expect(await withDeadline(sender.exited, 10_000, () => 'the sender does not end')).toBe(0);
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
    expect(await withDeadline(sender.exited, 8000, () => 'the sender does not end')).toBe(0);
  });
});
