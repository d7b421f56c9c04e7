import { encode } from '@msgpack/msgpack';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { ServerResult } from '../../../src/coordinator/disagg-server.js';
import { DEFAULT_EPOCH_MS } from '../../../src/coordinator/snowflake-ids.js';
import {
  InternalError,
  PeerLostError,
  RequestTooLargeError,
  ResourceError,
  StateError,
  WireError,
} from '../../../src/errors.js';
import type { DisaggregatedParams } from '../../../src/executor/request.js';
import { FrontIds } from '../../../src/serve/front/front-ids.js';
import { decodeFrontFrame, decodeWorkerFrame, encodeFrame } from '../../../src/serve/link/link-codec.js';
import type { FrontMessage, WorkerMessage } from '../../../src/serve/link/link-message.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { FRONT, linkWorld, WORKER } from './link-world.js';

// Required: a parameter that is new must cross the link, too.
const PARAMS: Required<DisaggregatedParams> = {
  requestType: 'context_only',
  scheduleStyle: 'generation_first',
  ctxRequestId: null,
  disaggRequestId: 0xffff_ffff_ffff_fff0n,
  ctxDpRank: null,
  ctxInfoEndpoint: 'tcp://127.0.0.1:3000',
  genInfoEndpoint: 'tcp://127.0.0.1:3001',
  firstGenTokens: [1, 0xffff_ffff],
  firstGenLogProbs: [-0.5, Number.NEGATIVE_INFINITY],
  draftTokens: [3],
  ctxUsage: { promptTokens: 7, cachedTokens: 4 },
  traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
};
const REQUEST = {
  promptTokens: Uint32Array.of(1, 0xffff_ffff, 3),
  maxTokens: 4,
  params: PARAMS,
  transferPolicy: { pipelined: true, earlyPrefix: false },
  sampling: { temperature: 0.7, topP: 0.9, seed: 2 ** 40 },
  stopTokens: [0, 0xffff_ffff],
};

async function opened() {
  const world = linkWorld();
  const worker = world.startWorker();
  world.link.attach(WORKER);
  await world.clock.run(5);
  return { ...world, ...worker };
}

