import { describe, expect, it } from 'vitest';
import { ArgumentError, ResourceError } from '../../../src/errors.js';
import type { Executor } from '../../../src/executor/executor.js';
import type { RequestEvents } from '../../../src/executor/executor-events.js';
import type { ContextAnswer, LlmRequest } from '../../../src/executor/request.js';
import { RanksServer } from '../../../src/serve/worker/ranks-server.js';
import { PIPELINED, params, prompt } from '../executor/harness.js';

/** Ranks whose requests end when the test says so. */
function ranks(count: number) {
  const finish: ((answer?: ContextAnswer) => void)[] = [];
  let refusal: Error | null = null;
  const executors = Array.from({ length: count }, () => ({
    submit: (request: LlmRequest, events: RequestEvents) => {
      if (refusal !== null) throw refusal;
      finish.push((contextAnswer) => {
        if (contextAnswer !== undefined) request.contextAnswer = contextAnswer;
        events.onFinished?.(request, 'completed', 0);
      });
    },
    cancel: () => true,
  }));
  const server = new RanksServer({
    executors: executors as unknown as readonly Executor[],
    transferPolicy: PIPELINED,
  });
  const request = {
    promptTokens: prompt(4),
    maxTokens: 2,
    transferPolicy: null,
    params: params('context_only', { disaggRequestId: 5n }),
  };
  return {
    finish,
    refuse: (error: Error | null) => {
      refusal = error;
    },
    submit: () => server.submit(request, {}),
  };
}

describe('an id that another request of the worker has', () => {
  it('is refused until every rank has ended that one', async () => {
    const { submit, finish } = ranks(2);
    const { done } = submit();
    expect(submit).toThrow(ResourceError);
    finish[0]?.();
    expect(submit).toThrow(ResourceError);
    expect(finish).toHaveLength(2);
    finish[1]?.();
    expect(await done).toMatchObject({ outcome: 'completed' });
    expect(submit).not.toThrow();
  });

  it('is not held by a request that the ranks refuse', () => {
    const { submit, refuse } = ranks(2);
    refuse(new ArgumentError('no'));
    expect(submit).toThrow(ArgumentError);
    refuse(null);
    expect(submit).not.toThrow();
  });
});

describe('what a context server spent on the prompt', () => {
  const answer = { firstTokens: [7], firstLogProbs: [], draftTokens: [], promptLen: 4, cachedTokens: 3 };
  const none = { ...answer, firstTokens: [], cachedTokens: 0 };

  it.each([
    ['the first', [answer, none]],
    ['another one', [none, answer]],
  ])('is said by %s of the ranks that came to hear of it', async (_, answers) => {
    const { submit, finish } = ranks(2);
    const { done } = submit();
    for (const [rank, one] of answers.entries()) finish[rank]?.(one);
    const contextUsage = { promptTokens: 4, cachedTokens: 3 };
    expect(await done).toMatchObject({ usage: { promptTokens: 4, cachedTokens: 0 }, contextUsage });
  });

  it('is left out where no rank did', async () => {
    const { submit, finish } = ranks(2);
    const { done } = submit();
    finish[0]?.(none);
    finish[1]?.();
    expect(await done).not.toHaveProperty('contextUsage');
  });
});
