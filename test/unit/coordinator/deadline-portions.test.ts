import { describe, expect, it } from 'vitest';
import { DEFAULT_EPOCH_MS, DisaggCoordinator, SnowflakeIds } from '../../../src/coordinator/index.js';
import { PeerLostError } from '../../../src/errors.js';
import { SpentClock } from '../../sim-lite/spent-clock.js';
import { FakeServer } from './fake-server.js';

/** A coordinator with so many live requests, closing, whose deadline has just passed and whose every portion is one cancel. */
function expired(count: number) {
  const clock = new SpentClock();
  const log: string[] = [];
  const contexts = ['c0', 'c1'].map((name) => new FakeServer(name, `tcp://${name}:1`, log));
  const generation = new FakeServer('g', null, log);
  const coordinator = new DisaggCoordinator({
    clock,
    ids: new SnowflakeIds({ clock, unixTimeAtOriginMs: DEFAULT_EPOCH_MS + 1e6, nodeId: 0, processId: 0 }),
    context: contexts,
    generation,
    scheduleStyle: 'generation_first',
  });
  const calls = Array.from({ length: count }, () =>
    coordinator.submit({ promptTokens: Uint32Array.of(1, 2), maxTokens: 2 }),
  );
  const outcomes: string[] = calls.map(() => 'live');
  for (const [index, call] of calls.entries())
    void call.result.then(({ outcome, attempts }) => {
      expect(outcomes[index]).toBe('live');
      outcomes[index] = `${outcome} ${attempts}`;
    });
  const state = { closed: false };
  void coordinator.close({ deadlineMs: 10 }).then(() => {
    state.closed = true;
  });
  clock.advance(10);
  const cancels = () => log.filter((line) => line === 'g cancel').length;
  const endAll = () => {
    for (const server of [...contexts, generation])
      for (const { end } of server.submitted) end({ outcome: 'cancelled' });
  };
  return { clock, coordinator, contexts, generation, calls, outcomes, state, cancels, endAll };
}

describe('a deadline of a coordinator with more live requests than a turn should cancel', () => {
  it('cancels them in portions, and closes when the last has ended', async () => {
    const { clock, coordinator, outcomes, state, cancels, endAll } = expired(4);
    const counts = [cancels()];
    for (let turn = 0; turn < 5; turn++) {
      await clock.turn();
      counts.push(cancels());
    }
    expect(counts).toEqual([1, 2, 3, 4, 4, 4]);
    expect([state.closed, coordinator.liveCount]).toEqual([false, 4]);
    endAll();
    await clock.turn();
    expect([outcomes, state.closed]).toEqual([Array.from({ length: 4 }, () => 'cancelled 1'), true]);
  });

  it('leaves alone what ends in between, and cancels the second try of what fails in between', async () => {
    const { clock, generation, outcomes, state, cancels, endAll } = expired(4);
    expect(cancels()).toBe(1);
    // Before their turn: the second is answered, the third breaks and is tried again, by its next turn.
    const [, second, third] = generation.submitted;
    second?.end({ outputTokens: [1, 2] });
    third?.end({ outcome: 'failed', error: new PeerLostError('gone') });
    await clock.turn(4);
    expect(generation.submitted).toHaveLength(5);
    expect(cancels()).toBe(3);
    endAll();
    await clock.turn(2);
    expect(outcomes).toEqual(['cancelled 1', 'completed 1', 'cancelled 2', 'cancelled 1']);
    expect(state.closed).toBe(true);
  });
});