describe('a link', () => {
  it('is down until the worker answers, then says who it is', async () => {
    const { clock, link, startWorker } = linkWorld();
    expect(link.condition()).toEqual({ phase: 'down', incarnation: 0n, reason: 'it was not started yet' });
    expect(() => link.submit(REQUEST, {})).toThrow(StateError);
    link.attach(WORKER);
    await clock.run(600);
    expect(link.condition()).toMatchObject({ phase: 'down', reason: 'it did not answer yet' });
    startWorker();
    await clock.run(300);
    expect(link.condition()).toEqual({ phase: 'ready', incarnation: 7n, reason: '' });
    expect([link.infoEndpoint, link.pid]).toEqual(['tcp://127.0.0.1:3000', 42]);
  });

  it('says of a generation worker, too, which instance it is: requests belong to that one alone', async () => {
    const { clock, link, startWorker } = linkWorld('generation');
    expect(link.infoEndpoint).toBeNull();
    startWorker();
    link.attach(WORKER);
    await clock.run(5);
    expect(link.infoEndpoint).toBe('tcp://127.0.0.1:3000');
  });

  it('carries a request there and its tokens back', async () => {
    const { clock, link, server } = await opened();
    const seen: unknown[] = [];
    const call = link.submit(REQUEST, {
      onToken: (token, index) => seen.push([token, index]),
      onContextAnswer: (answer) => seen.push(answer),
    });
    await clock.run(2);
    expect(server.last.request).toEqual(REQUEST);
    server.last.events.onContextAnswer?.(PARAMS);
    server.last.events.onToken?.(5, 0);
    server.last.events.onToken?.(6, 1);
    const counted = { usage: { promptTokens: 3, cachedTokens: 2 }, contextUsage: { promptTokens: 3, cachedTokens: 1 } };
    server.last.end({ outputTokens: [5, 6], ...counted });
    await clock.run(2);
    expect(seen).toEqual([PARAMS, [5, 0], [6, 1]]);
    expect(await call.done).toEqual({
      outcome: 'completed',
      outputTokens: [5, 6],
      error: null,
      ...counted,
    });
    expect(link.liveCalls).toBe(0);
  });

  it('puts what one turn says into one frame', async () => {
    const { clock, wires, link, server } = await opened();
    for (let i = 0; i < 300; i++) link.submit(REQUEST, {});
    const before = wires.sent.length;
    await clock.run(2);
    for (const { events } of server.submitted) events.onToken?.(1, 0);
    await clock.run(2);
    const toWorker = wires.sent.slice(before).filter(({ to }) => to === WORKER);
    const toFront = wires.sent.slice(before).filter(({ to }) => to === FRONT);
    expect([server.submitted.length, toWorker.length, toFront.length]).toEqual([300, 1, 1]);
  });

  it('cancels once, and an error arrives with its class', async () => {
    const { clock, link, server, log } = await opened();
    const call = link.submit(REQUEST, {});
    call.cancel();
    call.cancel();
    await clock.run(2);
    server.last.end({ outcome: 'failed', error: new RequestTooLargeError('too large') });
    await clock.run(2);
    expect(log).toEqual(['worker context_only', 'worker cancel']);
    const { error } = await call.done;
    expect(error).toBeInstanceOf(RequestTooLargeError);
    expect(error).toMatchObject({ message: 'too large', code: 'ERR_KVT_REQUEST_TOO_LARGE', retryable: false });
  });

  it.each([
    [new StateError('closing'), ResourceError, true],
    [new RequestTooLargeError('too large'), RequestTooLargeError, false],
    [new InternalError('a bug'), InternalError, false],
  ])('a refusal by %s may be taken elsewhere: %#', async (refusal, kind, retryable) => {
    const { clock, link, server } = await opened();
    server.refusal = refusal;
    const call = link.submit(REQUEST, {});
    await clock.run(2);
    const { error } = await call.done;
    expect(error).toBeInstanceOf(kind);
    expect(error?.retryable).toBe(retryable);
  });

  it('asks for metrics, and does not wait for them for ever', async () => {
    const { clock, link, wires } = await opened();
    const text = link.metrics();
    await clock.run(2);
    expect(await text).toBe('up 1\n');
    wires.fate = (to) => (to === FRONT ? 'is lost' : 'arrives');
    const silent = link.metrics();
    await clock.run(2100);
    expect(await silent).toBeNull();
  });

  it('tells at once that it is about to end', async () => {
    const { clock, link, host } = await opened();
    host.drain();
    await clock.run(2);
    expect(link.condition()).toMatchObject({ phase: 'draining', reason: 'it is about to end' });
    await clock.run(3000);
    expect(link.condition().phase).toBe('draining');
  });
});

describe('a worker that is not the right one', () => {
  it.each([
    [{ engine: 'other' }, /runs other, and was asked for tiny/],
    [{ role: 'generation' as const }, /is a generation server, and was asked to be a context server/],
  ])('%j', async (more, reason) => {
    const { clock, link, startWorker, warnings } = linkWorld();
    startWorker(more);
    link.attach(WORKER);
    await clock.run(1000);
    expect(link.condition()).toMatchObject({ phase: 'down', reason: expect.stringMatching(reason) });
    expect(warnings).toHaveLength(1);
  });
});

