import { describe, expect, it } from 'vitest';
import type { LlmRequest } from '../../../src/executor/request.js';
import { makeRequest, TransferPair } from '../../sim-lite/transfer-pair.js';

const RID = 1n << 41n;

async function asked(): Promise<{ pair: TransferPair; context: LlmRequest; generation: LlmRequest }> {
  const pair = await TransferPair.create();
  pair.context.cache.place(1, [5, 9, 2, 30, 11]);
  pair.generation.cache.place(7, [17, 3, 21, 8]);
  const generation = makeRequest(7, 'generation', { endpoint: pair.context.transceiver.endpoint });
  pair.generation.transceiver.requestAndReceiveAsync(generation);
  await pair.run(50);
  expect(pair.network.sentTypes()).toContain('ACCEPTED');
  pair.network.dropNext('WRITER_REPORT');
  return { pair, context: makeRequest(1, 'context'), generation };
}

/** How long the generation side goes without an outcome. */
async function learnsWithinMs(pair: TransferPair): Promise<number> {
  const from = pair.clock.now();
  while (pair.generation.settled.length === 0 && pair.clock.now() - from < 10_000) await pair.run(10);
  return pair.clock.now() - from;
}

describe('the answer to a question that was accepted early is lost', () => {
  it('cancelled before it began: said again after 250 ms, until it is acknowledged', async () => {
    const { pair, context } = await asked();
    expect(pair.context.transceiver.cancelRequest(context, 'its user left')).toBe(true);
    expect(await learnsWithinMs(pair)).toBeLessThan(300);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'cancelled' }]);
    await pair.run(3000, 100);
    expect(pair.network.sentTypes(({ message }) => message.type === 'WRITER_REPORT')).toHaveLength(2);
    expect(pair.context.transceiver.stats().openReports).toBe(0);
  });

  it('refused when the request came: the same', async () => {
    const { pair } = await asked();
    pair.context.transceiver.receiverReady(makeRequest(1, 'context', { promptLen: 20 }));
    expect(await learnsWithinMs(pair)).toBeLessThan(300);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_TRANSPORT' } }]);
  });
});

describe('close', () => {
  it('waits for the acknowledgement of a report that was lost, so that both sides have one outcome', async () => {
    const { pair, context } = await asked();
    context.chunkEnd = 16;
    context.outputTokens.push(1);
    pair.context.transceiver.respondAndSendAsync(context, { after: null });
    await pair.run(50);
    expect(pair.context.settled).toMatchObject([{ outcome: 'completed' }]);
    const closed = pair.context.transceiver.close(2000);
    await pair.run(500);
    expect(pair.generation.settled).toMatchObject([{ outcome: 'completed', firstTokens: [1] }]);
    await expect(closed).resolves.toEqual({ drained: true, outstanding: 0 });
    const types = pair.network.sentTypes(({ from }) => from === pair.context.transceiver.endpoint);
    expect(types.lastIndexOf('WRITER_REPORT')).toBeLessThan(types.indexOf('GOODBYE'));
  });

  it('waits no longer than its deadline, and not at all for a peer that is gone', async () => {
    const { pair, context } = await asked();
    pair.network.addRule(({ message }) => (message.type === 'REPORT_ACK' ? { copies: 0 } : null));
    pair.context.transceiver.cancelRequest(context, 'its user left');
    const from = pair.clock.now();
    let closedAtMs = Number.NaN;
    void pair.context.transceiver.close(2000).then(() => {
      closedAtMs = pair.clock.now();
    });
    await pair.run(1900, 100);
    expect(closedAtMs).toBeNaN();
    await pair.run(400, 10);
    expect(closedAtMs - from).toBeGreaterThanOrEqual(2000);
    expect(closedAtMs - from).toBeLessThan(2300);

    const second = await asked();
    second.pair.context.transceiver.cancelRequest(second.context, 'its user left');
    second.pair.kill(second.pair.generation);
    await second.pair.run(50);
    const closed = second.pair.context.transceiver.close(60_000);
    await second.pair.run(300);
    await expect(closed).resolves.toMatchObject({ drained: true });
  });
});

describe('more questions about requests that are not here yet than are kept', () => {
  it('each gets an answer, is asked on, and is served when there is room', async () => {
    const pair = await TransferPair.create();
    const { context, generation } = pair;
    const endpoint = context.transceiver.endpoint;
    const requests = Array.from({ length: 2100 }, (_, i) => {
      const request = makeRequest(100 + i, 'generation', { rid: RID + BigInt(i), endpoint });
      const { disagg } = request;
      if (disagg === null) throw new Error('a request without parameters');
      return { ...request, disagg: { ...disagg, scheduleStyle: 'context_first' as const } };
    });
    for (const request of requests) {
      generation.cache.place(request.id, [17, 3, 21, 8]);
      generation.transceiver.requestAndReceiveAsync(request);
    }
    await pair.run(100);
    const answers = (type: string) =>
      new Set(
        pair.network.log.flatMap(({ message }) => (message.type === type && 'rid' in message ? [message.rid] : [])),
      );
    expect(answers('ACCEPTED').size).toBe(2048);
    const refused = answers('WRITER_REPORT');
    expect(refused.size).toBe(52);
    expect(pair.network.log.find(({ message }) => message.type === 'WRITER_REPORT')?.message).toMatchObject({
      outcome: 'REFUSED',
      errorCode: 'ERR_KVT_RESOURCE',
      drained: false,
    });
    expect(generation.settled).toEqual([]);
    // One of those that were kept ends, and one of the others takes its place.
    generation.transceiver.cancelRequest(requests[0] as LlmRequest, 'its user left');
    await pair.run(2100, 100);
    expect(answers('ACCEPTED').size).toBe(2049);
    expect(generation.settled).toMatchObject([{ outcome: 'cancelled' }]);
    const last = [...answers('ACCEPTED')].find((rid) => refused.has(rid)) as bigint;
    context.cache.place(1, [5, 9, 2, 30]);
    const send = makeRequest(1, 'context', { rid: last });
    send.chunkEnd = 16;
    send.outputTokens.push(1);
    context.transceiver.respondAndSendAsync(send, { after: null });
    await pair.run(100);
    expect(generation.settled).toMatchObject([{}, { request: { id: 100 + Number(last - RID) }, outcome: 'completed' }]);
  });

  it('one that never finds room says so when its time is over', async () => {
    const { pair } = await asked();
    const { context, generation } = pair;
    const endpoint = context.transceiver.endpoint;
    for (let i = 1; i < 2048; i++) {
      const { disagg, ...rest } = makeRequest(100 + i, 'generation', { rid: RID + BigInt(i), endpoint });
      if (disagg === null) throw new Error('a request without parameters');
      generation.cache.place(rest.id, [17, 3, 21, 8]);
      generation.transceiver.requestAndReceiveAsync({ ...rest, disagg: { ...disagg, scheduleStyle: 'context_first' } });
    }
    await pair.run(10);
    const late = makeRequest(9, 'generation', { rid: RID + 9999n, endpoint });
    const { disagg } = late;
    if (disagg === null) throw new Error('a request without parameters');
    generation.cache.place(9, [1, 2, 4, 5]);
    const request = { ...late, disagg: { ...disagg, scheduleStyle: 'context_first' as const } };
    generation.transceiver.requestAndReceiveAsync(request);
    await pair.run(21_000, 100);
    const ended = generation.settled.find((settled) => settled.request === request);
    expect(ended?.outcome).toBe('failed');
    expect(ended?.error?.code).toBe('ERR_KVT_TRANSFER_TIMEOUT');
    expect(ended?.error?.message).toContain('no room for its question');
  });
});
