import { describe, expect, it } from 'vitest';
import { ArgumentError } from '../../../src/errors.js';
import type { DisaggregatedParams } from '../../../src/executor/request.js';
import { decodeFrontFrame, encodeFrame } from '../../../src/serve/link/link-codec.js';
import { MAX_METRICS_BYTES, MAX_STOP_TOKENS, MAX_TOKENS } from '../../../src/serve/link/link-limits.js';
import type { FrontMessage } from '../../../src/serve/link/link-message.js';
import { MAX_DRAFT_TOKENS } from '../../../src/session/transferable-request.js';
import { linkWorld, WORKER } from './link-world.js';

const PARAMS: DisaggregatedParams = {
  requestType: 'context_only',
  scheduleStyle: 'generation_first',
  ctxRequestId: null,
  disaggRequestId: 5n,
  ctxDpRank: null,
  ctxInfoEndpoint: 'tcp://127.0.0.1:3000',
  firstGenTokens: [],
  draftTokens: [],
  traceparent: '',
};
const REQUEST = { promptTokens: Uint32Array.of(1, 2), maxTokens: 4, params: PARAMS, transferPolicy: null };

/** A link that is up, with a request of somebody else under way. */
async function opened() {
  const world = linkWorld();
  const worker = world.startWorker();
  world.link.attach(WORKER);
  await world.clock.run(5);
  const other = world.link.submit(REQUEST, {});
  await world.clock.run(2);
  const [first] = worker.server.submitted;
  /** The other request is served by the session that it was sent in. */
  const othersGoOn = async (): Promise<void> => {
    first?.events.onToken?.(5, 0);
    first?.end({ outputTokens: [5] });
    await world.clock.run(5);
    expect(await other.done).toMatchObject({ outcome: 'completed', outputTokens: [5], error: null });
    expect(world.link.condition().phase).toBe('ready');
  };
  return { ...world, ...worker, other, othersGoOn };
}

describe('what is thrown behind a frame or a timer of a link', () => {
  it.each(['onToken', 'onContextAnswer'] as const)(
    'by a handler of a request (%s): that one fails, and is cancelled at the worker',
    async (handler) => {
      const { clock, link, server, front, log, othersGoOn } = await opened();
      const call = link.submit(REQUEST, {
        [handler]: () => {
          throw new TypeError('out of the blue');
        },
      });
      await clock.run(2);
      server.last.events.onContextAnswer?.(PARAMS);
      server.last.events.onToken?.(7, 0);
      server.last.events.onToken?.(8, 1);
      await clock.run(2);
      // What it says is heard in portions; the cancel takes its way after that.
      await clock.run(2);
      const { outcome, error } = await call.done;
      expect([outcome, error?.code]).toEqual(['failed', 'ERR_KVT_INTERNAL']);
      expect(error?.message).toMatch(new RegExp(`^${handler} of a request at context-0: out of the blue`));
      expect(log).toContain('worker cancel');
      // What it says of it later is of no interest, and no reason to give the session up.
      server.last.end({ outcome: 'cancelled', outputTokens: [7, 8] });
      await clock.run(2);
      expect(front.internalErrors).toBe(1);
      await othersGoOn();
      expect(link.liveCalls).toBe(0);
    },
  );

  it.each([-1, 0.5, Number.NaN, 2 ** 32])(
    'by a model engine that gives %s for a token: its request fails with that',
    async (token) => {
      const { clock, link, server, host, othersGoOn } = await opened();
      const call = link.submit(REQUEST, {});
      await clock.run(2);
      server.last.events.onToken?.(7, 0);
      server.last.events.onToken?.(token, 1);
      await clock.run(2);
      expect(await call.done).toMatchObject({ outcome: 'failed', outputTokens: [7] });
      expect((await call.done).error?.message).toContain(`token 1 of the answer is ${token}, which is no token`);
      expect(host.internalErrors).toBe(1);
      await othersGoOn();
    },
  );

  it('by an answer that no frame can carry', async () => {
    const { clock, link, server, host, othersGoOn } = await opened();
    const call = link.submit(REQUEST, {});
    await clock.run(2);
    server.last.events.onContextAnswer?.({ ...PARAMS, firstGenTokens: [1], firstGenLogProbs: [Number.NaN] });
    await clock.run(2);
    expect((await call.done).error?.message).toMatch(/firstGenLogProbs\[0\] must be a number/);
    expect(host.internalErrors).toBe(1);
    await othersGoOn();
  });

  it('by an end that no frame can carry', async () => {
    const { clock, link, server, host, othersGoOn } = await opened();
    const call = link.submit(REQUEST, {});
    await clock.run(2);
    server.last.end({ contextUsage: { promptTokens: 3, cachedTokens: 3_000_000_000 } });
    await clock.run(2);
    expect(await call.done).toMatchObject({ outcome: 'failed' });
    expect((await call.done).error?.message).toMatch(/contextUsage\.cachedTokens must be an integer/);
    expect([host.liveCalls, host.internalErrors]).toEqual([1, 1]);
    await othersGoOn();
  });

  it('by a server that cannot cancel: the request has ended for its user', async () => {
    const { clock, link, server, host, othersGoOn } = await opened();
    const submit = server.submit.bind(server);
    server.submit = (request, events) => ({
      ...submit(request, events),
      cancel: () => {
        throw new TypeError('out of the blue');
      },
    });
    const call = link.submit(REQUEST, {});
    await clock.run(2);
    call.cancel();
    await clock.run(2);
    expect((await call.done).error?.message).toContain('out of the blue');
    expect([host.liveCalls, host.internalErrors]).toEqual([1, 1]);
    await othersGoOn();
  });

  it('by a server whose call is rejected', async () => {
    const { clock, link, server, othersGoOn } = await opened();
    const submit = server.submit.bind(server);
    server.submit = (request, events) => ({ ...submit(request, events), done: Promise.reject(new TypeError('no')) });
    const call = link.submit(REQUEST, {});
    await clock.run(4);
    expect((await call.done).error?.message).toContain('a request that a server took: no');
    await othersGoOn();
  });

  it('by the messenger of the front: its requests fail, and it comes back', async () => {
    const { clock, wires, link, other, front, warnings } = await opened();
    const fate = wires.fate;
    wires.fate = (to) => {
      if (to === WORKER) throw new TypeError('out of the blue');
      return fate(to);
    };
    await clock.run(1500);
    expect((await other.done).error?.message).toMatch(/context-0 was lost: .*out of the blue/);
    expect(link.condition().phase).toBe('down');
    expect(front.internalErrors).toBeGreaterThan(1);
    expect(warnings.some((line) => line.startsWith('internal error'))).toBe(true);
    wires.fate = fate;
    await clock.run(1000);
    expect(link.condition().phase).toBe('ready');
  });

  it('by the messenger of the worker: the session ends, and the front hears of it', async () => {
    const { clock, wires, link, server, host, other } = await opened();
    wires.fate = (to) => {
      if (to !== WORKER) throw new TypeError('out of the blue');
      return 'arrives';
    };
    server.last.events.onToken?.(5, 0);
    await clock.run(5);
    expect([host.sessionCount, host.liveCalls]).toEqual([0, 0]);
    wires.fate = () => 'arrives';
    await clock.run(2500);
    expect((await other.done).error?.code).toBe('ERR_KVT_PEER_LOST');
    expect(link.condition().phase).toBe('ready');
  });

  it('by whoever is warned', async () => {
    const { clock, wires, link, other, warnings } = await opened();
    warnings.push = () => {
      throw new Error('the disk is full');
    };
    wires.kill(WORKER);
    await clock.run(100);
    expect((await other.done).error?.code).toBe('ERR_KVT_PEER_LOST');
    expect(link.condition().phase).toBe('down');
  });
});

