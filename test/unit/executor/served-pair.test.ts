import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { CoordinatorResult } from '../../../src/coordinator/coordinator-request.js';
import { createRequest } from '../../../src/executor/create-request.js';
import type { TransferPolicy } from '../../../src/executor/request.js';
import { PIPELINED, params, prompt, SCHEDULES, WHOLE } from './harness.js';
import { ServedPair } from './served-pair.js';

const NOTHING_LEFT = Array.from({ length: 2 }, () => ({
  pinned: [0, 0],
  owned: [0, 0],
  held: 0,
  sessions: 0,
  freeAuxSlots: 8,
  live: 0,
}));

/** Submits, runs until both servers ended everything, and returns the results in order of submission. */
async function serve(
  pair: ServedPair,
  requests: readonly {
    promptTokens: Uint32Array;
    maxTokens: number;
    policy?: TransferPolicy;
    cancelAfterMs?: number;
  }[],
): Promise<(CoordinatorResult | undefined)[]> {
  const results: (CoordinatorResult | undefined)[] = requests.map(() => undefined);
  requests.forEach(({ promptTokens, maxTokens, policy, cancelAfterMs }, index) => {
    const call = pair.coordinator.submit({
      promptTokens,
      maxTokens,
      ...(policy === undefined ? {} : { transferPolicy: policy }),
    });
    void call.result.then((result) => {
      results[index] = result;
    });
    if (cancelAfterMs !== undefined) pair.clock.setTimer(cancelAfterMs, () => call.cancel());
  });
  await pair.run(() => pair.coordinator.liveCount === 0 && results.every((result) => result !== undefined));
  await pair.run(() => JSON.stringify(pair.leftovers()) === JSON.stringify(NOTHING_LEFT), 30_000);
  return results;
}

