import { describe, expect, it } from 'vitest';
import { SessionRetiredError } from '../../../src/errors.js';
import { makeRequest, TransferPair as Pair, type TransferPair } from '../../sim-lite/transfer-pair.js';

const CONTEXT_SLOTS = [5, 9, 2, 30];
const GENERATION_SLOTS = [17, 3, 21, 8];

/** Two sides of one request, asked for by the generation side, ready to be sent. */
async function begin(pair: TransferPair, options: Parameters<typeof makeRequest>[2] = {}) {
  const context = makeRequest(1, 'context', options);
  const generation = makeRequest(7, 'generation', { ...options, endpoint: pair.context.transceiver.endpoint });
  pair.context.cache.place(1, CONTEXT_SLOTS);
  pair.generation.cache.place(7, GENERATION_SLOTS);
  pair.fill(pair.context, CONTEXT_SLOTS);
  pair.generation.transceiver.requestAndReceiveAsync(generation);
  await pair.run(50);
  return { context, generation };
}

function chunk(pair: TransferPair, request: ReturnType<typeof makeRequest>, start: number, end: number, after = null) {
  request.chunkStart = start;
  request.chunkEnd = end;
  return pair.context.transceiver.respondAndSendAsync(request, { after });
}

function expectPages(pair: TransferPair): void {
  for (const pool of [0, 1])
    CONTEXT_SLOTS.forEach((slot, ordinal) => {
      expect(pair.page(pair.generation, pool, GENERATION_SLOTS[ordinal] as number)).toEqual(
        pair.page(pair.context, pool, slot),
      );
    });
}

describe('a pipelined transfer', () => {
  it('moves every page slice by slice and completes once on both sides', async () => {
    const pair = await Pair.create();
    const { context } = await begin(pair);
    expect(pair.context.transceiver.receiverReady(context)).toBe(true);
    expect(chunk(pair, context, 0, 6)).toEqual({ beginBlock: 0, endBlock: 1, isLast: false });
    await pair.run(30);
    expect(pair.context.settled).toEqual([]);
    expect(chunk(pair, context, 6, 7)).toBeNull();
    expect(chunk(pair, context, 7, 13)).toEqual({ beginBlock: 1, endBlock: 3, isLast: false });
    await pair.run(30);
    expect(pair.generation.settled).toEqual([]);
    expect(chunk(pair, context, 13, 16)).toEqual({ beginBlock: 3, endBlock: 4, isLast: true });
    await pair.run(30);
    // Pages are there, but the first token is not: aux is part of the completion.
    expect(pair.generation.settled).toEqual([]);
    context.outputTokens.push(4711);
    await pair.run(50);
    expectPages(pair);
    const bytes = 4 * 2 * 128;
    expect(pair.context.settled).toMatchObject([
      {
        side: 'context',
        outcome: 'completed',
        error: null,
        timings: { slices: 3, bytesPlanned: bytes, bytesDone: bytes },
      },
    ]);
    expect(pair.generation.settled).toMatchObject([
      {
        side: 'generation',
        outcome: 'completed',
        firstTokens: [4711],
        timings: { bytesPlanned: bytes, bytesDone: bytes },
      },
    ]);
    expect(pair.context.cache.history).toEqual(['pin 1', 'unpin 1']);
    expect(pair.generation.cache.history).toEqual(['pin 7', 'unpin 7']);
    expect(pair.context.transceiver.stats()).toMatchObject({ sendSessions: 0, held: 0, freeAuxSlots: 4 });
    expect(pair.generation.transceiver.stats()).toMatchObject({ receiveSessions: 0, held: 0, freeAuxSlots: 4 });
  });

  it('fails a receive whose answer counts more cached tokens than the prompt has', async () => {
    const pair = await Pair.create();
    const { context, generation } = await begin(pair);
    chunk(pair, context, 0, 16);
    context.prepopulatedLen = 17;
    context.outputTokens.push(4711);
    await pair.run(50);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_PROTOCOL' } }]);
    expect(generation.contextAnswer).toBeUndefined();
    expect(pair.generation.transceiver.stats()).toMatchObject({ freeAuxSlots: 4 });
  });

  it('brings the whole answer of the context server beside the pages', async () => {
    const pair = await Pair.create();
    const { context, generation } = await begin(pair);
    const params = { ...context.disagg, draftTokens: [3_000_000_000, 12] };
    Object.assign(context, { disagg: params, outputLogProbs: [-0.25] });
    chunk(pair, context, 0, 16);
    context.prepopulatedLen = 4;
    context.outputTokens.push(0xffff_ffff);
    await pair.run(50);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'completed', firstTokens: [0xffff_ffff] }]);
    expect(generation.contextAnswer).toEqual({
      firstTokens: [0xffff_ffff],
      firstLogProbs: [-0.25],
      draftTokens: [3_000_000_000, 12],
      promptLen: 16,
      cachedTokens: 4,
    });
  });

  it('waits for the event of each chunk', async () => {
    const pair = await Pair.create();
    const { context } = await begin(pair);
    context.outputTokens.push(1);
    context.chunkEnd = 16;
    const event = pair.event(pair.context);
    pair.context.transceiver.respondAndSendAsync(context, { after: event });
    await pair.run(200);
    expect(pair.generation.settled).toEqual([]);
    event.signal();
    await pair.run(50);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'completed' }]);
    expectPages(pair);
  });

  it('fails on both sides when the forward behind a slice failed', async () => {
    const pair = await Pair.create();
    const { context } = await begin(pair);
    context.chunkEnd = 16;
    const event = pair.event(pair.context);
    pair.context.transceiver.respondAndSendAsync(context, { after: event });
    event.fail('device lost');
    await pair.run(100);
    expect(pair.context.settled).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_TRANSPORT' } }]);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'failed' }]);
    expect(pair.generation.settled[0]?.error?.message).toContain('device lost');
    expect(pair.context.transceiver.stats().held).toBe(0);
    expect(pair.generation.transceiver.stats().held).toBe(0);
  });

  it('serves a receiver that asks after every slice was submitted', async () => {
    const pair = await Pair.create();
    const context = makeRequest(1, 'context');
    pair.context.cache.place(1, CONTEXT_SLOTS);
    pair.fill(pair.context, CONTEXT_SLOTS);
    context.outputTokens.push(9);
    for (const [start, end] of [
      [0, 8],
      [8, 16],
    ] as const)
      chunk(pair, context, start, end);
    await pair.run(100);
    expect(pair.context.settled).toEqual([]);
    expect(pair.context.cache.isPinned(1)).toBe(true);
    pair.generation.cache.place(7, GENERATION_SLOTS);
    const generation = makeRequest(7, 'generation', { endpoint: pair.context.transceiver.endpoint });
    pair.generation.transceiver.requestAndReceiveAsync(generation);
    await pair.run(100);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'completed', firstTokens: [9] }]);
    expectPages(pair);
  });

  it('moves nothing for what the receiver has, and still completes', async () => {
    const pair = await Pair.create();
    const context = makeRequest(1, 'context');
    const generation = makeRequest(7, 'generation', { endpoint: pair.context.transceiver.endpoint });
    generation.prepopulatedLen = 12;
    pair.context.cache.place(1, CONTEXT_SLOTS);
    pair.generation.cache.place(7, GENERATION_SLOTS);
    pair.fill(pair.context, CONTEXT_SLOTS);
    pair.generation.transceiver.requestAndReceiveAsync(generation);
    await pair.run(50);
    context.outputTokens.push(5);
    chunk(pair, context, 0, 8);
    chunk(pair, context, 8, 16);
    await pair.run(100);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'completed', timings: { bytesDone: 2 * 128 } }]);
    expect(pair.page(pair.generation, 0, 17)).toEqual(new Uint8Array(128));
    expect(pair.page(pair.generation, 1, 8)).toEqual(pair.page(pair.context, 1, 30));
  });

  it('monolithic: one slice when no token is left', async () => {
    const pair = await Pair.create();
    const { context } = await begin(pair, { pipelined: false });
    expect(chunk(pair, context, 0, 8)).toBeNull();
    expect(pair.context.cache.isPinned(1)).toBe(false);
    context.outputTokens.push(3);
    expect(chunk(pair, context, 8, 16)).toEqual({ beginBlock: 0, endBlock: 4, isLast: true });
    await pair.run(50);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'completed', timings: { slices: 1 } }]);
    expectPages(pair);
  });
});

