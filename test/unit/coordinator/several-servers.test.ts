import { describe, expect, it } from 'vitest';
import {
  type CoordinatorRequest,
  type CoordinatorResult,
  DEFAULT_EPOCH_MS,
  DisaggCoordinator,
  type DisaggCoordinatorOptions,
  LeastLoadedRouter,
  PrefixOverlapRouter,
  type RouteCandidate,
  type Router,
  type ServerPool,
  SnowflakeIds,
} from '../../../src/coordinator/index.js';
import { ArgumentError, CompatibilityError, PeerLostError, ResourceError, StateError } from '../../../src/errors.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { FakeServer } from './fake-server.js';

const TOKENS_PER_BLOCK = 4;

function tokens(count: number, first = 0): Uint32Array {
  return Uint32Array.from({ length: count }, (_, index) => first + index);
}

function setup(options: Partial<DisaggCoordinatorOptions> = {}) {
  const clock = new FakeClock(0);
  const log: string[] = [];
  const contexts = ['c0', 'c1', 'c2'].map((name) => new FakeServer(name, `tcp://${name}:1`, log));
  const generations = ['g0', 'g1'].map((name) => new FakeServer(name, null, log));
  const coordinator = new DisaggCoordinator({
    clock,
    ids: new SnowflakeIds({ clock, unixTimeAtOriginMs: DEFAULT_EPOCH_MS + 1e6, nodeId: 0, processId: 0 }),
    context: contexts,
    generation: generations,
    scheduleStyle: 'generation_first',
    ...options,
  });
  const results: CoordinatorResult[] = [];
  const submit = (promptTokens = tokens(8), more: Partial<CoordinatorRequest> = {}) => {
    const call = coordinator.submit({ promptTokens, maxTokens: 2, ...more });
    void call.result.then((result) => results.push(result));
    return call;
  };
  const chosen = () => log.filter((line) => line.endsWith('context_only')).map((line) => line.slice(0, 2));
  return { clock, log, contexts, generations, coordinator, results, submit, chosen };
}

function finish(server: FakeServer, result: Parameters<FakeServer['last']['end']>[0] = {}): void {
  server.last.end(result);
}

