import { describe, expect, it } from 'vitest';
import { PeerLostError, StateError } from '../../../src/errors.js';
import { LocalRankGroup } from '../../../src/rank-group/local-rank-group.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { aggregateRequest, contextRequest, generationRequest, type Harness, harness, SCHEDULES } from './harness.js';
import { ClusterRank, pass } from './rank-cluster.js';

const CLOSED = 'the executor was closed before the request ended';

/** A forward that is not read, or one that is not even enqueued. */
const HANGS = {
  'its tokens never come': (h: Harness) => {
    h.engine.manual = true;
    return () => h.engine.finish();
  },
  'it is never enqueued': (h: Harness) => {
    let release = (): void => {};
    const forward = h.engine.forward.bind(h.engine);
    h.engine.forward = async (batch) => {
      await new Promise<void>((resolve) => {
        release = resolve;
      });
      return forward(batch);
    };
    return () => release();
  },
} as const;

describe.each(SCHEDULES)('a forward that hangs, %s', (schedule) => {
  describe.each(Object.entries(HANGS))('%s', (_, hang) => {
    /** Request 1 is in the forward; 2 waits for receivers, 3 is being received, 4 waits for the buffer. */
    async function hung(): Promise<{
      h: Harness;
      release: () => void;
      request3: ReturnType<typeof generationRequest>;
    }> {
      const h = harness({ schedule, maxTokensInBuffer: 8 });
      const release = hang(h);
      h.transceiver.allReady = false;
      const request3 = generationRequest(3, 8);
      h.executor.submit(aggregateRequest(1, 8, 1));
      h.executor.submit(contextRequest(2, 8));
      h.executor.submit(request3);
      h.executor.submit(generationRequest(4, 8));
      await h.clock.turn(20);
      h.take();
      return { h, release, request3 };
    }

    it('holds up no cancel of a request that it does not touch: outcome at once, and the other side is told', async () => {
      const { h, release } = await hung();
      h.executor.cancel(2);
      h.executor.cancel(4);
      await h.clock.turn(20);
      expect(h.take()).toEqual([
        'cancel 2 cancelled by its user',
        'finished 2 cancelled DISAGG_CONTEXT_COMPLETE',
        'cancel 4 cancelled by its user',
        'finished 4 cancelled GENERATION_COMPLETE',
      ]);
      // Its own waits: the pages are being written.
      h.executor.cancel(1);
      await h.clock.run(1000);
      expect(h.take()).toEqual([]);
      release();
      await h.clock.turn(20);
      expect(h.take().filter((line) => /^(free|finished)/.test(line))).toHaveLength(2);
    });

    it('asks again for a cancel that could not take effect yet', async () => {
      const { h } = await hung();
      h.transceiver.cancelResult = false;
      h.executor.cancel(3);
      await h.clock.run(250);
      expect(h.take()).toEqual(Array(3).fill('cancel 3 cancelled by its user'));
      h.transceiver.cancelResult = true;
      await h.clock.run(100);
      expect(h.take()).toEqual([
        'cancel 3 cancelled by its user',
        'free 3',
        'finished 3 cancelled GENERATION_COMPLETE',
      ]);
      expect(h.clock.pendingTimerCount).toBe(0);
    });

    it('holds up no transfer that ends, well or not', async () => {
      const { h, request3 } = await hung();
      h.transceiver.settle(request3, 'failed', { error: new PeerLostError('gone') });
      await h.clock.turn(20);
      expect(h.take()).toEqual(['free 3', 'finished 3 failed DISAGG_TRANS_ERROR']);
      expect(request3.error).toBeInstanceOf(PeerLostError);
    });

    it('after a close whose deadline has passed every request has its one outcome, and keeps the pages it may write', async () => {
      const { h, release } = await hung();
      expect(h.executor.stats().live).toBe(4);
      const closed = h.executor.close({ deadlineMs: 500 });
      await h.clock.run(499);
      expect(h.take()).toEqual([]);
      await h.clock.run(1);
      await h.clock.turn(10);
      expect(await closed).toEqual({ drained: false, failed: 4 });
      expect(h.take()).toEqual([
        'finished 1 failed DISAGG_TRANS_ERROR',
        `cancel 2 ${CLOSED}`,
        'finished 2 failed DISAGG_TRANS_ERROR',
        `cancel 3 ${CLOSED}`,
        'free 3',
        'finished 3 failed DISAGG_TRANS_ERROR',
        `cancel 4 ${CLOSED}`,
        'finished 4 failed DISAGG_TRANS_ERROR',
      ]);
      await h.clock.run(10_000);
      expect(h.cache.used).toBe(2);
      expect(h.take()).toEqual([]);
      release();
      await h.clock.turn(20);
      // Given up now, and nobody hears anything twice.
      expect(h.take('done', 'forward', 'computed')).toEqual(['free 1']);
      expect(h.cache.used).toBe(0);
      expect(await h.executor.close()).toEqual({ drained: false, failed: 4 });
    });
  });

  it('two of them under way when the deadline passes: the requests of both end', async () => {
    const h = harness({ schedule, chunkTokens: 4 });
    h.engine.manual = true;
    const requests = [aggregateRequest(1, 8, 1), contextRequest(2, 8)];
    for (const request of requests) h.executor.submit(request);
    await h.clock.turn(20);
    const closed = h.executor.close({ deadlineMs: 10 });
    await h.clock.run(10);
    await h.clock.turn(10);
    expect(await closed).toEqual({ drained: false, failed: 2 });
    expect(requests.map(({ error }) => error)).toEqual([expect.any(StateError), expect.any(StateError)]);
    expect(h.take().filter((line) => /^(free|finished)/.test(line))).toHaveLength(2);
  });
});

describe.each(SCHEDULES)('a forward that hangs on one of two ranks, %s', (schedule) => {
  it('after a close whose deadline has passed every request has its one outcome on both', async () => {
    const clock = new FakeClock();
    const hangs = { ready: 0, transfer: 0, drain: 0, forward: 1e9 } as const;
    const ranks = LocalRankGroup.of(2).map(
      (group) =>
        new ClusterRank(clock, group, { schedule, delayOf: (rank) => (what) => (rank === 1 ? hangs[what] : 1) }),
    );
    for (const { executor } of ranks) {
      executor.submit(aggregateRequest(1, 8, 2));
      executor.submit(generationRequest(2, 8));
    }
    await pass(clock, 50);
    const closed = ranks.map(({ executor }) => executor.close({ deadlineMs: 100 }));
    await pass(clock, 150);
    for (const report of await Promise.all(closed)) expect(report.drained).toBe(false);
    for (const { outcomes } of ranks) expect(outcomes.map((line) => line.split(' ')[0]).toSorted()).toEqual(['1', '2']);
    // Rank 1 may still write the pages of its forward.
    const isAllGiven = ranks.map(({ cache }) =>
      cache.stats().every(({ slotCount, free, reusable }) => free + reusable === slotCount),
    );
    expect(isAllGiven).toEqual([true, false]);
  });
});
