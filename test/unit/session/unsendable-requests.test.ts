import { describe, expect, it } from 'vitest';
import { ArgumentError, RequestTooLargeError } from '../../../src/errors.js';
import type { DisaggregatedParams, LlmRequest } from '../../../src/executor/request.js';
import { MAX_DRAFT_TOKENS } from '../../../src/session/transferable-request.js';
import { makeRequest, type Server, TransferPair } from '../../sim-lite/transfer-pair.js';

const RID = 1n << 41n;

function changed(request: LlmRequest, change: Partial<DisaggregatedParams>): LlmRequest {
  if (request.disagg === null) throw new Error('a request without parameters');
  return { ...request, disagg: { ...request.disagg, ...change } };
}

async function pairWithPages(): Promise<TransferPair> {
  const pair = await TransferPair.create();
  const { context, generation } = pair;
  context.cache.place(1, [5, 9, 2, 30]);
  context.cache.place(2, [6, 7, 8, 10]);
  generation.cache.place(7, [17, 3, 21, 8]);
  generation.cache.place(8, [1, 2, 4, 5]);
  pair.fill(context, [5, 9, 2, 30, 6, 7, 8, 10]);
  return pair;
}

function chunk({ transceiver }: Server, request: LlmRequest, start: number, end: number): void {
  request.chunkStart = start;
  request.chunkEnd = end;
  if (end === request.promptTokens.length) request.outputTokens.push(request.id * 11);
  transceiver.respondAndSendAsync(request, { after: null });
}

describe('what no frame and no aux slot can carry is refused by the verb that brings it', () => {
  it.each([-1n, 1n << 64n])('request id %s', async (rid) => {
    const pair = await pairWithPages();
    const { context, generation } = pair;
    const receive = makeRequest(7, 'generation', { rid, endpoint: context.transceiver.endpoint });
    const send = makeRequest(1, 'context', { rid });
    expect(() => generation.transceiver.requestAndReceiveAsync(receive)).toThrow(ArgumentError);
    expect(() => generation.transceiver.requestAndReceiveAsync(receive)).toThrow(/disaggRequestId is .*\[0, 2\^64\)/);
    expect(() => context.transceiver.receiverReady(send)).toThrow(ArgumentError);
    expect(() => chunk(context, send, 0, 8)).toThrow(ArgumentError);
    for (const { transceiver } of [context, generation])
      expect(transceiver.stats()).toMatchObject({ held: 0, sendSessions: 0, receiveSessions: 0 });
    await pair.run(3000, 100);
    expect(pair.network.sentTypes(({ message }) => 'rid' in message)).toEqual([]);
  });

  it('the largest id of all is one', async () => {
    const pair = await pairWithPages();
    const rid = (1n << 64n) - 1n;
    const { context, generation } = pair;
    generation.transceiver.requestAndReceiveAsync(
      makeRequest(7, 'generation', { rid, endpoint: context.transceiver.endpoint }),
    );
    await pair.run(50);
    chunk(context, makeRequest(1, 'context', { rid }), 0, 16);
    await pair.run(100);
    expect(generation.settled).toMatchObject([{ outcome: 'completed', firstTokens: [11] }]);
  });

  it.each([
    'http://x',
    'ipc:///tmp/x',
    'tcp://127.0.0.1:99999',
    'tcp://127.0.0.1:1\n',
    '',
    `tcp://${'a'.repeat(5000)}:1`,
  ])('ctxInfoEndpoint %j', async (endpoint) => {
    const { generation, network } = await pairWithPages();
    const receive = makeRequest(7, 'generation', { endpoint });
    expect(() => generation.transceiver.requestAndReceiveAsync(receive)).toThrow(ArgumentError);
    expect(() => generation.transceiver.requestAndReceiveAsync(receive)).toThrow(/ctxInfoEndpoint must be tcp:/);
    expect(generation.transceiver.stats()).toMatchObject({ held: 0, receiveSessions: 0 });
    expect(network.log).toEqual([]);
  });

  it('draft tokens that do not fit beside the first; one fewer does', async () => {
    const pair = await pairWithPages();
    const { context, generation } = pair;
    const endpoint = context.transceiver.endpoint;
    const tokens = Array.from({ length: MAX_DRAFT_TOKENS + 1 }, (_, i) => i);
    const tooMany = changed(makeRequest(1, 'context'), { draftTokens: tokens });
    expect(() => context.transceiver.receiverReady(tooMany)).toThrow(RequestTooLargeError);
    expect(() => chunk(context, tooMany, 0, 16)).toThrow(/120 draft tokens do not fit .* at most 119/);
    expect(context.transceiver.stats()).toMatchObject({ held: 0, sendSessions: 0 });
    generation.transceiver.requestAndReceiveAsync(makeRequest(8, 'generation', { rid: RID + 1n, endpoint }));
    await pair.run(50);
    const fits = changed(makeRequest(2, 'context', { rid: RID + 1n }), { draftTokens: tokens.slice(1) });
    chunk(context, fits, 0, 16);
    await pair.run(100);
    expect(generation.settled).toMatchObject([{ outcome: 'completed', firstTokens: [22] }]);
  });
});

