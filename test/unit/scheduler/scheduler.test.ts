import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ConfigError } from '../../../src/errors.js';
import type { LlmRequest } from '../../../src/executor/request.js';
import {
  type CapacityPort,
  checkLimits,
  planReceives,
  planStep,
  type SchedulerLimits,
  type StepPlan,
} from '../../../src/executor/scheduler.js';
import { aggregateRequest, contextRequest, generationRequest } from '../executor/harness.js';

const LIMITS: SchedulerLimits = { chunkTokens: 8, tokenBudget: 20, maxTokensInBuffer: null };

interface Port extends CapacityPort {
  readonly asked: string[];
  readonly refused: Set<number>;
  readonly full: Set<number>;
  readonly later: Set<number>;
}

function port(): Port {
  const asked: string[] = [];
  const refused = new Set<number>();
  const full = new Set<number>();
  const later = new Set<number>();
  return {
    asked,
    refused,
    full,
    later,
    admit(request) {
      if (refused.has(request.id)) return 'refused';
      return later.has(request.id) ? 'wait' : 'admitted';
    },
    reserve(request, endToken, firstToken) {
      asked.push(`${request.id}:${endToken}${firstToken === undefined ? '' : `/${firstToken}`}`);
      return !full.has(request.id);
    },
  };
}

function chunks(plan: StepPlan): string[] {
  return plan.context.map(({ request, chunkStart, chunkEnd }) => `${request.id}[${chunkStart},${chunkEnd})`);
}

/** A request that decodes and has `outputs` tokens. */
function decoding(id: number, promptLen: number, outputs: number): LlmRequest {
  const request = generationRequest(id, promptLen, 100);
  request.state = 'GENERATION_IN_PROGRESS';
  for (let index = 0; index < outputs; index++) request.outputTokens.push(index);
  return request;
}

describe('planStep', () => {
  it('cuts the first prompts first and gives the rest of the budget to the next', async () => {
    const plan = await planStep(
      LIMITS,
      [],
      [contextRequest(1, 30), contextRequest(2, 5), contextRequest(3, 30)],
      port(),
    );
    expect(chunks(plan)).toEqual(['1[0,8)', '2[0,5)', '3[0,7)']);
  });

  it('continues where the last chunk ended', async () => {
    const request = contextRequest(1, 30);
    request.chunkStart = 16;
    request.chunkEnd = 25;
    expect(chunks(await planStep(LIMITS, [], [request], port()))).toEqual(['1[25,30)']);
  });

  it('asks for blocks up to the chunk, not for the whole prompt', async () => {
    const capacity = port();
    await planStep(LIMITS, [], [contextRequest(1, 30)], capacity);
    expect(capacity.asked).toEqual(['1:8']);
  });

  it('lets nobody overtake a prompt that lacks blocks', async () => {
    const capacity = port();
    capacity.full.add(2);
    const requests = [contextRequest(1, 8), contextRequest(2, 8), contextRequest(3, 1)];
    expect(chunks(await planStep(LIMITS, [], requests, capacity))).toEqual(['1[0,8)']);
    expect(capacity.asked).toEqual(['1:8', '2:8']);
  });

  it('lets nobody overtake a prompt that may not enter yet, but passes one that was refused', async () => {
    const capacity = port();
    capacity.refused.add(1);
    capacity.later.add(3);
    const requests = [contextRequest(1, 8), contextRequest(2, 8), contextRequest(3, 8), contextRequest(4, 8)];
    expect(chunks(await planStep(LIMITS, [], requests, capacity))).toEqual(['2[0,8)']);
  });

  it('serves decode steps first and asks for the block of the token they feed', async () => {
    const capacity = port();
    const plan = await planStep(LIMITS, [decoding(1, 10, 1), decoding(2, 10, 3)], [contextRequest(3, 100)], capacity);
    expect(plan.generation.map((request) => request.id)).toEqual([1, 2]);
    expect(capacity.asked).toEqual(['1:11', '2:13', '3:8']);
  });

  it('skips a decode step without a block and serves the others', async () => {
    const capacity = port();
    capacity.full.add(1);
    const plan = await planStep(LIMITS, [decoding(1, 10, 1), decoding(2, 10, 1)], [], capacity);
    expect(plan.generation.map((request) => request.id)).toEqual([2]);
  });

  it('leaves prompts their share when decode steps would take the whole budget', async () => {
    const many = Array.from({ length: 40 }, (_, index) => decoding(index, 10, 1));
    const alone = await planStep(LIMITS, many, [], port());
    expect(alone.generation.length).toBe(20);
    const shared = await planStep(LIMITS, many, [contextRequest(99, 100)], port());
    expect(shared.generation.length).toBe(18);
    expect(chunks(shared)).toEqual(['99[0,2)']);
    const least = await planStep({ ...LIMITS, tokenBudget: 2 }, many, [contextRequest(99, 100)], port());
    expect([least.generation.length, ...chunks(least)]).toEqual([1, '99[0,1)']);
  });

  it('passes over what is being moved: it keeps its blocks, takes no budget, and holds up nobody', async () => {
    const capacity = { ...port(), holdBack: ({ id }: LlmRequest) => id === 1 || id === 3 };
    const decodes = [decoding(1, 10, 1), decoding(2, 10, 1)];
    const plan = await planStep(LIMITS, decodes, [contextRequest(3, 100), contextRequest(4, 100)], capacity);
    expect(plan.generation.map((request) => request.id)).toEqual([2]);
    expect(chunks(plan)).toEqual(['4[0,8)']);
    expect(plan.held.map((request) => request.id)).toEqual([3]);
    expect(capacity.asked).toEqual(['1:11', '2:11', '3:8', '4:8']);
  });

  it('counts tokens that are on their way: where the next step feeds, and that none comes too many', async () => {
    const capacity = port();
    const last = Object.assign(decoding(1, 10, 99), { tokensInFlight: 1 });
    const running = Object.assign(decoding(2, 10, 3), { tokensInFlight: 1 });
    const enqueued = Object.assign(contextRequest(3, 8), { chunkEnd: 8 });
    const plan = await planStep(LIMITS, [last, running], [enqueued], capacity);
    expect(plan.generation).toEqual([running]);
    expect(plan.context).toEqual([]);
    expect(capacity.asked).toEqual(['2:14']);
  });

  it('tiles every prompt exactly, whatever the chunk and the budget', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.integer({ min: 1, max: 60 }), { minLength: 1, maxLength: 6 }),
        fc.integer({ min: 1, max: 25 }),
        fc.integer({ min: 2, max: 40 }),
        async (lengths, chunkTokens, tokenBudget) => {
          const limits = { chunkTokens, tokenBudget, maxTokensInBuffer: null };
          let waiting = lengths.map((length, index) => contextRequest(index, length));
          const finished: number[] = [];
          for (let step = 0; waiting.length > 0; step++) {
            expect(step).toBeLessThan(400);
            const leftBefore = (waiting[0] as LlmRequest).chunkEnd;
            const plan = await planStep(limits, [], waiting, port());
            let tokens = 0;
            for (const { request, chunkStart, chunkEnd } of plan.context) {
              expect(chunkStart).toBe(request.chunkEnd);
              expect(chunkEnd).toBeGreaterThan(chunkStart);
              expect(chunkEnd - chunkStart).toBeLessThanOrEqual(chunkTokens);
              expect(chunkEnd).toBeLessThanOrEqual(request.promptTokens.length);
              request.chunkEnd = chunkEnd;
              tokens += chunkEnd - chunkStart;
              if (chunkEnd === request.promptTokens.length) finished.push(request.id);
            }
            expect(tokens).toBeLessThanOrEqual(tokenBudget);
            // Nobody idles: the head always gets what it may take.
            const head = waiting[0] as LlmRequest;
            const left = head.promptTokens.length - leftBefore;
            expect(plan.context[0]).toMatchObject({
              request: head,
              chunkEnd: leftBefore + Math.min(chunkTokens, tokenBudget, left),
            });
            waiting = waiting.filter((request) => request.chunkEnd < request.promptTokens.length);
          }
          expect(finished.length).toBe(lengths.length);
        },
      ),
    );
  });
});

