import { describe, expect, it } from 'vitest';
import type { CoordinatorResult } from '../../../src/coordinator/coordinator-request.js';
import { USAGE_LIMIT_MS } from '../../../src/coordinator/disagg-attempt.js';
import { DisaggCoordinator } from '../../../src/coordinator/disagg-coordinator.js';
import { DEFAULT_EPOCH_MS, SnowflakeIds } from '../../../src/coordinator/snowflake-ids.js';
import { PeerLostError, ResourceError, StateError } from '../../../src/errors.js';
import type { ScheduleStyle } from '../../../src/executor/request.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { params, prompt } from '../executor/harness.js';
import { FakeServer } from './fake-server.js';

function setup(scheduleStyle: ScheduleStyle) {
  const clock = new FakeClock(50);
  const log: string[] = [];
  const context = new FakeServer('context', 'tcp://127.0.0.1:9', log);
  const generation = new FakeServer('generation', null, log);
  const ids = new SnowflakeIds({ clock, unixTimeAtOriginMs: DEFAULT_EPOCH_MS + 1e6, nodeId: 0, processId: 0 });
  const coordinator = new DisaggCoordinator({ clock, ids, context, generation, scheduleStyle, maxRetries: 0 });
  const results: CoordinatorResult[] = [];
  function submit(rest: Partial<Parameters<DisaggCoordinator['submit']>[0]> = {}) {
    const call = coordinator.submit({ promptTokens: prompt(5), maxTokens: 3, ...rest });
    void call.result.then((result) => results.push(result));
    return call;
  }
  return { clock, log, context, generation, coordinator, results, submit };
}

const ERROR = new PeerLostError('gone');

