import { describe, expect, it } from 'vitest';
import type { Message } from '../../../src/wire/index.js';
import { decodeFrame, encodeFrame } from '../../../src/wire/index.js';
import { makeRequest, type Server, TransferPair } from '../../sim-lite/transfer-pair.js';

const SOURCE_SLOTS = [5, 9, 2, 30];
const TARGET_SLOTS = [17, 3, 21, 8];

/** One request from `from` to `to`, all the way. */
async function transfer(pair: TransferPair, from: Server, to: Server, id: number): Promise<string | undefined> {
  const options = { rid: (1n << 41n) + BigInt(id) };
  const context = makeRequest(100 + id, 'context', options);
  const generation = makeRequest(200 + id, 'generation', { ...options, endpoint: from.transceiver.endpoint });
  from.cache.place(context.id, SOURCE_SLOTS);
  to.cache.place(generation.id, TARGET_SLOTS);
  to.transceiver.requestAndReceiveAsync(generation);
  await pair.run(50);
  context.chunkEnd = 16;
  context.outputTokens.push(id);
  from.transceiver.respondAndSendAsync(context, { after: null });
  await pair.run(200);
  return to.settled.at(-1)?.outcome;
}

/** Asks; what it returns sends the pages. */
async function ask(pair: TransferPair, from: Server, to: Server, id: number): Promise<() => void> {
  const options = { rid: (1n << 41n) + BigInt(id) };
  const context = makeRequest(100 + id, 'context', options);
  const generation = makeRequest(200 + id, 'generation', { ...options, endpoint: from.transceiver.endpoint });
  from.cache.place(context.id, SOURCE_SLOTS);
  to.cache.place(generation.id, TARGET_SLOTS);
  to.transceiver.requestAndReceiveAsync(generation);
  return () => {
    context.chunkEnd = 16;
    context.outputTokens.push(id);
    from.transceiver.respondAndSendAsync(context, { after: null });
    pair.collect();
  };
}

describe('one rank in both roles', () => {
  it('serves and asks the same peer, one after the other and again', async () => {
    const pair = await TransferPair.create();
    expect(await transfer(pair, pair.context, pair.generation, 1)).toBe('completed');
    expect(await transfer(pair, pair.generation, pair.context, 2)).toBe('completed');
    expect(await transfer(pair, pair.context, pair.generation, 3)).toBe('completed');
    for (const server of [pair.context, pair.generation])
      expect(server.transceiver.stats()).toMatchObject({ held: 0, sendSessions: 0, receiveSessions: 0 });
  });

  it('two that ask each other at the same moment both get their answer', async () => {
    const pair = await TransferPair.create();
    const { context, generation } = pair;
    const done = await Promise.all([ask(pair, context, generation, 1), ask(pair, generation, context, 2)]);
    await pair.run(100);
    for (const finish of done) finish();
    await pair.run(200);
    expect([context, generation].map(({ settled }) => settled.map(({ outcome }) => outcome))).toEqual([
      ['completed', 'completed'],
      ['completed', 'completed'],
    ]);
    // At once: no HELLO was repeated.
    const hellos = pair.network.log.filter(({ message }) => message.type === 'HELLO' && message.probe !== true);
    expect(hellos).toHaveLength(2);
  });
});

