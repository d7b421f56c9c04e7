import { describe, expect, it } from 'vitest';
import type { LlmRequest } from '../../../src/executor/request.js';
import { LocalRankGroup } from '../../../src/rank-group/local-rank-group.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import {
  aggregateRequest,
  contextRequest,
  disaggId,
  type Harness,
  harness,
  params,
  SCHEDULES,
  WHOLE,
} from './harness.js';
import { ClusterRank, pass } from './rank-cluster.js';

const BAD = [Number.NaN, -1, 2 ** 32, 2 ** 32 + 5, 3.7, Number.POSITIVE_INFINITY, null, '7', 7n, {}, [7]] as const;

/** Request 1 gets `token` instead of its own from the `from`th on. */
function spoil(h: Harness, token: unknown, from = 0): void {
  h.engine.spoil = (tokens) =>
    new Map<LlmRequest, unknown>(
      [...tokens].map(([request, good]) => [request, request.id === 1 && good % 100 >= from ? token : good]),
    );
}

const KINDS = {
  'an aggregate request': () => aggregateRequest(1, 8),
  'a context half, generation first': () => contextRequest(1, 8),
  'a context half, context first': () =>
    contextRequest(1, 8, {
      disagg: params('context_only', { scheduleStyle: 'context_first', disaggRequestId: disaggId(1) }),
      transferPolicy: WHOLE,
    }),
};

describe.each(SCHEDULES)('what is no token, %s', (schedule) => {
  for (const [kind, make] of Object.entries(KINDS))
    it.each(BAD.map((token) => [token]))(`fails ${kind} alone, and names the engine: %s`, async (token) => {
      const h = harness({ schedule });
      spoil(h, token);
      const [bad, good] = [make(), aggregateRequest(2, 8)];
      const given: unknown[] = [];
      h.executor.submit(bad, { onToken: (_, one) => given.push(one), onContextAnswer: (_, one) => given.push(one) });
      h.executor.submit(good);
      await h.clock.turn(200);
      expect(bad.error).toMatchObject({
        code: 'ERR_KVT_INTERNAL',
        message: expect.stringMatching(
          /^request 1: the model engine returned .+ as its token; tokens are integers in \[0, 2\^32\)$/,
        ),
      });
      expect([bad.outputTokens, given]).toEqual([[], []]);
      expect(good.outputTokens).toEqual([200, 201, 202]);
      const lines = h.take();
      expect(lines.filter((line) => line.startsWith('finished'))).toEqual([
        'finished 1 failed DISAGG_TRANS_ERROR',
        'finished 2 completed GENERATION_COMPLETE',
      ]);
      // What was computed on the way to no token is nobody's prefix.
      expect(lines.filter((line) => line.startsWith('computed 1'))).toEqual([]);
      expect(h.cache.used).toBe(0);
    });

  it.each(BAD.map((token) => [token]))('fails a decode step: %s', async (token) => {
    const h = harness({ schedule });
    spoil(h, token, 1);
    const [bad, good] = [aggregateRequest(1, 8), aggregateRequest(2, 8)];
    for (const request of [bad, good]) h.executor.submit(request);
    await h.clock.turn(200);
    expect(bad.error?.message).toMatch(/^request 1: the model engine returned .+ as its token/);
    expect(bad.outputTokens).toEqual([100]);
    expect([good.error, good.outputTokens]).toEqual([null, [200, 201, 202]]);
    expect(h.cache.used).toBe(0);
  });

  it('takes the first and the last token there is', async () => {
    const h = harness({ schedule });
    h.engine.spoil = (tokens) =>
      new Map([...tokens].map(([request, good]) => [request, good === 100 ? 0 : 2 ** 32 - 1]));
    const request = aggregateRequest(1, 8, 2);
    h.executor.submit(request);
    await h.clock.turn(200);
    expect([request.error, request.outputTokens]).toEqual([null, [0, 2 ** 32 - 1]]);
  });

  it.each([[[1, 2]], [undefined], [7], ['tokens'], [{ get: 7 }]])('fails the step for no map: %j', async (answer) => {
    const h = harness({ schedule });
    h.engine.spoil = () => answer;
    const request = aggregateRequest(1, 8);
    h.executor.submit(request);
    await h.clock.turn(200);
    expect(request.error?.message).toMatch(
      /^the model engine failed: its tokens are .+; ForwardResult\.tokens must resolve to a Map of each request to its token$/,
    );
    expect([h.cache.used, h.executor.stats().internalErrors]).toEqual([0, 0]);
  });

  it('reads a thenable whose `then` gives back nothing, once, and a map that is there already', async () => {
    for (const wrap of [
      (tokens: Promise<unknown>) => ({
        // biome-ignore lint/suspicious/noThenProperty: a thenable is what is tested
        then: (resolve: (value: unknown) => void) => {
          void tokens.then((value) => {
            resolve(value);
            resolve(new Map());
          });
        },
      }),
      () => null,
    ]) {
      const h = harness({ schedule });
      const forward = h.engine.forward.bind(h.engine);
      h.engine.forward = async (batch) => {
        const { event, tokens } = await forward(batch);
        return { event, tokens: (wrap(tokens) ?? (await tokens)) as typeof tokens };
      };
      const requests = [aggregateRequest(1, 8), aggregateRequest(2, 8)];
      for (const request of requests) h.executor.submit(request);
      await h.clock.turn(200);
      expect(requests.map(({ error, outputTokens }) => [error, outputTokens])).toEqual([
        [null, [100, 101, 102]],
        [null, [200, 201, 202]],
      ]);
      expect(h.executor.stats().internalErrors).toBe(0);
    }
  });

  it('an engine may use its map again', async () => {
    const h = harness({ schedule });
    const map = new Map<LlmRequest, number>();
    h.engine.spoil = (tokens) => {
      map.clear();
      for (const [request, token] of tokens) map.set(request, token);
      return map;
    };
    const requests = [aggregateRequest(1, 8, 3), aggregateRequest(2, 30, 2)];
    for (const request of requests) h.executor.submit(request);
    await h.clock.turn(200);
    expect(requests.map(({ outputTokens }) => outputTokens)).toEqual([
      [100, 101, 102],
      [200, 201],
    ]);
  });

  it('an engine that appends to the answer itself is told, where the answer would be cut short', async () => {
    const h = harness({ schedule });
    h.engine.spoil = (tokens) => {
      for (const [request, token] of tokens) if (request.id === 1) request.outputTokens.push(token);
      return tokens;
    };
    const [bad, good] = [aggregateRequest(1, 8, 5), aggregateRequest(2, 8)];
    for (const request of [bad, good]) h.executor.submit(request);
    await h.clock.turn(200);
    expect(bad.error?.message).toMatch(/^request 1: the model engine changed outputTokens, .* only reads it/);
    expect(good.error).toBeNull();
  });

  it('a log-prob that is none fails the context half that it travels with', async () => {
    const h = harness({ schedule });
    const requests = [Number.NaN, 'x', -0.5].map((logProb, index) => ({
      ...contextRequest(index + 1, 8),
      outputLogProbs: [logProb as number],
    }));
    for (const request of requests) h.executor.submit(request);
    await h.clock.turn(200);
    expect(requests.map(({ error }) => error?.message ?? null)).toEqual([
      'request 1: the model engine gave NaN as the log-prob of its token; it must be a number',
      'request 2: the model engine gave "x" as the log-prob of its token; it must be a number',
      null,
    ]);
  });
});