describe('draft tokens that are no tokens', () => {
  it.each([-1, 1.5, 2 ** 32, Number.NaN, 'x', null])('%s: refused before anything is touched', async (token) => {
    const { context } = await pairWithPages();
    const send = changed(makeRequest(1, 'context'), { draftTokens: [5, token as number] });
    const refusal = /draftTokens\[1\] is .*; tokens are integers in \[0, 2\^32\)/;
    expect(() => context.transceiver.receiverReady(send)).toThrow(ArgumentError);
    expect(() => chunk(context, send, 0, 16)).toThrow(refusal);
    expect(context.transceiver.stats()).toMatchObject({ held: 0, sendSessions: 0 });
  });

  it.each(['firstGenTokens', 'draftTokens'] as const)('%s that came with the request', async (field) => {
    const { context, generation } = await pairWithPages();
    const endpoint = context.transceiver.endpoint;
    const request = makeRequest(7, 'generation', { endpoint });
    for (const token of [Number.NaN, -1, 5n]) {
      const receive = changed(request, { scheduleStyle: 'context_first', firstGenTokens: [7], [field]: [7, token] });
      expect(() => generation.transceiver.requestAndReceiveAsync(receive)).toThrow(ArgumentError);
      expect(() => generation.transceiver.requestAndReceiveAsync(receive)).toThrow(
        new RegExp(`disagg\\.${field}\\[1\\] is (NaN|-1|5n); tokens are integers in \\[0, 2\\^32\\)`),
      );
    }
    expect(generation.transceiver.stats()).toMatchObject({ held: 0, receiveSessions: 0 });
  });

  it('the largest token arrives', async () => {
    const pair = await pairWithPages();
    const { context, generation } = pair;
    const receive = makeRequest(8, 'generation', { rid: RID + 1n, endpoint: context.transceiver.endpoint });
    generation.transceiver.requestAndReceiveAsync(receive);
    await pair.run(50);
    const send = changed(makeRequest(2, 'context', { rid: RID + 1n }), { draftTokens: [0, 2 ** 32 - 1] });
    chunk(context, send, 0, 16);
    await pair.run(100);
    expect(receive.contextAnswer).toMatchObject({ draftTokens: [0, 2 ** 32 - 1] });
  });
});

describe('two live requests with one id', () => {
  it('context: the other is refused before anything is touched, its cancel ends nothing, the first completes with its own pages', async () => {
    const pair = await pairWithPages();
    const { context, generation } = pair;
    const first = makeRequest(1, 'context');
    const other = makeRequest(2, 'context');
    generation.transceiver.requestAndReceiveAsync(
      makeRequest(7, 'generation', { endpoint: context.transceiver.endpoint }),
    );
    await pair.run(50);
    chunk(context, first, 0, 8);
    await pair.run(50);
    expect(() => context.transceiver.receiverReady(other)).toThrow(/that of request 1, which is being sent/);
    other.chunkStart = 0;
    other.chunkEnd = 16;
    expect(() =>
      context.transceiver.sendEarlyPrefix({ ...other, prepopulatedLen: 4, chunkStart: 4 }, { after: null }),
    ).toThrow(ArgumentError);
    expect(() => chunk(context, other, 8, 16)).toThrow(ArgumentError);
    expect(context.transceiver.cancelRequest(other, 'its user left')).toBe(true);
    expect(context.cache.isPinned(2)).toBe(false);
    await pair.run(100);
    expect([...context.settled, ...generation.settled]).toEqual([]);
    chunk(context, first, 8, 16);
    await pair.run(100);
    expect(context.settled).toMatchObject([{ request: { id: 1 }, outcome: 'completed' }]);
    expect(generation.settled).toMatchObject([{ outcome: 'completed', firstTokens: [11] }]);
    for (const [i, slot] of [17, 3, 21, 8].entries())
      expect(pair.page(generation, 0, slot)).toEqual(pair.page(context, 0, [5, 9, 2, 30][i] as number));
    expect(pair.network.sentTypes(({ message }) => message.type === 'CANCEL')).toEqual([]);
  });

  it('generation: the other is refused before anything is touched, its cancel says nothing, the first completes', async () => {
    const pair = await pairWithPages();
    const { context, generation } = pair;
    const endpoint = context.transceiver.endpoint;
    const other = makeRequest(8, 'generation', { endpoint });
    generation.transceiver.requestAndReceiveAsync(makeRequest(7, 'generation', { endpoint }));
    expect(() => generation.transceiver.requestAndReceiveAsync(other)).toThrow(
      /that of request 7, which is being received/,
    );
    await pair.run(50);
    expect(generation.transceiver.cancelRequest(other, 'its user left')).toBe(true);
    expect(generation.cache.isPinned(8)).toBe(false);
    chunk(context, makeRequest(1, 'context'), 0, 16);
    await pair.run(100);
    expect(generation.settled).toMatchObject([{ request: { id: 7 }, outcome: 'completed', firstTokens: [11] }]);
    expect(pair.network.sentTypes(({ message }) => message.type === 'CANCEL')).toEqual([]);
    // It is over: the id may be used again.
    const again = makeRequest(8, 'generation', { endpoint });
    expect(() => generation.transceiver.requestAndReceiveAsync(again)).not.toThrow();
  });
});