describe('two fronts that draw the same part of the request ids', () => {
  async function both(...draws: number[]) {
    const world = await opened();
    const other = world.startFront(1001, ...draws);
    const link = other.links.add('context-0', 'context');
    link.attach(WORKER);
    return { ...world, other, otherLink: link };
  }

  it('the second is refused by name, draws another one, and is served', async () => {
    const { clock, link, host, ids, other, otherLink, warnings } = await both(17, 5);
    await clock.run(1);
    expect(otherLink.condition()).toMatchObject({
      phase: 'down',
      reason:
        'another front here makes the same request ids (node_id 0, process 17); give each front a node_id of its own',
    });
    expect(warnings).toHaveLength(1);
    await clock.run(300);
    expect([link.condition().phase, otherLink.condition().phase]).toEqual(['ready', 'ready']);
    expect([ids.origin, other.ids.origin]).toEqual([
      { nodeId: 0, processId: 17 },
      { nodeId: 0, processId: 5 },
    ]);
    expect(host.sessionCount).toBe(2);
    const [ours, theirs] = [ids.ids.next(), other.ids.ids.next()];
    expect([(ours >> 9n) & 63n, (theirs >> 9n) & 63n]).toEqual([17n, 5n]);
  });

  it('the requests of the first go on', async () => {
    const { clock, link, log } = await both(17, 5);
    link.submit(REQUEST, {});
    await clock.run(600);
    expect(log).toEqual(['worker context_only']);
  });

  it('a front that moved says so: what it had is free, what it has is not', async () => {
    const { clock, ids, other, startFront, host } = await both(40);
    await clock.run(5);
    ids.refused(ids.origin);
    await clock.run(5);
    const moved = ids.origin.processId;
    const third = startFront(1002, 17);
    third.links.add('context-0', 'context').attach(WORKER);
    const fourth = startFront(1003, moved, 30);
    fourth.links.add('context-0', 'context').attach(WORKER);
    await clock.run(600);
    expect([third.ids.origin.processId, other.ids.origin.processId, host.sessionCount]).toEqual([17, 40, 4]);
    expect(fourth.ids.origin.processId).not.toBe(moved);
  });

  it('a front that finds every one taken says what to do, and asks again', async () => {
    const { ids } = linkWorld();
    const warnings: string[] = [];
    const crowded = new FrontIds({
      clock: new FakeClock(),
      unixTimeAtOriginMs: DEFAULT_EPOCH_MS + 1e9,
      nodeId: 3,
      onWarning: (message) => warnings.push(message),
    });
    crowded.refused(ids.origin);
    const seen = new Set<number>();
    for (let i = 0; i < 64; i++) {
      seen.add(crowded.origin.processId);
      crowded.refused(crowded.origin);
    }
    expect(seen.size).toBe(64);
    expect(warnings).toEqual([expect.stringMatching(/64 fronts of node_id 3 .* another node_id$/)]);
    const last = crowded.origin;
    crowded.refused({ ...last, nodeId: 4 });
    expect(crowded.origin).toEqual(last);
  });
});

