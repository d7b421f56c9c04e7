import { describe, expect, it } from 'vitest';
import type { LlmRequest } from '../../../src/executor/request.js';
import { CallbackGuard } from '../../../src/session/callback-guard.js';
import { Counters } from '../../../src/session/counters.js';
import { PeerLinks } from '../../../src/session/peer-links.js';
import { DROP } from '../../sim-lite/fake-messenger.js';
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

  it('aux that cannot be packed leaves its slot to others at once, also while the request drains', async () => {
    const { pair, first, second } = await underWay();
    const { context } = pair;
    context.agent.scripts.push('hang');
    send(pair, first);
    drafts(first).push(...Array(200).fill(7));
    first.outputTokens.push(11);
    await pair.clock.run(200);
    expect(outcomes(pair)[0]).toEqual([]);
    pair.collect();
    expect(outcomes(pair)[0]).toEqual([[1, 'failed', 'ERR_KVT_RESOURCE']]);
    expect(context.transceiver.stats()).toMatchObject({ sendSessions: 1, freeAuxSlots: 4 });
    second.outputTokens.push(22);
    send(pair, second);
    await pair.run(300);
    context.agent.release();
    await pair.run(300);
    expect(outcomes(pair)[1]).toContainEqual([8, 'completed', null]);
    expect(context.transceiver.stats()).toMatchObject({ sendSessions: 0, held: 0, freeAuxSlots: 4 });
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

  it('a frame that sets off an error of this package ends its request at both sides within a second, and no other', async () => {
    const pair = await TransferPair.create();
    const { context, generation } = pair;
    const endpoint = context.transceiver.endpoint;
    context.cache.place(1, [5, 9, 2, 30]);
    context.cache.place(2, [6, 7, 8, 10]);
    generation.cache.place(7, [17, 3, 21, 13]);
    generation.cache.place(8, [1, 2, 4, 5]);
    const [first, second] = [makeRequest(1, 'context'), makeRequest(2, 'context', { rid: RID + 1n })];
    send(pair, first);
    const submit = context.agent.submit.bind(context.agent);
    context.agent.submit = () => {
      throw new TypeError('out of the blue');
    };
    // The question finds a slice to send.
    generation.transceiver.requestAndReceiveAsync(makeRequest(7, 'generation', { endpoint }));
    await pair.run(500);
    context.agent.submit = submit;
    expect(outcomes(pair)).toEqual([[[1, 'failed', 'ERR_KVT_INTERNAL']], [[7, 'failed', 'ERR_KVT_TRANSPORT']]]);
    expect(context.transceiver.stats()).toMatchObject({ held: 0, counters: { internal_errors: 1 } });
    expect(context.warnings.filter((line) => line.startsWith('internal error'))).toHaveLength(1);
    generation.transceiver.requestAndReceiveAsync(makeRequest(8, 'generation', { rid: RID + 1n, endpoint }));
    second.outputTokens.push(22);
    send(pair, second);
    await pair.run(300);
    expect(outcomes(pair)[1]).toContainEqual([8, 'completed', null]);
  });

  it('a report that cannot be dealt with ends its receive at once', async () => {
    const { pair, first } = await underWay();
    const { generation } = pair;
    Object.defineProperty(generation.agent, 'readBytes', {
      value: () => {
        throw new TypeError('out of the blue');
      },
    });
    first.outputTokens.push(11);
    send(pair, first);
    await pair.run(900);
    expect(outcomes(pair)[1]).toEqual([[7, 'failed', 'ERR_KVT_INTERNAL']]);
    expect(generation.transceiver.stats().counters).toMatchObject({ internal_errors: 1 });
  });

  it('timers go on when a messenger throws, and what was to be said is said later', async () => {
    const pair = await TransferPair.create();
    const { context, generation } = pair;
    context.cache.place(1, [5, 9, 2, 30]);
    generation.cache.place(7, [17, 3, 21, 13]);
    const first = makeRequest(1, 'context');
    first.outputTokens.push(11);
    const endpoint = context.transceiver.endpoint;
    const drop = pair.network.addRule(({ message }) => (message.type === 'HELLO' ? DROP : null));
    generation.transceiver.requestAndReceiveAsync(makeRequest(7, 'generation', { endpoint }));
    await pair.run(50);
    drop();
    const say = generation.messenger.send.bind(generation.messenger);
    generation.messenger.send = () => {
      throw new Error('EMFILE');
    };
    await pair.run(300);
    generation.messenger.send = say;
    send(pair, first);
    await pair.run(1000);
    expect(outcomes(pair)[1]).toEqual([[7, 'completed', null]]);
    expect(generation.transceiver.stats().counters['internal_errors']).toBeGreaterThan(0);
  });

  it('a listener, an observer and a log that throw cost nothing but themselves', async () => {
    const { pair, first } = await underWay();
    const { context, generation } = pair;
    generation.transceiver.onActivity(() => {
      throw new Error('whoever listens');
    });
    generation.warnings.push = () => {
      throw new Error('whoever logs');
    };
    first.outputTokens.push(11);
    send(pair, first);
    await pair.run(300);
    expect(outcomes(pair)[1]).toEqual([[7, 'completed', null]]);
    const { counters } = generation.transceiver.stats();
    expect(counters['internal_errors']).toBeGreaterThan(0);
    expect(context.transceiver.stats().counters).toEqual({});
    // The other one waits for a writer that is lost, and the log cannot say so.
    pair.kill(context);
    await pair.run(4000);
    expect(outcomes(pair)[1]).toEqual([
      [7, 'completed', null],
      [8, 'failed', 'ERR_KVT_PEER_LOST'],
    ]);
  });

  it('a peer whose link cannot be dealt with is refused, and whoever waits for it hears that', async () => {
    const pair = await TransferPair.create();
    const { context, generation } = pair;
    generation.cache.place(7, [17, 3, 21, 13]);
    const { rankInfo } = (await greeted(pair)).hello;
    const counters = new Counters();
    const failures: string[] = [];
    const links = new PeerLinks({
      agent: (await pair.start('other')).agent,
      counters,
      guard: new CallbackGuard({ clock: pair.clock, counters, warn: () => {} }),
      onLinked: () => {
        throw new TypeError('out of the blue');
      },
      onFailed: (_, error) => void failures.push(`${error.code} ${error.message}`),
    });
    links.begin({ ...rankInfo, endpoint: context.transceiver.endpoint }, rankInfo, { claim: null, answer: null });
    await pair.run(20);
    expect(failures).toEqual([expect.stringMatching(/^ERR_KVT_INTERNAL the link to .*: out of the blue$/)]);
    expect(links.size).toBe(0);
    expect(counters.snapshot()).toEqual({ internal_errors: 1 });
  });

  it('a session that cannot hear of a peer fails, and the peer serves the others', async () => {
    const pair = await TransferPair.create();
    const { context, generation } = pair;
    const endpoint = context.transceiver.endpoint;
    context.cache.place(2, [6, 7, 8, 10]);
    generation.cache.place(8, [1, 2, 4, 5]);
    const [first, second] = [makeRequest(1, 'context'), makeRequest(2, 'context', { rid: RID + 1n })];
    context.transceiver.receiverReady(first);
    Object.defineProperty(first.disagg, 'genInfoEndpoint', {
      get: () => {
        throw new TypeError('out of the blue');
      },
    });
    generation.transceiver.requestAndReceiveAsync(makeRequest(8, 'generation', { rid: RID + 1n, endpoint }));
    await pair.run(50);
    second.outputTokens.push(22);
    send(pair, second);
    await pair.run(300);
    expect(outcomes(pair)).toEqual([
      [
        [1, 'failed', 'ERR_KVT_INTERNAL'],
        [2, 'completed', null],
      ],
      [[8, 'completed', null]],
    ]);
  });
});

/** The HELLO that the generation rank sends. */
async function greeted(pair: TransferPair) {
  const endpoint = pair.context.transceiver.endpoint;
  pair.generation.transceiver.requestAndReceiveAsync(makeRequest(7, 'generation', { endpoint }));
  await pair.run(20);
  const frame = pair.network.log.find(({ message }) => message.type === 'HELLO');
  if (frame?.message.type !== 'HELLO') throw new Error('no HELLO was sent');
  return { hello: frame.message };
}
