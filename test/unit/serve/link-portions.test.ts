import { describe, expect, it } from 'vitest';
import type { ServerCall, ServerResult } from '../../../src/coordinator/disagg-server.js';
import { PeerLostError, StateError } from '../../../src/errors.js';
import type { DisaggregatedParams } from '../../../src/executor/request.js';
import { FRAME_MESSAGES, MAX_CALLS } from '../../../src/serve/link/link-limits.js';
import { RemoteCall } from '../../../src/serve/link/remote-call.js';
import { SessionCalls } from '../../../src/serve/link/session-calls.js';
import { CallbackGuard } from '../../../src/session/callback-guard.js';
import { Counters } from '../../../src/session/counters.js';
import { TurnBudget } from '../../../src/turn-budget.js';
import { SpentClock } from '../../sim-lite/spent-clock.js';
import { linkWorld, WORKER } from './link-world.js';

const PARAMS: DisaggregatedParams = {
  requestType: 'generation_only',
  scheduleStyle: 'generation_first',
  ctxRequestId: null,
  disaggRequestId: 2n ** 50n,
  ctxDpRank: null,
  ctxInfoEndpoint: 'tcp://127.0.0.1:3000',
  genInfoEndpoint: null,
  firstGenTokens: [],
  draftTokens: [],
  traceparent: '',
};
const REQUEST = { promptTokens: Uint32Array.of(1, 2), maxTokens: 8, params: PARAMS, transferPolicy: null };

/** A link whose every portion is one unit, with so many calls at the worker. */
async function opened(count: number) {
  const world = linkWorld('generation', new SpentClock());
  const worker = world.startWorker();
  world.link.attach(WORKER);
  await world.clock.run(5);
  const ends: (ServerResult | null)[] = [];
  const tokens: number[][] = [];
  const submit = (): ServerCall => {
    const at = ends.push(null) - 1;
    tokens.push([]);
    const call = world.link.submit(REQUEST, { onToken: (token) => tokens[at]?.push(token) });
    void call.done.then((result) => {
      expect(ends[at]).toBeNull();
      ends[at] = result;
    });
    return call;
  };
  const calls = Array.from({ length: count }, submit);
  await world.clock.run(5);
  expect(worker.server.submitted).toHaveLength(count);
  const endedCount = (): number => ends.filter((end) => end !== null).length;
  const outcomes = (): string[] => ends.map((end) => end?.error?.code ?? end?.outcome ?? 'live');
  return { ...world, ...worker, calls, ends, tokens, submit, endedCount, outcomes };
}