describe('a request that the worker would refuse with its whole frame', () => {
  const context = (change: Partial<DisaggregatedParams>) => ({ params: { ...PARAMS, ...change } });
  const drafts = Array(MAX_DRAFT_TOKENS + 1).fill(1) as number[];
  const bad = [
    ['draft tokens', context({ draftTokens: drafts }), /draftTokens has 120 entries; at most 119/],
    ['a draft token', context({ draftTokens: [2 ** 32] }), /draftTokens\[0\] must be an integer/],
    ['maxTokens', { maxTokens: MAX_TOKENS + 1 }, /maxTokens must be an integer in \[1, 1048576\]/],
    ['stop tokens', { stopTokens: Array(MAX_STOP_TOKENS + 1).fill(0) as number[] }, /stopTokens has 257 entries/],
    ['top_p', { sampling: { temperature: 1, topP: 0, seed: 0 } }, /topP must be a number/],
    ['its id', context({ disaggRequestId: 1n << 64n }), /disaggRequestId must be an unsigned 64-bit integer/],
    ['its endpoint', context({ ctxInfoEndpoint: 'http://x' }), /ctxInfoEndpoint must be tcp/],
    ['its trace', context({ traceparent: 'x'.repeat(129) }), /traceparent has more than 128 bytes/],
    ['prompt', { promptTokens: new Uint32Array(MAX_TOKENS + 1) }, /promptTokens has 4194308 bytes/],
  ] as const;

  it.each(bad)('%s: is refused alone, by name', async (_, change, text) => {
    const { clock, link, server, othersGoOn } = await opened();
    expect(() => link.submit({ ...REQUEST, ...change }, {})).toThrow(ArgumentError);
    expect(() => link.submit({ ...REQUEST, ...change }, {})).toThrow(text);
    await clock.run(5);
    expect([link.liveCalls, server.submitted.length]).toEqual([1, 1]);
    await othersGoOn();
  });

  it('as many draft tokens as a slot holds cross, and more where no slot carries them', async () => {
    const frame = (change: Partial<DisaggregatedParams>): Uint8Array => {
      const rest = { transferPolicy: null, sampling: null, stopTokens: [] };
      const message: FrontMessage = { type: 'submit', call: 1, ...REQUEST, ...rest, ...context(change) };
      return encodeFrame({ session: 1n, sequence: 1, messages: [message] });
    };
    const read = (change: Partial<DisaggregatedParams>) => () => decodeFrontFrame(frame(change));
    expect(read({ draftTokens: drafts })).toThrow(
      expect.objectContaining({ code: 'ERR_KVT_WIRE', reason: 'count-over-cap' }),
    );
    expect(read({ draftTokens: drafts.slice(1) })).not.toThrow();
    expect(read({ draftTokens: drafts, scheduleStyle: 'context_first' })).not.toThrow();
    expect(read({ draftTokens: drafts, requestType: 'generation_only' })).not.toThrow();
  });

  it('metrics that no frame can carry say so, and the session goes on', async () => {
    const { clock, link, startWorker } = linkWorld();
    startWorker({ metrics: 'ä'.repeat(MAX_METRICS_BYTES / 2 + 1) });
    link.attach(WORKER);
    await clock.run(5);
    const text = link.metrics();
    await clock.run(5);
    expect(await text).toBe('# 4194306 bytes of metrics do not fit a frame\n');
    expect(link.condition().phase).toBe('ready');
  });
});