describe('routing', () => {
  it('round robin takes each server in turn, whoever comes or goes', () => {
    const s = setup();
    s.submit();
    s.submit();
    s.coordinator.contextServers.remove('c0');
    s.submit();
    s.submit();
    s.coordinator.contextServers.add(new FakeServer('c3', 'tcp://c3:1', s.log));
    s.submit();
    s.submit();
    expect(s.chosen()).toEqual(['c0', 'c1', 'c2', 'c1', 'c3', 'c2']);
    expect(s.log.filter((line) => line.startsWith('g')).map((line) => line.slice(0, 2))).toEqual([
      'g0',
      'g1',
      'g0',
      'g1',
      'g0',
      'g1',
    ]);
  });

  it('least loaded counts prompt tokens in work', async () => {
    const s = setup({ contextRouter: new LeastLoadedRouter() });
    s.submit(tokens(100));
    s.submit(tokens(10));
    s.submit(tokens(60));
    s.submit(tokens(10));
    s.submit(tokens(10));
    expect(s.chosen()).toEqual(['c0', 'c1', 'c2', 'c1', 'c1']);
    finish(s.contexts[0] as FakeServer);
    finish(s.generations[0] as FakeServer, { outputTokens: [1] });
    for (const { end } of (s.generations[0] as FakeServer).submitted) end({ outputTokens: [1] });
    await s.clock.turn();
    expect(s.coordinator.contextServers.status().map(({ liveRequests }) => liveRequests)).toEqual([0, 3, 1]);
    s.submit(tokens(10));
    expect(s.chosen().at(-1)).toBe('c0');
  });

  it('a context server that has sent its pages is free for the next prompt, however long others decode from them', async () => {
    const s = setup({ contextRouter: new LeastLoadedRouter() });
    s.submit(tokens(3000));
    s.submit(tokens(10));
    s.submit(tokens(10));
    expect(s.chosen()).toEqual(['c0', 'c1', 'c2']);
    finish(s.contexts[0] as FakeServer);
    await s.clock.turn();
    s.submit(tokens(350));
    expect(s.chosen().at(-1)).toBe('c0');
    expect(s.coordinator.stats()).toMatchObject({
      live: 4,
      context: [{ liveRequests: 1, liveTokens: 350 }, { liveRequests: 1 }, { liveRequests: 1 }],
      generation: [{ liveRequests: 2 }, { liveRequests: 2 }],
    });
  });

  it('prefix overlap goes back to a cache from which another request is still being decoded', async () => {
    const s = setup({ contextRouter: new PrefixOverlapRouter({ tokensPerBlock: TOKENS_PER_BLOCK }) });
    s.submit(tokens(44));
    finish(s.contexts[0] as FakeServer);
    await s.clock.turn();
    s.submit(tokens(40));
    expect(s.chosen()).toEqual(['c0', 'c0']);
  });

  it('a retry is routed by what the first try left behind: what it broke off at, and not who ended', async () => {
    const seen: number[][] = [];
    const generationRouter: Router = {
      choose: (candidates) => {
        seen.push(candidates.map(({ liveRequests }) => liveRequests));
        return candidates[0] as RouteCandidate;
      },
    };
    const s = setup({ generationRouter });
    s.coordinator.generationServers.remove('g1');
    s.submit();
    finish(s.generations[0] as FakeServer, { outcome: 'failed', error: new ResourceError('full') });
    await s.clock.turn();
    expect(seen).toEqual([[0], [0]]);
    // Its first context server has not said yet that it ended.
    expect(s.coordinator.contextServers.status().map(({ liveRequests }) => liveRequests)).toEqual([1, 1, 0]);
  });

  it('prefix overlap goes where the prefix is, but not at any price, and forgets a restarted server', async () => {
    const s = setup({ contextRouter: new PrefixOverlapRouter({ tokensPerBlock: TOKENS_PER_BLOCK }) });
    const end = async () => {
      for (const server of [...s.contexts, ...s.generations]) for (const one of server.submitted) one.end({});
      await s.clock.turn();
    };
    s.submit(tokens(40));
    s.submit(tokens(40, 1000));
    await end();
    s.submit(tokens(44));
    await end();
    s.submit(tokens(44, 1000));
    await end();
    expect(s.chosen()).toEqual(['c0', 'c1', 'c0', 'c1']);
    // 44 tokens are in work there: more than the 40 that are cached.
    s.submit(tokens(44));
    s.submit(tokens(40));
    expect(s.chosen().slice(4)).toEqual(['c0', 'c2']);
    await end();
    (s.contexts[1] as FakeServer).state = { phase: 'ready', incarnation: 2n, reason: '' };
    (s.contexts[0] as FakeServer).state = { phase: 'down', incarnation: 1n, reason: 'killed' };
    s.submit(tokens(40, 1000));
    s.submit(tokens(40, 1000));
    // Neither has it: in turn; then each has as much in work as cached.
    expect(new Set(s.chosen().slice(6))).toEqual(new Set(['c1', 'c2']));
  });

  it('the list of a server is bounded, and keeps what was sent last', () => {
    const router = new PrefixOverlapRouter({ tokensPerBlock: 1, rememberedBlocks: 4, loadWeight: 0 });
    const candidates = ['a', 'b'].map((name) => ({ name, incarnation: 0n, liveRequests: 0, liveTokens: 0 }));
    const choose = (promptTokens: Uint32Array) => router.choose(candidates, { promptTokens }).name;
    const first = choose(tokens(3));
    const other = choose(tokens(3, 50));
    expect(other).not.toBe(first);
    expect(choose(tokens(3))).toBe(first);
    // Six blocks: the first server keeps four of them, the beginning of the newest prompt, and nothing of the older one.
    expect(choose(Uint32Array.of(0, 1, 2, 7, 8, 9))).toBe(first);
    expect(choose(tokens(3, 50))).toBe(other);
  });

  it('a server that is not ready gets nothing; none ready is an error that says why', async () => {
    const s = setup({ maxRetries: 0 });
    const [c0, c1, c2] = s.contexts as [FakeServer, FakeServer, FakeServer];
    c0.state = { phase: 'down', incarnation: 1n, reason: 'connection refused' };
    c1.state = { phase: 'draining', incarnation: 1n, reason: '' };
    s.submit();
    s.submit();
    expect(s.chosen()).toEqual(['c2', 'c2']);
    s.coordinator.contextServers.remove(c2.name);
    s.submit();
    await s.clock.turn();
    const { error } = s.results[0] as CoordinatorResult;
    expect(error).toBeInstanceOf(ResourceError);
    expect(error?.message).toBe('no context server is ready: c0 is down (connection refused), c1 is draining');
  });
});

