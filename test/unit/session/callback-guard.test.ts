import { describe, expect, it } from 'vitest';
import type { LlmRequest } from '../../../src/executor/request.js';
import { makeRequest, TransferPair } from '../../sim-lite/transfer-pair.js';

const RID = 1n << 41n;

/** Two requests that are asked for; the first has its prompt sent, and lacks its token. */
async function underWay(): Promise<{ pair: TransferPair; first: LlmRequest; second: LlmRequest }> {
  const pair = await TransferPair.create();
  const { context, generation } = pair;
  const endpoint = context.transceiver.endpoint;
  const [first, second] = [makeRequest(1, 'context'), makeRequest(2, 'context', { rid: RID + 1n })];
  context.cache.place(1, [5, 9, 2, 30]);
  context.cache.place(2, [6, 7, 8, 10]);
  generation.cache.place(7, [17, 3, 21, 13]);
  generation.cache.place(8, [1, 2, 4, 5]);
  generation.transceiver.requestAndReceiveAsync(makeRequest(7, 'generation', { endpoint }));
  generation.transceiver.requestAndReceiveAsync(makeRequest(8, 'generation', { rid: RID + 1n, endpoint }));
  await pair.run(50);
  return { pair, first, second };
}

function send(pair: TransferPair, request: LlmRequest): void {
  request.chunkEnd = 16;
  pair.context.transceiver.respondAndSendAsync(request, { after: null });
}

function drafts({ disagg }: LlmRequest): number[] {
  if (disagg === null) throw new Error('a request without parameters');
  return disagg.draftTokens as number[];
}

function outcomes(pair: TransferPair): unknown[][] {
  return [pair.context, pair.generation].map(({ settled }) =>
    settled.map(({ request, outcome, error }) => [request.id, outcome, error?.code ?? null]).sort(),
  );
}

describe('what goes wrong under a timer or a completion', () => {
  it('draft tokens that outgrow their slot while the request runs end it, at both sides, and nothing else', async () => {
    const { pair, first, second } = await underWay();
    send(pair, first);
    drafts(first).push(...Array(200).fill(7));
    await pair.run(50);
    first.outputTokens.push(11);
    second.outputTokens.push(22);
    // Without a verb of the executor: the sweep finds the token.
    await pair.clock.run(200);
    send(pair, second);
    await pair.run(300);
    expect(outcomes(pair)).toEqual([
      [
        [1, 'failed', 'ERR_KVT_RESOURCE'],
        [2, 'completed', null],
      ],
      [
        [7, 'failed', 'ERR_KVT_TRANSPORT'],
        [8, 'completed', null],
      ],
    ]);
    expect(pair.context.cache.isPinned(1)).toBe(false);
    expect(pair.context.transceiver.stats()).toMatchObject({ freeAuxSlots: 4, held: 0, counters: {} });
  });

  it('an error of this package ends the request that it met, is counted and logged, and the others of the batch complete', async () => {
    const { pair, first, second } = await underWay();
    const { context } = pair;
    first.outputTokens.push(11);
    second.outputTokens.push(22);
    Object.defineProperty(first, 'prepopulatedLen', {
      get: () => {
        throw new TypeError('out of the blue');
      },
    });
    first.chunkEnd = 16;
    // Its token is packed when the last slice is there.
    expect(() => context.transceiver.respondAndSendAsync(first, { after: null })).toThrow('out of the blue');
    send(pair, second);
    await pair.run(300);
    expect(outcomes(pair)[1]).toContainEqual([8, 'completed', null]);
    expect(outcomes(pair)[0]).toContainEqual([2, 'completed', null]);
  });

  it('a question that no frame can carry fails its request at once, and no other', async () => {
    const { pair, second } = await underWay();
    const { generation, context } = pair;
    generation.cache.place(9, [24, 25, 26, 27]);
    const detach = generation.transceiver.observe({ onStarted: () => 'x'.repeat(70_000) });
    const endpoint = context.transceiver.endpoint;
    generation.transceiver.requestAndReceiveAsync(makeRequest(9, 'generation', { rid: RID + 2n, endpoint }));
    detach();
    await pair.run(20);
    expect(generation.settled).toMatchObject([{ request: { id: 9 }, outcome: 'failed' }]);
    expect(generation.settled[0]?.error).toMatchObject({
      code: 'ERR_KVT_ARGUMENT',
      message: expect.stringContaining('traceparent'),
    });
    expect(generation.transceiver.stats()).toMatchObject({ held: 2, counters: { 'unsendable:REQUEST_DATA': 1 } });
    second.outputTokens.push(22);
    send(pair, second);
    await pair.run(3000, 100);
    expect(outcomes(pair)[1]).toContainEqual([8, 'completed', null]);
    // All that was said of it is that nobody will ask.
    const said = pair.network.log.filter(({ message }) => 'rid' in message && message.rid === RID + 2n);
    expect(said.map(({ message }) => message.type)).toEqual(['CANCEL', 'WRITER_REPORT', 'REPORT_ACK']);
  });
});