describe('generation first', () => {
  it('sends one id to both at once and ends with the generation server', async () => {
    const { clock, log, context, generation, coordinator, results, submit } = setup('generation_first');
    const tokens: number[] = [];
    const call = submit({ traceparent: '00-1', onToken: (token) => tokens.push(token) });
    expect(log).toEqual(['generation generation_only', 'context context_only']);
    const expected = {
      scheduleStyle: 'generation_first',
      disaggRequestId: call.id,
      ctxRequestId: null,
      ctxInfoEndpoint: 'tcp://127.0.0.1:9',
      traceparent: '00-1',
    };
    expect(context.last.request.params).toMatchObject(expected);
    expect(generation.last.request.params).toMatchObject(expected);
    expect(call.id).toBeGreaterThanOrEqual(1n << 40n);
    clock.advance(30);
    generation.last.events.onToken?.(11, 0);
    clock.advance(5);
    generation.last.events.onToken?.(12, 1);
    generation.last.end({ outputTokens: [11, 12] });
    await clock.turn();
    expect(tokens).toEqual([11, 12]);
    expect(results).toEqual([]);
    clock.advance(2);
    context.last.end({ usage: { promptTokens: 5, cachedTokens: 4 } });
    await clock.turn();
    expect(results).toEqual([
      {
        id: call.id,
        outcome: 'completed',
        outputTokens: [11, 12],
        error: null,
        usage: { promptTokens: 5, cachedTokens: 4, completionTokens: 2 },
        attempts: 1,
        receivedAtMs: 50,
        firstTokenAtMs: 80,
        finishedAtMs: 85,
      },
    ]);
    expect(coordinator.liveCount).toBe(0);
    expect(log).toHaveLength(2);
  });

  it('a complete answer does not wait for a context server that says nothing', async () => {
    const { clock, context, generation, coordinator, results, submit } = setup('generation_first');
    const call = submit();
    generation.last.end({ outputTokens: [11] });
    await clock.run(USAGE_LIMIT_MS - 1);
    expect(results).toEqual([]);
    await clock.run(1);
    expect(results).toMatchObject([{ outcome: 'completed', usage: { cachedTokens: 0 }, finishedAtMs: 50 }]);
    // Its pages may still be read: the request is live until both servers are done.
    expect(coordinator.liveCount).toBe(1);
    call.cancel();
    context.last.end({ usage: { promptTokens: 5, cachedTokens: 4 } });
    await clock.turn();
    expect(coordinator.liveCount).toBe(0);
    expect(results).toHaveLength(1);
  });

  it('a complete answer that brought its usage waits for no context server', async () => {
    const { clock, log, context, generation, coordinator, results, submit } = setup('generation_first');
    submit();
    clock.advance(3);
    generation.last.end({ outputTokens: [11], contextUsage: { promptTokens: 5, cachedTokens: 4 } });
    await clock.turn();
    expect(results).toMatchObject([{ outcome: 'completed', usage: { cachedTokens: 4 }, finishedAtMs: 53 }]);
    expect(coordinator.liveCount).toBe(1);
    context.last.end({ usage: { promptTokens: 5, cachedTokens: 4 } });
    await clock.run(USAGE_LIMIT_MS);
    expect([coordinator.liveCount, results.length, log.length]).toEqual([0, 1, 2]);
  });

  it('a cancel that cut off a generation which had its prompt is over', async () => {
    const { clock, context, generation, coordinator, results, submit } = setup('generation_first');
    submit().cancel();
    const contextUsage = { promptTokens: 5, cachedTokens: 4 };
    generation.last.end({ outcome: 'cancelled', outputTokens: [11], contextUsage });
    await clock.turn();
    expect(results).toMatchObject([{ outcome: 'cancelled', outputTokens: [11], usage: { cachedTokens: 4 } }]);
    expect(coordinator.liveCount).toBe(1);
    context.last.end({ outcome: 'failed', error: ERROR });
    await clock.turn();
    expect([coordinator.liveCount, results.length]).toEqual([0, 1]);
  });

  it('a context server that fails behind a complete answer ends the wait, and its count holds', async () => {
    const { clock, log, context, generation, results, submit } = setup('generation_first');
    submit();
    generation.last.end({ outputTokens: [11] });
    await clock.turn();
    context.last.end({ outcome: 'failed', error: ERROR, usage: { promptTokens: 5, cachedTokens: 2 } });
    await clock.turn();
    expect(results).toMatchObject([{ outcome: 'completed', error: null, usage: { cachedTokens: 2 }, attempts: 1 }]);
    expect(log).toHaveLength(2);
  });

  it.each(['context', 'generation'] as const)(
    'a failing %s server decides, and the other is cancelled',
    async (side) => {
      const s = setup('generation_first');
      s.submit();
      s[side].last.end({ outcome: 'failed', error: ERROR });
      await s.clock.turn();
      const other = side === 'context' ? 'generation' : 'context';
      expect(s.log.slice(2)).toEqual([`${other} cancel`]);
      expect(s.results).toMatchObject([{ outcome: 'failed', error: ERROR }]);
      // What the other side says later changes nothing.
      s[other].last.end({ outcome: 'failed', error: new StateError('late') });
      await s.clock.turn();
      expect(s.results).toHaveLength(1);
      expect(s.coordinator.liveCount).toBe(0);
    },
  );

  it('a context server that is done first does not end the request', async () => {
    const s = setup('generation_first');
    s.submit();
    s.context.last.end({});
    await s.clock.turn();
    expect(s.results).toEqual([]);
    s.generation.last.end({ outputTokens: [1] });
    await s.clock.turn();
    expect(s.results).toMatchObject([{ outcome: 'completed', outputTokens: [1] }]);
  });

  it('a refusal by the generation server never reaches the context server', async () => {
    const s = setup('generation_first');
    s.generation.refusal = new ResourceError('full');
    s.submit();
    await s.clock.turn();
    expect(s.log).toEqual([]);
    expect(s.results).toMatchObject([{ outcome: 'failed', error: s.generation.refusal }]);
    expect(s.coordinator.liveCount).toBe(0);
  });

  it('a refusal by the context server cancels the generation server', async () => {
    const s = setup('generation_first');
    s.context.refusal = new ResourceError('full');
    s.submit();
    await s.clock.turn();
    expect(s.log).toEqual(['generation generation_only', 'generation cancel']);
    expect(s.results).toMatchObject([{ outcome: 'failed', error: s.context.refusal }]);
    s.generation.last.end({ outcome: 'cancelled' });
    await s.clock.turn();
    expect(s.coordinator.liveCount).toBe(0);
  });
});

