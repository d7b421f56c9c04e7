import { describe, expect, it } from 'vitest';
import { RankOutbox } from '../../../src/executor/rank-outbox.js';
import { LocalRankGroup } from '../../../src/rank-group/local-rank-group.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { contextRequest } from './harness.js';
import { ClusterRank, pass } from './rank-cluster.js';

describe('several ranks', () => {
  it('tell each other 64 news of a kind in one exchange: they take effect in one turn of the event loop', () => {
    const outbox = new RankOutbox(2);
    for (let id = 1; id <= 200; id++) outbox.cancel(id);
    const counts: number[] = [];
    const ids: number[] = [];
    while (!outbox.isEmpty) {
      const { cancelled } = outbox.take({} as never, { afterRest: false, leaving: false, forwardError: null });
      counts.push(cancelled.length);
      ids.push(...(cancelled as number[]));
    }
    expect(counts).toEqual([64, 64, 64, 8]);
    expect(ids).toEqual(Array.from({ length: 200 }, (_, index) => index + 1));
  });

  it('look at thousands of prompts that wait with turns of the event loop between', async () => {
    const clock = new FakeClock();
    const delayOf = () => () => Number.POSITIVE_INFINITY;
    const ranks = LocalRankGroup.of(2).map((group) => new ClusterRank(clock, group, { delayOf }));
    let [looks, most] = [0, 0];
    const nextTurn = clock.nextTurn.bind(clock);
    clock.nextTurn = () => {
      most = Math.max(most, looks);
      looks = 0;
      return nextTurn();
    };
    const seen = new Set<number>();
    for (const { transceiver, executor } of ranks) {
      const ready = transceiver.receiverReady.bind(transceiver);
      transceiver.receiverReady = (request) => {
        looks += 1;
        seen.add(request.id);
        return ready(request);
      };
      for (let id = 1; id <= 3000; id++) executor.submit(contextRequest(id, 8));
    }
    await pass(clock, 2000);
    expect(seen.size).toBe(3000);
    most = Math.max(most, looks);
    // Both ranks run in one process here, and each looks as it wakes and as it meets the other.
    expect(most).toBeLessThanOrEqual(4 * 256);
    for (const { transceiver, executor } of ranks) {
      transceiver.receiverReady = () => true;
      executor.cancel(3000);
    }
    await pass(clock, 500);
    for (const { outcomes } of ranks) expect(outcomes.length).toBeGreaterThan(0);
  });

  it('that part end their requests with turns of the event loop between, and take none meanwhile', async () => {
    const clock = new FakeClock();
    const delayOf = () => () => Number.POSITIVE_INFINITY;
    const [first, second] = LocalRankGroup.of(2).map((group) => new ClusterRank(clock, group, { delayOf })) as [
      ClusterRank,
      ClusterRank,
    ];
    for (const { executor } of [first, second]) for (let id = 1; id <= 40; id++) executor.submit(contextRequest(id, 8));
    await pass(clock, 200);
    expect(first.executor.stats().live).toBe(40);
    // From now on a portion is over after one request.
    let looks = 0;
    const now = clock.now.bind(clock);
    clock.now = () => now() + looks++;
    const closing = first.executor.close({ deadlineMs: 10 });
    clock.advance(10);
    await clock.turn(4);
    expect(first.outcomes.length).toBeGreaterThan(0);
    expect(first.outcomes.length).toBeLessThan(20);
    expect(() => first.executor.submit(contextRequest(41, 8))).toThrow(/do not act together|is closing/);
    await clock.turn(400);
    expect(await closing).toEqual({ drained: false, failed: 40 });
    for (const { outcomes, executor } of [first, second]) {
      expect(outcomes).toHaveLength(40);
      expect(executor.stats().live).toBe(0);
      expect(() => executor.submit(contextRequest(42, 8))).toThrow(/do not act together/);
    }
  });
});