describe('frames from a stranger', () => {
  async function strangerSends(pair: TransferPair, to: Server, message: Message): Promise<string[]> {
    const stranger = pair.network.bind();
    const answers: string[] = [];
    stranger.onFrame((frame) => void answers.push(decodeFrame(frame).message.type));
    const addressed = 'endpoint' in message ? { ...message, endpoint: stranger.endpoint } : message;
    stranger.send(to.transceiver.endpoint, encodeFrame(addressed, { incarnation: 99n }));
    await pair.run(50);
    return answers;
  }

  it('CANCEL is answered and cancels nothing', async () => {
    const pair = await TransferPair.create();
    const cancel = {
      type: 'CANCEL',
      rid: (1n << 41n) + 1n,
      ticket: 5n,
      from: 'generation',
      endpoint: '',
      reason: '',
    } as const;
    expect(await strangerSends(pair, pair.context, cancel)).toEqual(['WRITER_REPORT']);
    expect(await transfer(pair, pair.context, pair.generation, 1)).toBe('completed');
  });

  it('REQUEST_DATA is refused and nothing is kept for it', async () => {
    const pair = await TransferPair.create();
    const ask = {
      type: 'REQUEST_DATA',
      rid: (1n << 41n) + 1n,
      ticket: 5n,
      timeLeftMs: 1000,
      promptLen: 16,
      cachedTokens: 0,
      auxSlot: -1,
      endpoint: '',
      traceparent: '',
      runs: [{ begin: 0, slots: Int32Array.of(0, 1, 2, 3) }],
    } as const;
    expect(await strangerSends(pair, pair.context, ask)).toEqual(['WRITER_REPORT']);
    expect(await transfer(pair, pair.context, pair.generation, 1)).toBe('completed');
  });
});

describe('a peer that misbehaves', () => {
  it('cannot cancel what another peer asked for', async () => {
    const pair = await TransferPair.create();
    const other = await pair.start('other');
    pair.others.push(other);
    // It is a peer: it had a request of its own.
    expect(await transfer(pair, pair.context, other, 9)).toBe('completed');
    const rid = (1n << 41n) + 1n;
    const generation = makeRequest(201, 'generation', { rid, endpoint: pair.context.transceiver.endpoint });
    pair.generation.cache.place(201, TARGET_SLOTS);
    pair.generation.transceiver.requestAndReceiveAsync(generation);
    await pair.run(50);
    const cancel = {
      type: 'CANCEL',
      rid,
      ticket: 5n,
      from: 'generation',
      endpoint: other.transceiver.endpoint,
      reason: '',
    } as const;
    const hello = pair.network.log.find(
      ({ from, message }) => from === other.transceiver.endpoint && message.type === 'HELLO',
    );
    const { incarnation } = decodeFrame(hello?.bytes ?? new Uint8Array());
    const frame = encodeFrame(cancel, { incarnation });
    pair.network.sayAs(other.transceiver.endpoint, pair.context.transceiver.endpoint, frame);
    await pair.run(50);
    const context = makeRequest(101, 'context', { rid });
    pair.context.cache.place(101, SOURCE_SLOTS);
    context.chunkEnd = 16;
    context.outputTokens.push(1);
    pair.context.transceiver.respondAndSendAsync(context, { after: null });
    await pair.run(100);
    expect(pair.generation.settled.at(-1)?.outcome).toBe('completed');
  });

  it('reports DONE without ever saying drained: the pages are released one transfer timeout later, and counted', async () => {
    const pair = await TransferPair.create();
    pair.network.addRule(({ message }) => (message.type === 'WRITER_REPORT' ? { copies: 0 } : null));
    expect(await transfer(pair, pair.context, pair.generation, 1)).toBeUndefined();
    const report = pair.network.log.findLast(({ message }) => message.type === 'WRITER_REPORT');
    const frame = decodeFrame(report?.bytes ?? new Uint8Array());
    if (frame.message.type !== 'WRITER_REPORT') throw new Error('no report was sent');
    const undrained = encodeFrame({ ...frame.message, drained: false }, { incarnation: frame.incarnation });
    pair.network.sayAs(pair.context.transceiver.endpoint, pair.generation.transceiver.endpoint, undrained);
    await pair.run(100);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'completed' }]);
    expect(pair.generation.cache.isPinned(201)).toBe(true);
    await pair.run(10_200, 100);
    expect(pair.generation.cache.isPinned(201)).toBe(false);
    expect(pair.generation.transceiver.stats()).toMatchObject({ receiveSessions: 0, freeAuxSlots: 4 });
    expect(pair.generation.transceiver.stats().counters['released_unproven']).toBe(1);
  });
});
