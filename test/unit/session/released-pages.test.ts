import { describe, expect, it } from 'vitest';
import { makeRequest, TransferPair } from '../../sim-lite/transfer-pair.js';

const CONTEXT_SLOTS = [5, 9, 2, 30];
const GENERATION_SLOTS = [17, 3, 21, 8];

async function asked(pair: TransferPair) {
  const context = makeRequest(1, 'context');
  const generation = makeRequest(7, 'generation', { endpoint: pair.context.transceiver.endpoint });
  pair.context.cache.place(1, CONTEXT_SLOTS);
  pair.generation.cache.place(7, GENERATION_SLOTS);
  pair.fill(pair.context, CONTEXT_SLOTS);
  pair.generation.transceiver.requestAndReceiveAsync(generation);
  await pair.run(50);
  return { context, generation };
}

describe('pages of a bounced request', () => {
  it('are free once the last slice was gathered, long before it arrives, and their new bytes are not sent', async () => {
    const pair = await TransferPair.create();
    const { context } = await asked(pair);
    const { agent, cache, transceiver } = pair.context;
    const sent = CONTEXT_SLOTS.map((slot) => pair.page(pair.context, 0, slot));
    agent.scripts.push('bounce', 'bounce');
    context.chunkEnd = 8;
    transceiver.respondAndSendAsync(context, { after: null });
    await pair.run(20);
    // The next chunk's slice will read them.
    expect(cache.isPinned(1)).toBe(true);
    context.chunkStart = 8;
    context.chunkEnd = 16;
    context.outputTokens.push(42);
    transceiver.respondAndSendAsync(context, { after: null });
    await pair.run(20);
    expect(cache.isPinned(1)).toBe(false);
    expect(cache.history.filter((entry) => entry.startsWith('unpin'))).toEqual(['unpin 1']);
    expect(transceiver.stats()).toMatchObject({ held: 0, sendSessions: 1 });
    for (const slot of CONTEXT_SLOTS)
      for (const pool of pair.context.table.pools.slice(0, 2))
        agent.writeBytes(pool.base + slot * pool.slotStride, new Uint8Array(pool.slotBytes).fill(0xee));
    expect(pair.generation.settled).toEqual([]);
    agent.release();
    await pair.run(100);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'completed', firstTokens: [42] }]);
    expect(GENERATION_SLOTS.map((slot) => pair.page(pair.generation, 0, slot))).toEqual(sent);
    expect(cache.history.filter((entry) => entry.startsWith('unpin'))).toEqual(['unpin 1']);
    expect(transceiver.stats()).toMatchObject({ held: 0, sendSessions: 0 });
  });

  it('are free at once after a cancel when nothing reads them, and a request that takes over the id keeps its own', async () => {
    const pair = await TransferPair.create();
    const { context } = await asked(pair);
    const { agent, cache, transceiver, settled } = pair.context;
    agent.scripts.push('bounce');
    context.chunkEnd = 8;
    transceiver.respondAndSendAsync(context, { after: null });
    await pair.run(20);
    expect(transceiver.cancelRequest(context, 'user')).toBe(false);
    await pair.run(20);
    expect(settled).toMatchObject([{ outcome: 'cancelled' }]);
    expect(cache.isPinned(1)).toBe(false);
    // The region that it was gathered into is still under way; the pages are another's.
    expect(transceiver.stats().sendSessions).toBe(1);
    const next = makeRequest(1, 'context', { rid: (1n << 41n) + 9n });
    next.chunkEnd = 8;
    transceiver.respondAndSendAsync(next, { after: null });
    expect(cache.isPinned(1)).toBe(true);
    agent.release();
    await pair.run(100);
    expect(transceiver.stats().sendSessions).toBe(1);
    expect(cache.isPinned(1)).toBe(true);
  });

  it('stay while one slice of them is not gathered', async () => {
    const pair = await TransferPair.create();
    const { context } = await asked(pair);
    const { agent, cache, transceiver } = pair.context;
    agent.scripts.push('hang', 'bounce');
    context.chunkEnd = 8;
    transceiver.respondAndSendAsync(context, { after: null });
    context.chunkStart = 8;
    context.chunkEnd = 16;
    context.outputTokens.push(42);
    transceiver.respondAndSendAsync(context, { after: null });
    await pair.run(50);
    expect(cache.isPinned(1)).toBe(true);
    transceiver.cancelRequest(context, 'user');
    await pair.run(50);
    expect(cache.isPinned(1)).toBe(true);
    agent.release();
    await pair.run(50);
    expect(cache.isPinned(1)).toBe(false);
  });
});