describe('context first', () => {
  it('goes to the generation server with the context server’s answer', async () => {
    const s = setup('context_first');
    const call = s.submit();
    expect(s.log).toEqual(['context context_only']);
    const answer = params('generation_only', {
      scheduleStyle: 'context_first',
      ctxRequestId: call.id,
      firstGenTokens: [9],
    });
    s.context.last.events.onContextAnswer?.(answer);
    s.context.last.events.onContextAnswer?.(answer);
    expect(s.log).toEqual(['context context_only', 'generation generation_only']);
    expect(s.generation.last.request.params).toEqual(answer);
    s.generation.last.end({ outputTokens: [9, 8] });
    s.context.last.end({});
    await s.clock.turn();
    expect(s.results).toMatchObject([{ outcome: 'completed', outputTokens: [9, 8] }]);
  });

  it('an answer that says its usage is not waited for again', async () => {
    const { clock, context, generation, results, submit } = setup('context_first');
    submit();
    const ctxUsage = { promptTokens: 5, cachedTokens: 3 };
    context.last.events.onContextAnswer?.(params('generation_only', { scheduleStyle: 'context_first', ctxUsage }));
    generation.last.end({ outputTokens: [9, 8] });
    await clock.turn();
    expect(results).toMatchObject([{ outcome: 'completed', usage: { promptTokens: 5, cachedTokens: 3 } }]);
  });

  it('a prefill that fails ends the request', async () => {
    const s = setup('context_first');
    s.submit();
    s.context.last.end({ outcome: 'failed', error: ERROR });
    await s.clock.turn();
    expect(s.results).toMatchObject([{ outcome: 'failed', error: ERROR }]);
    expect(s.generation.submitted).toEqual([]);
    expect(s.coordinator.liveCount).toBe(0);
  });

  it('a context server that ends without an answer is an error', async () => {
    const s = setup('context_first');
    s.submit();
    s.context.last.end({});
    await s.clock.turn();
    expect(s.results[0]?.error?.code).toBe('ERR_KVT_INTERNAL');
  });

  it('a cancel before the answer keeps it from the generation server', async () => {
    const s = setup('context_first');
    const call = s.submit();
    call.cancel();
    s.context.last.events.onContextAnswer?.(params('generation_only'));
    expect(s.log).toEqual(['context context_only', 'context cancel']);
    s.context.last.end({ outcome: 'cancelled' });
    await s.clock.turn();
    expect(s.results).toMatchObject([{ outcome: 'cancelled', error: null }]);
  });

  it('may be chosen per request', () => {
    const s = setup('generation_first');
    s.submit({ scheduleStyle: 'context_first' });
    expect(s.log).toEqual(['context context_only']);
    expect(s.context.last.request.params.scheduleStyle).toBe('context_first');
  });
});

describe('cancel', () => {
  it('reaches both servers at once; the outcome comes when both ended', async () => {
    const s = setup('generation_first');
    const call = s.submit();
    call.cancel();
    call.cancel();
    expect(s.log.slice(2)).toEqual(['generation cancel', 'context cancel']);
    s.context.last.end({ outcome: 'cancelled' });
    await s.clock.turn();
    expect(s.results).toEqual([]);
    s.generation.last.end({ outcome: 'failed', error: ERROR });
    await s.clock.turn();
    expect(s.results).toMatchObject([{ outcome: 'cancelled', error: null }]);
    expect(s.coordinator.liveCount).toBe(0);
  });

  it('that comes too late leaves the completed generation', async () => {
    const s = setup('generation_first');
    const call = s.submit();
    call.cancel();
    s.generation.last.end({ outputTokens: [1, 2, 3] });
    s.context.last.end({ outcome: 'cancelled' });
    await s.clock.turn();
    expect(s.results).toMatchObject([{ outcome: 'completed', outputTokens: [1, 2, 3] }]);
    call.cancel();
    expect(s.log.filter((line) => line === 'context cancel')).toHaveLength(1);
  });

  it('from inside the first token', async () => {
    const s = setup('generation_first');
    const call = s.submit({ onToken: () => call.cancel() });
    s.generation.last.events.onToken?.(1, 0);
    expect(s.log.slice(2)).toEqual(['generation cancel', 'context cancel']);
  });
});

describe('close', () => {
  it('waits for both servers of every request and takes no new ones', async () => {
    const s = setup('generation_first');
    s.submit();
    let closed = false;
    void s.coordinator.close().then(() => {
      closed = true;
    });
    expect(() => s.submit()).toThrow(StateError);
    s.generation.last.end({});
    await s.clock.turn();
    expect(closed).toBe(false);
    s.context.last.end({});
    await s.clock.turn();
    expect(closed).toBe(true);
  });

  it.each<unknown>([Number.NaN, -1, Number.POSITIVE_INFINITY, 2 ** 31, null, '5', 10n])(
    'refuses a deadline of %s and stays open',
    async (deadlineMs) => {
      const s = setup('generation_first');
      await expect(s.coordinator.close({ deadlineMs: deadlineMs as number })).rejects.toThrow(
        /deadlineMs must be a number of milliseconds/,
      );
      s.submit();
      expect(s.log).toHaveLength(2);
    },
  );

  it('cancels what is left at the deadline', async () => {
    const s = setup('generation_first');
    s.submit();
    void s.coordinator.close({ deadlineMs: 100 });
    s.clock.advance(99);
    expect(s.log).toHaveLength(2);
    s.clock.advance(1);
    expect(s.log.slice(2)).toEqual(['generation cancel', 'context cancel']);
  });
});