describe('sides that lay out their pages differently', () => {
  /** The bytes of one token of one head in a page of 2 heads of 4 bfloat16 elements. */
  function tokenBytes(
    page: Uint8Array,
    shape: { tokensPerBlock: number; nhd: boolean },
    value: boolean,
    head: number,
    token: number,
  ) {
    const half = value ? page.length / 2 : 0;
    const at = shape.nhd ? token * 2 + head : head * shape.tokensPerBlock + token;
    return page.slice(half + at * 8, half + at * 8 + 8);
  }

  for (const [what, generationTokens, nhd, slots] of [
    ['larger blocks', 8, false, [17, 3]],
    ['smaller blocks', 2, false, [17, 3, 21, 8, 1, 0, 30, 12]],
    ['token-major blocks', 4, true, [17, 3, 21, 8]],
  ] as const)
    it(`moves each token of each head to its place in ${what}`, async () => {
      const shape = { tokensPerBlock: generationTokens, blockLayout: nhd ? 'NHD' : 'HND' } as const;
      const pair = await Pair.create({ generation: shape });
      const context = makeRequest(1, 'context');
      pair.context.cache.place(1, CONTEXT_SLOTS);
      pair.generation.cache.place(7, slots);
      pair.fill(pair.context, CONTEXT_SLOTS);
      pair.generation.transceiver.requestAndReceiveAsync(
        makeRequest(7, 'generation', { endpoint: pair.context.transceiver.endpoint }),
      );
      await pair.run(50);
      context.outputTokens.push(1);
      chunk(pair, context, 0, 8);
      chunk(pair, context, 8, 16);
      await pair.run(100);
      expect(pair.generation.settled).toMatchObject([{ outcome: 'completed', timings: { bytesDone: 4 * 2 * 128 } }]);
      for (const pool of [0, 1])
        for (const value of [false, true])
          for (const head of [0, 1])
            for (let token = 0; token < 16; token += 1) {
              const from = pair.page(pair.context, pool, CONTEXT_SLOTS[token >> 2] as number);
              const to = pair.page(pair.generation, pool, slots[Math.floor(token / generationTokens)] as number);
              expect(
                tokenBytes(to, { tokensPerBlock: generationTokens, nhd }, value, head, token % generationTokens),
              ).toEqual(tokenBytes(from, { tokensPerBlock: 4, nhd: false }, value, head, token % 4));
            }
    });
});