describe('what breaks ends every call', () => {
  async function failed(done: Promise<ServerResult>): Promise<void> {
    const { outcome, error } = await done;
    expect(outcome).toBe('failed');
    expect(error).toBeInstanceOf(PeerLostError);
  }

  it('the worker is killed, and another one takes its place', async () => {
    const { clock, wires, link, startWorker } = await opened();
    const call = link.submit(REQUEST, {});
    await clock.run(2);
    wires.kill(WORKER);
    await failed(call.done);
    expect(link.condition().phase).toBe('down');
    const { server } = startWorker({ incarnation: 8n });
    await clock.run(300);
    expect(link.condition()).toMatchObject({ phase: 'ready', incarnation: 8n });
    link.submit(REQUEST, {});
    await clock.run(2);
    expect(server.submitted).toHaveLength(1);
  });

  it('a frame to the front is lost', async () => {
    const { clock, wires, link, server, log, warnings } = await opened();
    const call = link.submit(REQUEST, {});
    await clock.run(2);
    wires.fate = () => 'is lost';
    server.last.events.onToken?.(1, 0);
    await clock.run(1);
    wires.fate = () => 'arrives';
    server.last.events.onToken?.(2, 1);
    await clock.run(5);
    await failed(call.done);
    expect(warnings).toEqual(['context-0 at tcp://127.0.0.1:2000 was lost: frame 1 of its session was lost']);
    // The worker heard of the new session, and ended what the old one had.
    expect(log).toEqual(['worker context_only', 'worker cancel']);
    expect(link.condition().phase).toBe('ready');
  });

  it('the worker is gone, which is news unless this process is about to end, too', async () => {
    for (const isEnding of [false, true]) {
      const { clock, wires, link, warnings, ending } = await opened();
      const call = link.submit(REQUEST, {});
      await clock.run(2);
      wires.kill(WORKER);
      // The signal comes to both at once, and the news may be faster.
      ending.is = isEnding;
      await clock.run(5);
      await failed(call.done);
      expect(link.condition().phase).toBe('down');
      expect(warnings).toEqual(isEnding ? [] : [`context-0 at ${WORKER} was lost: its connection broke`]);
    }
  });

  it('a frame to the worker is lost', async () => {
    const { clock, wires, link, server } = await opened();
    wires.fate = () => 'is lost';
    const call = link.submit(REQUEST, {});
    await clock.run(1);
    wires.fate = () => 'arrives';
    await clock.run(2500);
    await failed(call.done);
    expect(server.submitted).toHaveLength(0);
    expect(link.condition().phase).toBe('ready');
  });

  it('the worker says nothing any more', async () => {
    const { clock, wires, link } = await opened();
    const call = link.submit(REQUEST, {});
    wires.fate = (to) => (to === FRONT ? 'is lost' : 'arrives');
    await clock.run(17_000);
    await failed(call.done);
    expect(link.condition()).toMatchObject({
      phase: 'down',
      reason: expect.stringMatching(/said nothing for 1[56] s/),
    });
  });

  it('the front says nothing any more: its requests are cancelled', async () => {
    const { clock, wires, link, log, host } = await opened();
    link.submit(REQUEST, {});
    await clock.run(2);
    wires.fate = () => 'is lost';
    await clock.run(17_000);
    expect(log).toEqual(['worker context_only', 'worker cancel']);
    expect([host.sessionCount, host.liveCalls]).toEqual([0, 0]);
  });

  it('the front is killed: its requests are cancelled at once', async () => {
    const { clock, wires, link, log, host } = await opened();
    link.submit(REQUEST, {});
    await clock.run(2);
    wires.kill(FRONT);
    expect(log).toEqual(['worker context_only', 'worker cancel']);
    expect(host.sessionCount).toBe(0);
  });

  it('the worker is detached', async () => {
    const { clock, link, host, log } = await opened();
    const call = link.submit(REQUEST, {});
    await clock.run(2);
    link.detach('its process was ended by SIGKILL');
    await failed(call.done);
    await clock.run(2);
    expect(log).toEqual(['worker context_only', 'worker cancel']);
    expect(host.sessionCount).toBe(0);
    expect(link.condition().reason).toBe('its process was ended by SIGKILL');
  });

  it('tokens that do not follow each other', async () => {
    const { clock, link, server } = await opened();
    const call = link.submit(REQUEST, {});
    await clock.run(2);
    server.last.events.onToken?.(1, 1);
    await clock.run(2);
    await failed(call.done);
  });
});