describe('a link, with turns of the event loop between what it hears', () => {
  it('is down as soon as its worker is lost; the calls end one after another', async () => {
    const { clock, link, wires, submit, endedCount, outcomes } = await opened(6);
    wires.kill(WORKER);
    expect(link.condition().phase).toBe('down');
    expect(submit).toThrow(StateError);
    const counts: number[] = [];
    for (let turn = 0; turn < 7; turn++) {
      await clock.turn();
      counts.push(endedCount());
    }
    expect(counts).toEqual([2, 3, 4, 5, 6, 6, 6]);
    expect(outcomes().slice(0, 6)).toEqual(Array.from({ length: 6 }, () => 'ERR_KVT_PEER_LOST'));
    expect(link.liveCalls).toBe(0);
  });

  it('what its worker said before it was lost still counts, all of it', async () => {
    const { clock, wires, server, ends, tokens, outcomes } = await opened(5);
    for (const { events } of server.submitted) for (const index of [0, 1]) events.onToken?.(40 + index, index);
    for (const { end } of server.submitted.slice(0, 3)) end({ outputTokens: [40, 41] });
    await clock.turn(2);
    clock.advance(0.2);
    wires.kill(WORKER);
    await clock.turn();
    expect(outcomes()).toEqual(['live', 'live', 'live', 'live', 'live']);
    await clock.turn(30);
    expect(outcomes()).toEqual(['completed', 'completed', 'completed', 'ERR_KVT_PEER_LOST', 'ERR_KVT_PEER_LOST']);
    expect(tokens).toEqual(Array.from({ length: 5 }, () => [40, 41]));
    expect(ends.map((end) => end?.outputTokens)).toEqual(tokens);
    expect(ends[4]?.error).toBeInstanceOf(PeerLostError);
  });

  it('after a message that makes no sense nothing that was heard is believed', async () => {
    const { clock, link, server, warnings, outcomes } = await opened(4);
    const [first, second, third] = server.submitted;
    first?.end({});
    await clock.turn(2);
    second?.events.onToken?.(1, 5);
    third?.end({});
    await clock.turn(2);
    clock.advance(0.2);
    await clock.turn(30);
    expect(outcomes()).toEqual(['completed', 'ERR_KVT_PEER_LOST', 'ERR_KVT_PEER_LOST', 'ERR_KVT_PEER_LOST']);
    expect(warnings.join()).toContain('sent token 5 after 0 tokens');
    expect(link.condition().phase).toBe('down');
  });

  it('a call that is cancelled meanwhile ends once, with the others', async () => {
    const { clock, wires, calls, outcomes } = await opened(4);
    wires.kill(WORKER);
    await clock.turn();
    for (const call of calls) call.cancel();
    await clock.turn(10);
    expect(outcomes()).toEqual(Array.from({ length: 4 }, () => 'ERR_KVT_PEER_LOST'));
  });

  it('the next worker serves new calls while those of the earlier one end', async () => {
    const { clock, link, wires, startWorker, submit, tokens, outcomes } = await opened(40);
    wires.kill(WORKER);
    const { server } = startWorker({ incarnation: 8n });
    await clock.turn();
    // The greeting needs a timer of the wires each way.
    clock.advance(0.1);
    await clock.turn();
    clock.advance(0.1);
    await clock.turn();
    expect(link.condition()).toMatchObject({ phase: 'ready', incarnation: 8n });
    expect(link.liveCalls).toBeGreaterThan(20);
    submit();
    await clock.turn(2);
    clock.advance(0.1);
    await clock.turn(2);
    server.last.events.onToken?.(77, 0);
    server.last.end({ outputTokens: [77] });
    await clock.turn(2);
    clock.advance(0.1);
    await clock.turn(3);
    expect([outcomes()[40], tokens[40]]).toEqual(['completed', [77]]);
    expect(outcomes()).toContain('live');
    await clock.turn(50);
    expect(outcomes().slice(0, 40)).toEqual(Array.from({ length: 40 }, () => 'ERR_KVT_PEER_LOST'));
    expect(link.liveCalls).toBe(0);
  });

  it('closes when each call has ended', async () => {
    const { clock, front, endedCount } = await opened(8);
    let closed = false;
    void front.close(0).then(() => {
      closed = true;
    });
    await clock.turn(3);
    expect([closed, endedCount()]).toEqual([false, 4]);
    await clock.turn(6);
    expect([closed, endedCount()]).toEqual([true, 8]);
  });
});

it('a worker that says more than can wait is heard at once, not kept in memory', async () => {
  const clock = new SpentClock();
  const guard = new CallbackGuard({ clock, counters: new Counters(), warn: () => {} });
  const broken: string[] = [];
  const session = new SessionCalls({
    worker: 'worker',
    guard,
    turns: new TurnBudget(clock),
    onBroken: ({ message }) => broken.push(message),
  });
  let count = 0;
  const onToken = (): void => void count++;
  session.add(1, new RemoteCall('worker', { onToken }, guard, () => {}));
  const frames = MAX_CALLS / FRAME_MESSAGES + 4;
  for (let frame = 0; frame < frames; frame++)
    session.hear(
      Array.from({ length: FRAME_MESSAGES }, (_, at) => {
        return { type: 'tokens' as const, call: 1, index: frame * FRAME_MESSAGES + at, tokens: [1] };
      }),
    );
  expect(count).toBe(frames * FRAME_MESSAGES - MAX_CALLS);
  await clock.turn(2);
  expect(count).toBe(frames * FRAME_MESSAGES - MAX_CALLS + 2);
  expect(broken).toEqual([]);
});
