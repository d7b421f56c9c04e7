import { describe, expect, it } from 'vitest';
import type { CoordinatorResult } from '../../../src/coordinator/coordinator-request.js';
import { DisaggCoordinator } from '../../../src/coordinator/disagg-coordinator.js';
import type { ServerCall } from '../../../src/coordinator/disagg-server.js';
import { DEFAULT_EPOCH_MS, SnowflakeIds } from '../../../src/coordinator/snowflake-ids.js';
import { PeerLostError } from '../../../src/errors.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { prompt } from '../executor/harness.js';
import { FakeServer } from './fake-server.js';

function setup() {
  const clock = new FakeClock(50);
  const log: string[] = [];
  const warnings: string[] = [];
  const context = new FakeServer('context', 'tcp://127.0.0.1:9', log);
  const generation = new FakeServer('generation', null, log);
  const ids = new SnowflakeIds({ clock, unixTimeAtOriginMs: DEFAULT_EPOCH_MS + 1e6, nodeId: 0, processId: 0 });
  const coordinator = new DisaggCoordinator({
    clock,
    ids,
    context,
    generation,
    scheduleStyle: 'generation_first',
    onWarning: (message) => void warnings.push(message),
  });
  const results: CoordinatorResult[] = [];
  function submit(rest: Partial<Parameters<DisaggCoordinator['submit']>[0]> = {}) {
    const call = coordinator.submit({ promptTokens: prompt(5), maxTokens: 3, ...rest });
    void call.result.then((result) => results.push(result));
    return call;
  }
  return { clock, log, warnings, context, generation, coordinator, results, submit };
}

const fails = (): never => {
  throw new TypeError('out of the blue');
};

describe('what is thrown behind a callback of a coordinator', () => {
  it('by onToken: the request fails with that, at once, and both servers are told', async () => {
    const { clock, log, warnings, context, generation, coordinator, results, submit } = setup();
    const call = submit({ onToken: fails });
    expect(() => generation.last.events.onToken?.(11, 0)).not.toThrow();
    await clock.turn();
    expect(results).toMatchObject([{ outcome: 'failed', attempts: 1, error: { code: 'ERR_KVT_INTERNAL' } }]);
    expect(results[0]?.error?.message).toContain('out of the blue');
    expect(log.slice(2).sort()).toEqual(['context cancel', 'generation cancel']);
    generation.last.end({ outcome: 'cancelled' });
    context.last.end({ outcome: 'cancelled' });
    await clock.turn(3);
    await call.released;
    expect(coordinator.stats()).toMatchObject({ live: 0, internalErrors: 1 });
    expect(warnings).toEqual([expect.stringMatching(/^internal error, onToken of request \d+: out of the blue/)]);
  });

  it('by takeBackTokens, when a try could be repeated: the request fails instead of hanging', async () => {
    const { clock, context, generation, coordinator, results, submit } = setup();
    const call = submit({ onToken: () => {}, takeBackTokens: fails });
    generation.last.events.onToken?.(11, 0);
    generation.last.end({ outcome: 'failed', error: new PeerLostError('gone') });
    context.last.end({ outcome: 'cancelled' });
    await clock.turn(3);
    expect(results).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_INTERNAL' } }]);
    await call.released;
    expect(coordinator.stats()).toMatchObject({ live: 0, internalErrors: 1 });
  });

  it('by a server that hands out no call: the request fails, and both servers are given back', async () => {
    const { clock, generation, coordinator, results, submit } = setup();
    generation.submit = (): ServerCall => ({}) as ServerCall;
    const call = submit();
    await clock.turn(3);
    expect(results).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_INTERNAL' } }]);
    await call.released;
    expect(coordinator.stats()).toMatchObject({
      live: 0,
      context: [{ liveRequests: 0 }],
      generation: [{ liveRequests: 0 }],
    });
  });

  it('by a server that cannot cancel: the other one is told, and the outcome stands', async () => {
    const { clock, log, context, generation, results, submit } = setup();
    const take = context.submit.bind(context);
    context.submit = (request, events) => ({ ...take(request, events), cancel: fails });
    submit();
    generation.last.end({ outcome: 'failed', error: new PeerLostError('gone') });
    await clock.turn(3);
    expect(log.filter((line) => line.endsWith('cancel'))).toEqual([]);
    expect(results).toEqual([]);
    // It was repeated, and fails for good now.
    generation.last.end({ outcome: 'failed', error: new PeerLostError('gone') });
    await clock.turn(3);
    expect(results).toMatchObject([{ outcome: 'failed', attempts: 2, error: { code: 'ERR_KVT_PEER_LOST' } }]);
  });

  it('by a server whose call is rejected: the request fails with that', async () => {
    const { clock, generation, results, submit } = setup();
    const take = generation.submit.bind(generation);
    generation.submit = (request, events) => ({ ...take(request, events), done: Promise.reject(new TypeError('no')) });
    submit();
    await clock.turn(5);
    expect(results).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_INTERNAL' } }]);
  });

  it('by a server that does not say where it is: the request fails, and nothing is left open', async () => {
    const { clock, generation, coordinator, results, submit } = setup();
    Object.defineProperty(generation, 'infoEndpoint', { get: fails });
    const call = submit();
    await clock.turn(5);
    expect(results).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_INTERNAL' } }]);
    await call.released;
    await coordinator.close();
  });
});
