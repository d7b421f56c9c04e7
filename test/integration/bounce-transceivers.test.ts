// Two transceivers over real agents whose every slice is bounced: the receives register their slots, slices name their tickets.
import { setImmediate } from 'node:timers/promises';
import { afterEach, describe, expect, it } from 'vitest';
import { createAgent } from '../../src/agent/native-agent.js';
import type { SliceSubmission, TransferAgent } from '../../src/agent/transfer-agent.js';
import { makeRequest, type Server, TransferPair } from '../sim-lite/transfer-pair.js';
import { HANG_LIMIT_MS } from '../support/deadline.js';

const CONTEXT_SLOTS = [5, 9, 2, 30];
const GENERATION_SLOTS = [17, 3, 21, 8];

describe('transceivers over agents that bounce', () => {
  const agents: TransferAgent[] = [];
  const submitted: SliceSubmission[] = [];

  async function open(name: string): Promise<Server['agent']> {
    const native = await createAgent({
      kind: 'host',
      name,
      bounce: { sizeBytes: 256 << 10, maxChunkSize: 64 << 10, requestTimeoutMs: HANG_LIMIT_MS, isForced: true },
    });
    const submit = native.submit.bind(native);
    // What the pair asks of an agent; it has its own thread, so that `run` moves nothing.
    const agent = Object.assign(native, {
      run: () => 0,
      submit: (slice: SliceSubmission) => {
        submitted.push(slice);
        submit(slice);
      },
    }) as unknown as Server['agent'];
    agents.push(native);
    return agent;
  }

  afterEach(async () => {
    submitted.length = 0;
    await Promise.all(agents.splice(0).map((agent) => agent.close(2000)));
  });

  async function until(pair: TransferPair, done: () => boolean): Promise<void> {
    const begin = performance.now();
    // The agents' threads live in real time, so that the fake clock must not run ahead of it.
    for (let passed = 0; !done(); ) {
      const elapsed = performance.now() - begin;
      if (elapsed > HANG_LIMIT_MS) throw new Error(`not done: ${JSON.stringify(pair.generation.warnings)}`);
      if (elapsed > passed) {
        passed++;
        await pair.run(1, 1);
      }
      await setImmediate();
    }
  }

  async function begin(pair: TransferPair) {
    const context = makeRequest(1, 'context');
    const generation = makeRequest(7, 'generation', { endpoint: pair.context.transceiver.endpoint });
    pair.context.cache.place(1, CONTEXT_SLOTS);
    pair.generation.cache.place(7, GENERATION_SLOTS);
    pair.fill(pair.context, CONTEXT_SLOTS);
    pair.generation.transceiver.requestAndReceiveAsync(generation);
    await until(pair, () => pair.context.transceiver.receiverReady(context));
    return { context, generation };
  }

  it.each(['HND', 'NHD'] as const)('moves every page of a pipelined request, %s', async (blockLayout) => {
    const pair = await TransferPair.create({ generation: { blockLayout }, context: { blockLayout } }, open);
    const { context } = await begin(pair);
    context.outputTokens.push(4711);
    for (const [start, end] of [
      [0, 6],
      [6, 13],
      [13, 16],
    ] as const) {
      context.chunkStart = start;
      context.chunkEnd = end;
      pair.context.transceiver.respondAndSendAsync(context, { after: null });
    }
    await until(pair, () => pair.generation.settled.length + pair.context.settled.length === 2);
    expect(pair.context.settled).toMatchObject([{ outcome: 'completed', error: null }]);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'completed', error: null, firstTokens: [4711] }]);
    for (const pool of [0, 1])
      CONTEXT_SLOTS.forEach((slot, ordinal) => {
        expect(pair.page(pair.generation, pool, GENERATION_SLOTS[ordinal] as number)).toEqual(
          pair.page(pair.context, pool, slot),
        );
      });
    // Slices were bounced, aux was not.
    expect(submitted.filter(({ ticket }) => ticket !== undefined)).toHaveLength(3);
    expect(submitted.filter(({ ticket }) => ticket === undefined)).toHaveLength(1);
  });

  it('writes nothing for a receive that was cancelled, and both sides end', async () => {
    const pair = await TransferPair.create({}, open);
    const { context, generation } = await begin(pair);
    pair.generation.transceiver.cancelRequest(generation, 'test');
    context.chunkStart = 0;
    context.chunkEnd = 16;
    pair.context.transceiver.respondAndSendAsync(context, { after: null });
    await until(pair, () => pair.generation.settled.length + pair.context.settled.length === 2);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'cancelled' }]);
    for (const slot of GENERATION_SLOTS)
      expect(pair.page(pair.generation, 0, slot).every((byte) => byte === 0)).toBe(true);
  });
});