describe('frames that do not arrive', () => {
  for (const type of [
    'HELLO',
    'HELLO_ACK',
    'REQUEST_DATA',
    'ACCEPTED',
    'SLICE_RESULT',
    'WRITER_REPORT',
    'REPORT_ACK',
  ] as const)
    it(`completes although the first ${type} is lost`, async () => {
      const pair = await Pair.create();
      pair.network.dropNext(type, 1);
      const { context } = await begin(pair);
      await pair.run(600);
      context.outputTokens.push(1);
      chunk(pair, context, 0, 8);
      chunk(pair, context, 8, 16);
      await pair.run(1500);
      expect(pair.context.settled).toMatchObject([{ outcome: 'completed' }]);
      expect(pair.generation.settled).toMatchObject([{ outcome: 'completed' }]);
      expectPages(pair);
      expect(pair.context.transceiver.stats().held + pair.generation.transceiver.stats().held).toBe(0);
    });

  it('completes with every frame sent twice and out of order', async () => {
    const pair = await Pair.create();
    pair.network.addRule((frame) => ({ copies: 2, delayMs: (frame.index * 37) % 90 }));
    const { context } = await begin(pair);
    await pair.run(600);
    context.outputTokens.push(1);
    chunk(pair, context, 0, 8);
    chunk(pair, context, 8, 16);
    await pair.run(1500);
    expect(pair.context.settled).toMatchObject([{ outcome: 'completed' }]);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'completed' }]);
    expectPages(pair);
  });
});

describe('a peer that is not there', () => {
  it('refuses when the context server does not answer HELLO', async () => {
    const pair = await Pair.create();
    pair.generation.cache.place(7, GENERATION_SLOTS);
    const generation = makeRequest(7, 'generation', { endpoint: 'tcp://127.0.0.1:1' });
    pair.generation.transceiver.requestAndReceiveAsync(generation);
    await pair.run(5200, 50);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_TRANSFER_TIMEOUT' } }]);
    expect(pair.generation.settled[0]?.error?.message).toContain('tcp://127.0.0.1:1');
    expect(pair.generation.transceiver.stats()).toMatchObject({ held: 0, freeAuxSlots: 4, receiveSessions: 0 });
  });

  it('fails at once, with the findings, for a peer with another head dim', async () => {
    const pair = await Pair.create({ generation: { headDim: 8 } });
    await begin(pair);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_COMPATIBILITY' } }]);
    expect(pair.generation.settled[0]?.error?.message).toMatch(/headDim/);
    expect(pair.generation.transceiver.stats().held).toBe(0);
  });

  it('names the killed generation server, and keeps pages until its writes drained', async () => {
    const pair = await Pair.create();
    const { context } = await begin(pair);
    pair.context.agent.scripts.push('hang');
    chunk(pair, context, 0, 8);
    await pair.run(20);
    pair.kill(pair.generation);
    await pair.run(50);
    expect(pair.context.settled).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_PEER_LOST' } }]);
    expect(pair.context.settled[0]?.error?.message).toContain('generation rank 0');
    expect(pair.context.cache.isPinned(1)).toBe(true);
    pair.context.agent.release();
    await pair.run(20);
    expect(pair.context.cache.isPinned(1)).toBe(false);
    expect(() => chunk(pair, context, 8, 16)).toThrow(SessionRetiredError);
  });

  it('names the killed context server, and retains the destination for one transfer timeout', async () => {
    const pair = await Pair.create();
    const { context } = await begin(pair);
    chunk(pair, context, 0, 8);
    await pair.run(20);
    pair.kill(pair.context);
    await pair.run(50);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_PEER_LOST' } }]);
    expect(pair.generation.cache.isPinned(7)).toBe(true);
    await pair.run(10_100, 100);
    expect(pair.generation.cache.isPinned(7)).toBe(false);
    expect(pair.generation.transceiver.stats().counters['released_unproven']).toBe(1);
    expect(pair.generation.warnings.at(-1)).toContain('without proof');
  });

  it('finds out about a silent peer by pings', async () => {
    const pair = await Pair.create();
    await begin(pair);
    pair.network.addRule((frame) => (frame.from === pair.context.transceiver.endpoint ? { copies: 0 } : null));
    await pair.run(4300, 50);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_PEER_LOST' } }]);
  });
});