describe('planReceives', () => {
  const limits = { ...LIMITS, maxTokensInBuffer: 41 }; // ten blocks of four

  async function ids(waiting: LlmRequest[], bufferBlocks: number, capacity = port()): Promise<number[]> {
    const planned = await planReceives(limits, waiting, bufferBlocks, 4, capacity);
    return planned.map((request) => request.id);
  }

  it('counts whole blocks, first come first served', async () => {
    // 17 tokens are five blocks: two fit ten, not three; the small third one does not overtake.
    const waiting = [generationRequest(1, 17), generationRequest(2, 17), generationRequest(3, 1)];
    expect(await ids(waiting, 0)).toEqual([1, 2]);
    expect(await ids(waiting, 5)).toEqual([1]);
    expect(await ids(waiting, 6)).toEqual([]);
  });

  it('lets an oversized head in alone', async () => {
    const waiting = [generationRequest(1, 100), generationRequest(2, 1)];
    expect(await ids(waiting, 1)).toEqual([]);
    expect(await ids(waiting, 0)).toEqual([1]);
    expect(await ids(waiting.slice(1), 25)).toEqual([]);
  });

  it('reserves the whole prompt as received, and stops at the first that lacks blocks', async () => {
    const capacity = port();
    capacity.full.add(2);
    const waiting = [generationRequest(1, 5), generationRequest(2, 6), generationRequest(3, 1)];
    expect(await ids(waiting, 0, capacity)).toEqual([1]);
    expect(capacity.asked).toEqual(['1:5/5', '2:6/6']);
  });

  it('has no limit when none is set', async () => {
    const waiting = Array.from({ length: 50 }, (_, index) => generationRequest(index, 100));
    expect((await planReceives(LIMITS, waiting, 1e6, 4, port())).length).toBe(50);
  });
});

describe('checkLimits', () => {
  it.each([
    ['chunkTokens', { chunkTokens: 0 }],
    ['chunkTokens', { chunkTokens: 1.5 }],
    ['tokenBudget', { tokenBudget: 1 }],
    ['tokenBudget', { tokenBudget: Number.NaN }],
    ['maxTokensInBuffer', { maxTokensInBuffer: 0 }],
  ])('names %s', (name, wrong) => {
    const limits = { ...LIMITS, ...wrong };
    expect(() => checkLimits(limits)).toThrow(ConfigError);
    expect(() => checkLimits(limits)).toThrow(name);
  });

  it('takes any chunk size', () => {
    expect(() => checkLimits({ chunkTokens: 1, tokenBudget: 2, maxTokensInBuffer: 1 })).not.toThrow();
  });
});

it('an aggregate request is cut like any prompt', async () => {
  expect(chunks(await planStep(LIMITS, [], [aggregateRequest(7, 9)], port()))).toEqual(['7[0,8)']);
});