describe.each(SCHEDULES)('two executors over real transceivers, %s', (schedule) => {
  it.each([
    ['pipelined', PIPELINED],
    ['monolithic', WHOLE],
  ])('%s: every page arrives, computed, at its place; tokens as an aggregate server says', async (_, policy) => {
    const pair = await ServedPair.create({ schedule });
    const requests = [30, 7, 19, 1].map((length, index) => ({
      promptTokens: prompt(length, 100 * index),
      maxTokens: 4,
      policy,
    }));
    const results = await serve(pair, requests);
    expect(results.map((result) => [result?.outcome, result?.outputTokens.length])).toEqual(
      Array(4).fill(['completed', 4]),
    );
    // Full attention: every token. Window of 10: blocks from floor((P + 1 - 10) / 4) on.
    expect(pair.checkedTokens).toBe(30 + 7 + 19 + 1 + (30 - 20) + 7 + (19 - 8) + 1);
    expect(pair.wrongTokens).toBe(0);
    expect(pair.leftovers()).toEqual(NOTHING_LEFT);

    const alone = await ServedPair.create({ schedule });
    const reference: number[][] = [];
    for (const { promptTokens } of requests) {
      const request = createRequest({ id: reference.length + 1, promptTokens, maxTokens: 4 });
      let ended = false;
      alone.generation.executor.submit(request, {
        onFinished: () => {
          ended = true;
        },
      });
      await alone.run(() => ended);
      reference.push([...request.outputTokens]);
    }
    expect(results.map((result) => result?.outputTokens)).toEqual(reference);
  });

  it('pipelining hides the transfer: the first token comes right after the prefill', async () => {
    const pair = await ServedPair.create({ schedule, limits: { chunkTokens: 8 } });
    const [result] = await serve(pair, [{ promptTokens: prompt(32), maxTokens: 1 }]);
    const sliced = pair.context.agent.submitted.length;
    // Four slices and the aux.
    expect(sliced).toBe(5);
    const ttft = (result?.firstTokenAtMs as number) - (result?.receivedAtMs as number);
    expect(ttft).toBeGreaterThanOrEqual(32);
    expect(ttft).toBeLessThan(45);
  });

  it('context first', async () => {
    const pair = await ServedPair.create({ schedule, scheduleStyle: 'context_first' });
    const results = await serve(
      pair,
      [9, 33].map((length) => ({ promptTokens: prompt(length), maxTokens: 3 })),
    );
    expect(results.map((result) => result?.outcome)).toEqual(['completed', 'completed']);
    expect(pair.wrongTokens).toBe(0);
    expect(pair.checkedTokens).toBeGreaterThan(42);
    expect(pair.leftovers()).toEqual(NOTHING_LEFT);
  });

  it('a shared prefix is reused on both sides and leaves before the first forward', async () => {
    const pair = await ServedPair.create({ schedule });
    await serve(pair, [{ promptTokens: prompt(22), maxTokens: 1 }]);
    const before = pair.context.agent.submitted.length;
    const [result] = await serve(pair, [{ promptTokens: prompt(30), maxTokens: 2 }]);
    expect(result?.outcome).toBe('completed');
    expect(pair.prepopulated).toEqual([0, 20]);
    expect(pair.context.agent.submitted.length).toBeGreaterThan(before);
    expect(pair.wrongTokens).toBe(0);
  });

  it('a failing forward ends the request on both sides with its reason', async () => {
    const pair = await ServedPair.create({ schedule });
    pair.context.content.failure = new Error('device lost');
    const [result] = await serve(pair, [{ promptTokens: prompt(30), maxTokens: 2 }]);
    expect(result?.outcome).toBe('failed');
    expect(result?.error?.message).toContain('device lost');
    expect(pair.leftovers()).toEqual(NOTHING_LEFT);
    pair.context.content.failure = null;
    const [next] = await serve(pair, [{ promptTokens: prompt(30), maxTokens: 2 }]);
    expect(next?.outcome).toBe('completed');
  });

  it('a generation server that never asks: the context request ends when its clock runs out', async () => {
    const pair = await ServedPair.create({ schedule });
    const request = createRequest({ id: 1, promptTokens: prompt(8), maxTokens: 1, disagg: params('context_only') });
    let endedAtMs: number | null = null;
    pair.context.executor.submit(request, {
      onFinished: (_, __, atMs) => {
        endedAtMs = atMs;
      },
    });
    await pair.run(() => endedAtMs !== null, 30_000);
    expect(request.error?.code).toBe('ERR_KVT_TRANSFER_TIMEOUT');
    expect(endedAtMs).toBeGreaterThanOrEqual(21_000);
    expect(endedAtMs).toBeLessThan(21_500);
  });

  it('any load, with cancels: one outcome each, right bytes, nothing left', async () => {
    const load = fc.record({
      chunkTokens: fc.integer({ min: 1, max: 20 }),
      tokenBudget: fc.integer({ min: 2, max: 40 }),
      maxTokensInBuffer: fc.option(fc.integer({ min: 1, max: 80 })),
      slotCount: fc.integer({ min: 14, max: 40 }),
      scheduleStyle: fc.constantFrom('generation_first' as const, 'context_first' as const),
      requests: fc.array(
        fc.record({
          length: fc.integer({ min: 1, max: 40 }),
          family: fc.integer({ min: 0, max: 1 }),
          maxTokens: fc.integer({ min: 1, max: 4 }),
          pipelined: fc.boolean(),
          cancelAfterMs: fc.option(fc.integer({ min: 0, max: 120 }), { freq: 3 }),
        }),
        { minLength: 1, maxLength: 6 },
      ),
    });
    await fc.assert(
      fc.asyncProperty(load, async ({ chunkTokens, tokenBudget, maxTokensInBuffer, slotCount, ...rest }) => {
        const limits = { chunkTokens, tokenBudget, maxTokensInBuffer };
        const pair = await ServedPair.create({ schedule, limits, slotCount, scheduleStyle: rest.scheduleStyle });
        const results = await serve(
          pair,
          rest.requests.map(({ length, family, maxTokens, pipelined, cancelAfterMs }) => ({
            promptTokens: prompt(length, 1000 * family),
            maxTokens,
            policy: pipelined && rest.scheduleStyle === 'generation_first' ? PIPELINED : WHOLE,
            ...(cancelAfterMs === null ? {} : { cancelAfterMs }),
          })),
        );
        rest.requests.forEach(({ maxTokens, cancelAfterMs }, index) => {
          const result = results[index];
          if (result?.outcome === 'completed') expect(result.outputTokens.length).toBe(maxTokens);
          else expect([result?.outcome, cancelAfterMs === null]).toEqual(['cancelled', false]);
        });
        expect(pair.wrongTokens).toBe(0);
        expect(pair.leftovers()).toEqual(NOTHING_LEFT);
      }),
      { numRuns: 60 },
    );
  }, 120_000);
});