describe('frames', () => {
  const SESSION = 5n;
  const fronts: FrontMessage[] = [
    { type: 'hello', endpoint: FRONT, role: 'context', engine: 'tiny', ids: { nodeId: 255, processId: 63 } },
    { type: 'submit', call: 1, ...REQUEST },
    { type: 'submit', call: 2, ...REQUEST, transferPolicy: null, sampling: null },
    { type: 'cancel', call: 1 },
    { type: 'ping', endpoint: FRONT },
    { type: 'metrics', query: 3 },
    { type: 'bye' },
  ];
  const workers: WorkerMessage[] = [
    { type: 'welcome', incarnation: 2n ** 64n - 1n, infoEndpoint: FRONT, pid: 1, phase: 'ready' },
    { type: 'refused', reason: 'no', takenIds: null },
    { type: 'refused', reason: 'no', takenIds: { nodeId: 0, processId: 63 } },
    { type: 'unknown' },
    { type: 'answer', call: 1, params: PARAMS },
    { type: 'tokens', call: 1, index: 0, tokens: [0, 0xffff_ffff] },
    {
      type: 'done',
      call: 1,
      outcome: 'failed',
      tokenCount: 2,
      error: { code: 'ERR_KVT_WIRE', message: 'x' },
      usage: null,
      contextUsage: null,
      refused: true,
    },
    { type: 'pong', phase: 'draining' },
    { type: 'metrics', query: 3, text: 'a 1\n' },
  ];

  it('come back as they went', () => {
    const front = { session: SESSION, sequence: 9, messages: fronts };
    expect(decodeFrontFrame(encodeFrame(front))).toEqual(front);
    const worker = { session: 2n ** 64n - 1n, sequence: 0, messages: workers };
    expect(decodeWorkerFrame(encodeFrame(worker))).toEqual(worker);
  });

  it('of the other end are refused', () => {
    expect(() => decodeFrontFrame(encodeFrame({ session: SESSION, sequence: 1, messages: workers }))).toThrow(
      WireError,
    );
    expect(() => decodeWorkerFrame(encodeFrame({ session: SESSION, sequence: 1, messages: fronts }))).toThrow(
      WireError,
    );
  });

  it.each<[string, unknown]>([
    ['another version', { v: 1, s: SESSION, n: 1, m: [] }],
    ['no session', { v: 2, n: 1, m: [] }],
    [
      'a file instead of an address',
      { v: 2, s: SESSION, n: 0, m: [{ type: 'hello', endpoint: 'ipc:///tmp/x', role: 'context', engine: '' }] },
    ],
    [
      'ids of a process that none can have',
      { v: 2, s: SESSION, n: 0, m: [{ ...fronts[0], ids: { nodeId: 0, processId: 64 } }] },
    ],
    ['ids of nobody', { v: 2, s: SESSION, n: 0, m: [{ ...fronts[0], ids: null }] }],
    ['half a token', { v: 2, s: SESSION, n: 1, m: [{ ...fronts[1], promptTokens: new Uint8Array(3), call: 1 }] }],
    [
      'no tokens to generate',
      { v: 2, s: SESSION, n: 1, m: [{ ...fronts[1], promptTokens: new Uint8Array(4), maxTokens: 0 }] },
    ],
    [
      'tokens to stop at without an end',
      { v: 2, s: SESSION, n: 1, m: [{ ...fronts[1], stopTokens: Array(257).fill(1) }] },
    ],
    ['a list', [1, 2]],
  ])('with %s are refused', (_, value) => {
    expect(() => decodeFrontFrame(encode(value, { useBigInt64: true }))).toThrow(WireError);
  });

  it('of whatever bytes are refused by a typed error, or are frames', () => {
    const whole = encodeFrame({ session: SESSION, sequence: 1, messages: fronts });
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 64 }), fc.nat(whole.length - 1), fc.nat(255), (bytes, at, value) => {
        for (const frame of [bytes, whole.map((byte, index) => (index === at ? value : byte)), whole.subarray(0, at)]) {
          try {
            decodeFrontFrame(frame);
          } catch (error) {
            expect(error).toBeInstanceOf(WireError);
          }
        }
      }),
      { numRuns: 300 },
    );
  });

  it('that nobody sends are counted, told once, and change nothing', async () => {
    const { clock, wires, front, link, warnings } = await opened();
    const stranger = wires.bind(4000);
    for (const to of [FRONT, WORKER]) for (let i = 0; i < 3; i++) stranger.send(to, Uint8Array.of(1, 2, 3));
    // A stranger who guesses the session wrongly.
    stranger.send(FRONT, encodeFrame({ session: 1n, sequence: 1, messages: [{ type: 'unknown' }] }));
    await clock.run(5);
    expect(front.badFrames).toBe(3);
    expect(warnings).toHaveLength(2);
    expect(link.condition().phase).toBe('ready');
  });
});