describe('retry', () => {
  it('once, with a new id, on other servers', async () => {
    const s = setup();
    const call = s.submit();
    const firstId = call.id;
    finish(s.generations[0] as FakeServer, { outcome: 'failed', error: new PeerLostError('gone') });
    await s.clock.turn();
    expect(s.log).toEqual([
      'g0 generation_only',
      'c0 context_only',
      'c0 cancel',
      'g1 generation_only',
      'c1 context_only',
    ]);
    expect(call.id).toBeGreaterThan(firstId);
    expect((s.contexts[1] as FakeServer).last.request.params).toMatchObject({
      disaggRequestId: call.id,
      ctxRequestId: null,
    });
    finish(s.contexts[1] as FakeServer, { usage: { promptTokens: 8, cachedTokens: 4 } });
    await s.clock.turn();
    finish(s.generations[1] as FakeServer, { outputTokens: [7, 8] });
    await s.clock.turn();
    expect(s.results).toMatchObject([
      {
        id: call.id,
        outcome: 'completed',
        attempts: 2,
        outputTokens: [7, 8],
        usage: { promptTokens: 8, cachedTokens: 4, completionTokens: 2 },
      },
    ]);
    // The first try still holds its context server.
    expect(s.coordinator.liveCount).toBe(1);
    finish(s.contexts[0] as FakeServer, { outcome: 'cancelled' });
    await s.clock.turn();
    expect(s.coordinator.liveCount).toBe(0);
    expect(s.coordinator.contextServers.status().every(({ liveRequests }) => liveRequests === 0)).toBe(true);
  });

  it('no more often than maxRetries; the last error stands', async () => {
    const s = setup({ maxRetries: 2 });
    s.submit();
    for (let index = 0; index < 3; index++) {
      finish(s.contexts[index] as FakeServer, { outcome: 'failed', error: new ResourceError(`full ${index}`) });
      await s.clock.turn();
    }
    expect(s.chosen()).toEqual(['c0', 'c1', 'c2']);
    expect(s.results).toMatchObject([{ outcome: 'failed', attempts: 3 }]);
    expect(s.results[0]?.error?.message).toBe('full 2');
  });

  it.each([
    ['an error that will not pass', new CompatibilityError('other heads'), false],
    ['a first token that the user has seen', new PeerLostError('gone'), true],
  ])('not after %s', async (_, error, withToken) => {
    const s = setup();
    s.submit(tokens(8), { onToken: () => {} });
    const g0 = s.generations[0] as FakeServer;
    if (withToken) g0.last.events.onToken?.(1, 0);
    finish(g0, { outcome: 'failed', error });
    await s.clock.turn();
    expect(s.results).toMatchObject([{ outcome: 'failed', attempts: 1, error }]);
  });

  it.each([
    ['of a user who waits for all of them', false, true, 2],
    ['that are taken back', true, true, 2],
    ['that can not be taken back', true, false, 1],
  ])('after tokens %s', async (_, isGiven, isTakenBack, attempts) => {
    const s = setup();
    const given: [number, number][] = [];
    let asked = 0;
    const takeBackTokens = (): boolean => {
      asked += 1;
      return isTakenBack;
    };
    const onToken = (token: number, index: number): void => void given.push([token, index]);
    s.submit(tokens(8), isGiven ? { onToken, takeBackTokens } : {});
    const [g0, g1] = s.generations as [FakeServer, FakeServer];
    const first = g0.last;
    s.clock.advance(10);
    first.events.onToken?.(5, 0);
    first.end({ outcome: 'failed', error: new PeerLostError('gone') });
    await s.clock.turn();
    first.events.onToken?.(6, 1);
    expect(asked).toBe(isGiven ? 1 : 0);
    if (attempts === 2) {
      s.clock.advance(10);
      for (const token of [7, 8]) g1.last.events.onToken?.(token, token - 7);
      finish(g1, { outputTokens: [7, 8] });
      for (const { submitted } of s.contexts) for (const { end } of submitted) end({});
      await s.clock.turn();
    }
    const expected =
      attempts === 2 ? { outcome: 'completed', outputTokens: [7, 8], firstTokenAtMs: 20 } : { outcome: 'failed' };
    expect(s.results).toMatchObject([{ attempts, ...expected }]);
    const second =
      attempts === 2
        ? [
            [7, 0],
            [8, 1],
          ]
        : [];
    expect(given).toEqual(isGiven ? [[5, 0], ...second] : []);
  });

  it('does not take back tokens for an error that no other try would mend', async () => {
    const s = setup();
    let asked = 0;
    const takeBackTokens = (): boolean => {
      asked += 1;
      return true;
    };
    s.submit(tokens(8), { onToken: () => {}, takeBackTokens });
    const g0 = s.generations[0] as FakeServer;
    g0.last.events.onToken?.(5, 0);
    finish(g0, { outcome: 'failed', error: new CompatibilityError('other heads') });
    await s.clock.turn();
    expect([asked, s.results.length]).toEqual([0, 1]);
  });

  it('not after a cancel, also one that comes first', async () => {
    const s = setup();
    const call = s.submit();
    call.cancel();
    finish(s.generations[0] as FakeServer, { outcome: 'failed', error: new PeerLostError('gone') });
    finish(s.contexts[0] as FakeServer, { outcome: 'cancelled' });
    await s.clock.turn();
    expect(s.results).toMatchObject([{ outcome: 'cancelled', attempts: 1 }]);
  });

  it('a server that is closing refuses, and the next one takes the request', async () => {
    const s = setup();
    (s.generations[0] as FakeServer).refusal = new StateError('closing');
    s.submit();
    await s.clock.turn();
    expect(s.log).toEqual(['g1 generation_only', 'c1 context_only']);
  });

  it('with one server a side: the same one again', async () => {
    const s = setup();
    for (const name of ['c1', 'c2']) s.coordinator.contextServers.remove(name);
    s.submit();
    finish(s.contexts[0] as FakeServer, { outcome: 'failed', error: new ResourceError('full') });
    await s.clock.turn();
    expect(s.chosen()).toEqual(['c0', 'c0']);
  });
});