describe.each(SCHEDULES)('what is no token on one rank of three, %s', (schedule) => {
  it.each([Number.NaN, undefined])('%s: fails the request on all, and the ranks go on together', async (token) => {
    const clock = new FakeClock();
    const ranks = LocalRankGroup.of(3).map((group) => new ClusterRank(clock, group, { schedule }));
    ranks[1]?.engine.instead.set(2, token);
    ranks[2]?.engine.instead.set(5, token);
    const count = 8;
    for (const { executor } of ranks)
      for (let id = 1; id <= count; id++)
        executor.submit(id === 5 ? contextRequest(id, 5 + id) : aggregateRequest(id, 5 + id, 3));
    for (let ms = 0; ms < 5000 && ranks.some(({ outcomes }) => outcomes.length < count); ms += 20)
      await pass(clock, 20);
    await pass(clock, 200);
    const expected = Array.from({ length: count }, (_, index) => {
      const id = index + 1;
      return `${id} ${id === 2 || id === 5 ? 'failed' : 'completed'}`;
    });
    for (const rank of ranks) {
      expect(rank.lost).toEqual([]);
      expect(rank.outcomes.toSorted()).toEqual(expected);
      expect(rank.engine.batches).toEqual(ranks[0]?.engine.batches);
      for (const { free, reusable, slotCount } of rank.cache.stats()) expect(free + reusable).toBe(slotCount);
    }
    const texts = ranks.map(({ errors }) => [errors.get(2)?.message, errors.get(5)?.message]);
    expect(texts[1]?.[0]).toMatch(/^request 2: the model engine returned/);
    expect(texts[0]?.[0]).toMatch(/^rank 1: request 2: the model engine returned/);
    expect(texts[0]?.[1]).toMatch(/^rank 2: request 5: the model engine returned/);
  });
});