describe('servers that come and go', () => {
  it('drain waits for what the server has itself, and not for what others still have of the same request', async () => {
    const s = setup();
    s.submit();
    const drained: string[] = [];
    const drain = (pool: ServerPool, name: string) => void pool.drain(name).then(() => drained.push(name));
    drain(s.coordinator.contextServers, 'c0');
    drain(s.coordinator.generationServers, 'g0');
    for (let index = 0; index < 4; index++) s.submit();
    expect(s.chosen()).toEqual(['c0', 'c1', 'c2', 'c1', 'c2']);
    expect(s.coordinator.contextServers.status()[0]).toMatchObject({
      phase: 'draining',
      reason: 'it is being drained',
    });
    // Its pages are still on their way.
    (s.generations[0] as FakeServer).last.events.onToken?.(1, 0);
    await s.clock.turn();
    expect(drained).toEqual([]);
    finish(s.contexts[0] as FakeServer);
    await s.clock.turn();
    expect(drained).toEqual(['c0']);
    finish(s.generations[0] as FakeServer, { outputTokens: [1] });
    await s.clock.turn();
    expect(drained).toEqual(['c0', 'g0']);
    await s.coordinator.contextServers.drain('no such server');
  });

  it('a dead server is replaced under its name while its requests end', async () => {
    const s = setup();
    s.submit();
    (s.contexts[0] as FakeServer).state = { phase: 'down', incarnation: 1n, reason: 'killed' };
    expect(() => s.coordinator.contextServers.add(new FakeServer('c0', null, []))).toThrow(ArgumentError);
    s.coordinator.contextServers.remove('c0');
    const replacement = new FakeServer('c0', 'tcp://c0:2', s.log);
    s.coordinator.contextServers.add(replacement);
    for (let index = 0; index < 3; index++) s.submit();
    expect(replacement.submitted).toHaveLength(1);
    finish(s.contexts[0] as FakeServer, { outcome: 'failed', error: new PeerLostError('gone') });
    await s.clock.turn();
    expect(s.coordinator.contextServers.status().find(({ name }) => name === 'c0')).toMatchObject({ phase: 'ready' });
    expect(s.coordinator.contextServers.remove('c0')).toBe(true);
    expect(s.coordinator.contextServers.remove('c0')).toBe(false);
  });
});
