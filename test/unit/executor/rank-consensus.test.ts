import { describe, expect, it } from 'vitest';
import { ArgumentError, ConfigError, ResourceError, StateError, TransportError } from '../../../src/errors.js';
import { Executor } from '../../../src/executor/executor.js';
import { LocalRankGroup } from '../../../src/rank-group/local-rank-group.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { seededRandom } from '../../sim-lite/seeded-random.js';
import { aggregateRequest, contextRequest, generationRequest, SCHEDULES, WHOLE } from './harness.js';
import { type ClusterOptions, ClusterRank, pass } from './rank-cluster.js';

function cluster(size: number, options: ClusterOptions = {}): { clock: FakeClock; ranks: ClusterRank[] } {
  const clock = new FakeClock();
  const groups = LocalRankGroup.of(size);
  return { clock, ranks: groups.map((group) => new ClusterRank(clock, group, options)) };
}

const KINDS = [
  (id: number, length: number) => contextRequest(id, length),
  (id: number, length: number) => contextRequest(id, length, { transferPolicy: WHOLE }),
  (id: number, length: number) => generationRequest(id, length, 1 + (id % 5)),
  (id: number, length: number) => aggregateRequest(id, length, 1 + (id % 3)),
];

const decided = (rank: ClusterRank): string[] => rank.outcomes.filter((line) => !line.endsWith('cancelled'));

describe.each(SCHEDULES)('four ranks with random delays, %s', (schedule) => {
  it('fail the batch, and it alone, whose forward failed on one of them; schedules and page tables stay identical', async () => {
    for (let seed = 1; seed <= 4; seed++) {
      const { clock, ranks } = cluster(4, { schedule, windowed: true, slotCount: 40, seed });
      const random = seededRandom(seed + 100);
      const count = 40;
      for (const rank of ranks)
        for (let step = 0; step < 60; step++)
          if (random() < 0.06) rank.engine.failuresAt.set(step, random() < 0.5 ? 'enqueue' : 'device');
      for (let id = 1; id <= count; id++) {
        const make = KINDS[Math.floor(random() * KINDS.length)] as (typeof KINDS)[number];
        const length = 1 + Math.floor(random() * 40);
        const at = Math.floor(random() * 1500);
        for (const rank of ranks)
          clock.setTimer(at + Math.floor(random() * 30), () => rank.executor.submit(make(id, length)));
      }
      for (let ms = 0; ms < 20_000 && ranks.some((rank) => rank.outcomes.length < count); ms += 100)
        await pass(clock, 100);
      await pass(clock, 200);
      const [first, ...others] = ranks as [ClusterRank, ...ClusterRank[]];
      const failedSteps = new Set(ranks.flatMap(({ engine }) => [...engine.failuresAt.keys()]));
      const met = first.engine.batches.filter((_, step) => failedSteps.has(step));
      const hit = new Set(met.flatMap((batch) => [...batch.matchAll(/(\d+)\[/g)].map(([, id]) => `${id} failed`)));
      expect(hit.size).toBeGreaterThan(1);
      expect(new Set(first.outcomes.filter((line) => line.endsWith('failed')))).toEqual(hit);
      expect(first.outcomes.filter((line) => line.endsWith('completed'))).toHaveLength(count - hit.size);
      for (const rank of others) {
        expect(rank.engine.batches).toEqual(first.engine.batches);
        expect(rank.outcomes).toEqual(first.outcomes);
        expect(new Map(rank.tokens)).toEqual(new Map(first.tokens));
      }
      for (const rank of ranks) {
        expect(rank.lost).toEqual([]);
        expect(rank.transceiver.ledger.heldCount).toBe(0);
        for (const { free, reusable, pinned, slotCount } of rank.cache.stats())
          expect([free + reusable, pinned]).toEqual([slotCount, 0]);
      }
    }
  });

  for (const [name, options] of Object.entries({
    'a growing manager': { windowed: true },
    'a reserving manager': { reserving: true },
    'a pool that is always short': { slotCount: 14 },
  })) {
    it(`make identical schedules over identical page tables: ${name}`, async () => {
      const ends = new Set<string>();
      for (let seed = 1; seed <= 4; seed++) {
        const { clock, ranks } = cluster(4, { schedule, ...options, seed });
        const random = seededRandom(seed);
        const count = 40;
        for (let id = 1; id <= count; id++) {
          const make = KINDS[Math.floor(random() * KINDS.length)] as (typeof KINDS)[number];
          const length = 1 + Math.floor(random() * 40);
          const at = Math.floor(random() * 400);
          for (const rank of ranks) {
            clock.setTimer(at + Math.floor(random() * 30), () => rank.executor.submit(make(id, length)));
          }
          if (random() < 0.2) {
            const who = ranks[Math.floor(random() * 4)] as ClusterRank;
            clock.setTimer(at + Math.floor(random() * 200), () => void who.executor.cancel(id));
          }
          if (random() < 0.1) {
            const who = ranks[Math.floor(random() * 4)] as ClusterRank;
            who.transceiver.fail.set(id, new TransportError('the wire broke'));
          }
        }
        for (let ms = 0; ms < 20_000 && ranks.some((rank) => rank.outcomes.length < count); ms += 100)
          await pass(clock, 100);
        await pass(clock, 200);
        const [first, ...others] = ranks as [ClusterRank, ...ClusterRank[]];
        expect(first.outcomes.length).toBe(count);
        expect(first.engine.batches.length).toBeGreaterThan(12);
        for (const rank of others) {
          expect(rank.engine.batches).toEqual(first.engine.batches);
          // One that was cancelled before a rank had it ends there when it comes.
          expect(decided(rank)).toEqual(decided(first));
          expect(rank.outcomes.toSorted()).toEqual(first.outcomes.toSorted());
          expect(new Map(rank.tokens)).toEqual(new Map(first.tokens));
        }
        for (const line of first.outcomes) ends.add(line.split(' ')[1] as string);
        for (const rank of ranks) {
          expect(rank.lost).toEqual([]);
          expect(rank.transceiver.ledger.heldCount).toBe(0);
          for (const { free, reusable, pinned, slotCount } of rank.cache.stats()) {
            expect([free + reusable, pinned]).toEqual([slotCount, 0]);
          }
        }
      }
      expect(ends).toEqual(new Set(['completed', 'cancelled', 'failed']));
    });
  }
});

/** What one rank waits for while everything on the others takes no time. */
function slowRank(slow: number, what: string, ms: number): NonNullable<ClusterOptions['delayOf']> {
  return (rank) => (kind) => (rank === slow && kind === what ? ms : 1);
}

describe.each(SCHEDULES)('a request of three ranks, %s', (schedule) => {
  it('is taken when all ranks have it, in the order of rank 0', async () => {
    const { clock, ranks } = cluster(3, { schedule, delayOf: () => () => 1 });
    const [zero, one, two] = ranks as [ClusterRank, ClusterRank, ClusterRank];
    for (const id of [1, 3, 2]) zero.executor.submit(aggregateRequest(id, 4, 1));
    for (const id of [2, 1, 3]) one.executor.submit(aggregateRequest(id, 4, 1));
    await pass(clock, 50);
    expect(ranks.map((rank) => rank.engine.batches)).toEqual([[], [], []]);
    for (const id of [2, 3]) two.executor.submit(aggregateRequest(id, 4, 1));
    await pass(clock, 50);
    for (const rank of ranks) expect(rank.outcomes).toEqual(['3 completed', '2 completed']);
    two.executor.submit(aggregateRequest(1, 4, 1));
    await pass(clock, 50);
    for (const rank of ranks) expect(rank.outcomes).toEqual(['3 completed', '2 completed', '1 completed']);
  });

  it('is schedulable when its receivers asked on all ranks', async () => {
    const { clock, ranks } = cluster(3, { schedule, delayOf: slowRank(1, 'ready', 100) });
    for (const rank of ranks) rank.executor.submit(contextRequest(1, 8));
    await pass(clock, 90);
    for (const rank of ranks) expect(rank.engine.batches).toEqual([]);
    await pass(clock, 60);
    for (const rank of ranks) expect(rank.outcomes).toEqual(['1 completed']);
  });

  it('is completed when its transfer is complete on all ranks', async () => {
    const { clock, ranks } = cluster(3, { schedule, delayOf: slowRank(2, 'transfer', 200) });
    for (const rank of ranks) rank.executor.submit(contextRequest(1, 8));
    await pass(clock, 150);
    for (const rank of ranks) expect(rank.outcomes).toEqual([]);
    await pass(clock, 100);
    for (const rank of ranks) expect(rank.outcomes).toEqual(['1 completed']);
  });

  it('gives its pages back when it has drained on all ranks', async () => {
    const { clock, ranks } = cluster(3, { schedule, delayOf: slowRank(0, 'drain', 300) });
    for (const rank of ranks) rank.executor.submit(contextRequest(1, 8));
    await pass(clock, 200);
    for (const rank of ranks) {
      expect(rank.outcomes).toEqual(['1 completed']);
      expect(rank.cache.stats()[0]).toMatchObject({ pinned: 2 });
    }
    expect(ranks.map((rank) => rank.transceiver.ledger.heldCount)).toEqual([1, 0, 0]);
    await pass(clock, 200);
    for (const rank of ranks) expect(rank.cache.stats()[0]).toMatchObject({ pinned: 0 });
  });

  it('fails on all ranks with the error of the one it failed on; pages wait for all to drain', async () => {
    const { clock, ranks } = cluster(3, { schedule, delayOf: slowRank(1, 'drain', 300) });
    (ranks[2] as ClusterRank).transceiver.fail.set(1, new TransportError('the wire broke'));
    for (const rank of ranks) rank.executor.submit(contextRequest(1, 8));
    await pass(clock, 100);
    for (const [index, rank] of ranks.entries()) {
      expect(rank.outcomes).toEqual(['1 failed']);
      expect(rank.errors.get(1)).toBeInstanceOf(TransportError);
      expect(rank.errors.get(1)?.message).toBe(index === 2 ? 'the wire broke' : 'rank 2: the wire broke');
      expect(rank.cache.stats()[0]).toMatchObject({ pinned: 2 });
    }
    await pass(clock, 300);
    for (const rank of ranks) expect(rank.cache.stats()[0]).toMatchObject({ pinned: 0 });
  });

  it('fails on all when the transceiver of one refuses it, also where no page was pinned', async () => {
    const { clock, ranks } = cluster(3, { schedule, delayOf: () => () => 5 });
    (ranks[1] as ClusterRank).transceiver.refuse.set(1, new ResourceError('no aux slot'));
    for (const rank of ranks)
      for (const request of [contextRequest(1, 20), contextRequest(2, 20)]) rank.executor.submit(request);
    await pass(clock, 200);
    for (const rank of ranks) {
      expect(rank.outcomes).toEqual(['1 failed', '2 completed']);
      expect(rank.errors.get(1)?.code).toBe('ERR_KVT_RESOURCE');
      expect(rank.engine.batches).toEqual(ranks[0]?.engine.batches);
      expect(rank.cache.stats()[0]).toMatchObject({ pinned: 0 });
    }
  });

  it('is cancelled on all ranks when its user cancels it on any, also before all ranks have it', async () => {
    const { clock, ranks } = cluster(3, { schedule, delayOf: slowRank(0, 'transfer', 500) });
    const [zero, one, two] = ranks as [ClusterRank, ClusterRank, ClusterRank];
    for (const rank of ranks) rank.executor.submit(contextRequest(1, 8));
    zero.executor.submit(contextRequest(2, 8));
    await pass(clock, 50);
    expect([two.executor.cancel(1), two.executor.cancel(1), one.executor.cancel(2), zero.executor.cancel(2)]).toEqual([
      true,
      false,
      false,
      true,
    ]);
    await pass(clock, 50);
    expect(zero.outcomes.sort()).toEqual(['1 cancelled', '2 cancelled']);
    expect([one.outcomes, two.outcomes]).toEqual([['1 cancelled'], ['1 cancelled']]);
    for (const late of [one, two]) late.executor.submit(contextRequest(2, 8));
    await pass(clock, 50);
    for (const rank of [one, two]) expect(rank.outcomes).toEqual(['1 cancelled', '2 cancelled']);
    // All ranks have had it and it is over: the id can be used again.
    for (const rank of ranks) rank.executor.submit(aggregateRequest(2, 8, 1));
    await pass(clock, 50);
    for (const rank of ranks) expect(rank.outcomes.at(-1)).toBe('2 completed');
  });

  it('that some rank never gets holds nobody up, and ends after twice the transfer timeout', async () => {
    const { clock, ranks } = cluster(3, { schedule, kvTransferTimeoutMs: 1000, delayOf: () => () => 1 });
    const [zero, one, two] = ranks as [ClusterRank, ClusterRank, ClusterRank];
    for (const rank of [zero, two]) rank.executor.submit(aggregateRequest(1, 8, 1));
    for (const rank of ranks) rank.executor.submit(aggregateRequest(2, 8, 1));
    await pass(clock, 1900, 10);
    for (const rank of ranks) expect(rank.outcomes).toEqual(['2 completed']);
    await pass(clock, 400, 10);
    for (const rank of [zero, two]) {
      expect(rank.outcomes).toEqual(['2 completed', '1 failed']);
      expect(rank.errors.get(1)?.message).toMatch(/request 1: rank 1 did not get it within 2000 ms/);
    }
    expect(zero.warnings.length + two.warnings.length).toBeGreaterThanOrEqual(1);
    expect(zero.executor.stats().rankGroup?.requestsNotShared).toBe(zero.warnings.length);
    one.executor.submit(aggregateRequest(1, 8, 1));
    await pass(clock, 50);
    expect(one.outcomes).toEqual(['2 completed', '1 failed']);
  });

  it('whose transfer never ends on one rank fails on all after twice the transfer timeout', async () => {
    const { clock, ranks } = cluster(3, {
      schedule,
      kvTransferTimeoutMs: 500,
      delayOf: slowRank(1, 'transfer', Infinity),
    });
    for (const rank of ranks) rank.executor.submit(contextRequest(1, 8));
    await pass(clock, 1500, 10);
    for (const rank of ranks) {
      expect(rank.outcomes).toEqual(['1 failed']);
      expect(rank.errors.get(1)?.message).toMatch(/complete here, and was not on rank 1 within 1000 ms more/);
    }
    expect((ranks[0] as ClusterRank).executor.stats().rankGroup?.transfersNotShared).toBe(1);
    await pass(clock, 100);
    for (const rank of ranks) expect(rank.cache.stats()[0]).toMatchObject({ pinned: 0 });
  });

  it('that differs between ranks fails on all, naming them', async () => {
    const { clock, ranks } = cluster(3, { schedule, delayOf: () => () => 1 });
    ranks.forEach((rank, index) => {
      rank.executor.submit(aggregateRequest(1, index === 2 ? 9 : 8, 1));
    });
    await pass(clock, 50);
    for (const rank of ranks) {
      expect(rank.outcomes).toEqual(['1 failed']);
      expect(rank.errors.get(1)?.message).toMatch(/request 1 is not the same on rank 0 and rank 2/);
    }
  });

  it('that no pool can hold is refused on all, and its id is in use until then', async () => {
    const { clock, ranks } = cluster(3, { schedule, slotCount: 8, delayOf: () => () => 1 });
    for (const rank of ranks) {
      expect(() => rank.executor.submit(aggregateRequest(1, 400, 1))).toThrow(/needs 100 blocks/);
      rank.executor.submit(aggregateRequest(1, 8, 1));
      expect(() => rank.executor.submit(aggregateRequest(1, 8, 1))).toThrow(ArgumentError);
    }
    await pass(clock, 50);
    for (const rank of ranks) expect(rank.outcomes).toEqual(['1 completed']);
  });

  it('an engine that fails on one rank fails the batch on all', async () => {
    const { clock, ranks } = cluster(3, { schedule, delayOf: () => () => 1 });
    (ranks[1] as ClusterRank).engine.failure = new Error('out of memory');
    for (const rank of ranks) rank.executor.submit(contextRequest(1, 20));
    await pass(clock, 100);
    for (const rank of ranks) {
      expect(rank.outcomes).toEqual(['1 failed']);
      expect(rank.errors.get(1)?.message).toMatch(/out of memory/);
      expect(rank.cache.stats()[0]).toMatchObject({ pinned: 0 });
    }
  });

  it.each(['enqueue', 'device'] as const)(
    'a forward that fails on one rank alone (%s) gives no token on any, also where its last one was due; the rest goes on',
    async (how) => {
      const { clock, ranks } = cluster(3, { schedule, delayOf: () => () => 1, windowed: true });
      (ranks[2] as ClusterRank).engine.failuresAt.set(1, how);
      // The prompt's token, then the one that fails with its end in the same forward.
      for (const rank of ranks) rank.executor.submit(aggregateRequest(1, 8, 2));
      clock.setTimer(30, () => {
        for (const rank of ranks) rank.executor.submit(aggregateRequest(2, 8, 2));
      });
      await pass(clock, 100);
      const text = how === 'enqueue' ? /^(rank 2: )?.*took no work/ : /^(rank 2: )?.*device failed/;
      for (const rank of ranks) {
        expect(rank.outcomes).toEqual(['1 failed', '2 completed']);
        expect(rank.tokens).toEqual(
          new Map([
            [1, [1]],
            [2, [2, 3]],
          ]),
        );
        expect(rank.errors.get(1)?.message).toMatch(text);
        expect(rank.lost).toEqual([]);
        expect(rank.engine.batches).toEqual(ranks[0]?.engine.batches);
      }
      expect(ranks[0]?.errors.get(1)?.message).toMatch(/^rank 2: /);
    },
  );

  it('whose executor closes at its deadline with a step that the others have not agreed on gives everything back', async () => {
    const { clock, ranks } = cluster(2, {
      schedule,
      delayOf: (rank) => (what) => (what === 'forward' && rank === 1 ? 5000 : 1),
    });
    for (const rank of ranks) rank.executor.submit(aggregateRequest(1, 8, 1));
    await pass(clock, 20);
    const closed = ranks.map((rank) => rank.executor.close({ deadlineMs: 100 }));
    await pass(clock, 6000, 10);
    await Promise.all(closed);
    for (const rank of ranks) {
      expect(rank.outcomes).toEqual(['1 failed']);
      for (const { free, reusable, slotCount } of rank.cache.stats()) expect(free + reusable).toBe(slotCount);
    }
  });
});

describe.each(SCHEDULES)('the group of three ranks, %s', (schedule) => {
  it('does not exchange when idle, nor while transfers take their time', async () => {
    const { clock, ranks } = cluster(3, { schedule, delayOf: slowRank(1, 'transfer', 5000) });
    await pass(clock, 1000, 10);
    expect(ranks.map((rank) => rank.executor.stats().rankGroup?.exchanges)).toEqual([0, 0, 0]);
    for (const rank of ranks) rank.executor.submit(contextRequest(1, 8));
    await pass(clock, 500, 10);
    const before = ranks[0]?.executor.stats().rankGroup?.exchanges as number;
    expect(before).toBeLessThan(12);
    await pass(clock, 4000, 10);
    expect(ranks[0]?.executor.stats().rankGroup?.exchanges).toBe(before);
    await pass(clock, 1000, 10);
    for (const rank of ranks) expect(rank.outcomes).toEqual(['1 completed']);
  });

  it('that ran different schedules parts: every request fails with what differs, and no new one is taken', async () => {
    const clock = new FakeClock();
    const groups = LocalRankGroup.of(3);
    const ranks = groups.map(
      (group, rank) =>
        new ClusterRank(clock, group, {
          schedule,
          delayOf: () => () => 1,
          limits: { chunkTokens: rank === 1 ? 4 : 8 },
        }),
    );
    for (const rank of ranks) rank.executor.submit(aggregateRequest(1, 16, 1));
    await pass(clock, 100);
    for (const rank of ranks) {
      expect(rank.outcomes).toEqual(['1 failed']);
      expect(rank.errors.get(1)?.message).toMatch(
        /different schedules before step 2, prompt tokens in the last step: rank 0 8, rank 1 4, rank 2 8/,
      );
      expect(rank.lost).toEqual([rank.errors.get(1)]);
      expect(() => rank.executor.submit(aggregateRequest(2, 8, 1))).toThrow(/restart all of them/);
      expect(rank.cache.stats()[0]).toMatchObject({ pinned: 0 });
      expect(await rank.executor.close()).toEqual({ drained: true, failed: 0 });
    }
  });

  it('that lost a rank frees each rank’s pages as its own transfers drain', async () => {
    const clock = new FakeClock();
    const groups = LocalRankGroup.of(3);
    const ranks = groups.map(
      (group, rank) =>
        new ClusterRank(clock, group, {
          schedule,
          delayOf: () => (what) => (what === 'drain' ? 100 * (rank + 1) : what === 'transfer' ? 9000 : 1),
        }),
    );
    for (const rank of ranks) rank.executor.submit(contextRequest(1, 8));
    await pass(clock, 50);
    await groups[2]?.close('its process ends');
    await pass(clock, 120);
    for (const rank of ranks) {
      expect(rank.outcomes).toEqual(['1 failed']);
      expect(rank.errors.get(1)).toMatchObject({
        code: 'ERR_KVT_PEER_LOST',
        message: 'rank 2 left the rank group: its process ends',
      });
    }
    expect(ranks.map((rank) => rank.cache.stats()[0]?.pinned)).toEqual([0, 2, 2]);
    await pass(clock, 300);
    expect(ranks.map((rank) => rank.cache.stats()[0]?.pinned)).toEqual([0, 0, 0]);
  });

  it('closes together: live requests end first, requests of some ranks only do not hold it', async () => {
    const { clock, ranks } = cluster(3, { schedule, delayOf: () => () => 10 });
    for (const rank of ranks) rank.executor.submit(contextRequest(1, 30));
    await pass(clock, 5);
    const closed = ranks.map((rank) => rank.executor.close());
    expect(() => ranks[0]?.executor.submit(contextRequest(2, 8))).toThrow(StateError);
    await pass(clock, 300);
    expect(await Promise.all(closed)).toEqual(ranks.map(() => ({ drained: true, failed: 0 })));
    for (const rank of ranks) expect([rank.outcomes, rank.lost]).toEqual([['1 completed'], []]);
  });

  it('whose rank 0 closes at a deadline ends on all ranks', async () => {
    const { clock, ranks } = cluster(3, { schedule, delayOf: slowRank(1, 'transfer', 60_000) });
    for (const rank of ranks) rank.executor.submit(contextRequest(1, 8));
    await pass(clock, 50);
    const closed = (ranks[0] as ClusterRank).executor.close({ deadlineMs: 100 });
    await pass(clock, 200);
    expect(await closed).toEqual({ drained: false, failed: 1 });
    for (const rank of ranks) expect(rank.outcomes).toEqual(['1 failed']);
    for (const rank of ranks.slice(1)) {
      expect(rank.errors.get(1)?.message).toMatch(/executor of rank 0 was closed/);
      expect(rank.lost).toHaveLength(1);
    }
  });

  it('waits for a rank no longer than its bound', async () => {
    const clock = new FakeClock();
    const [group] = LocalRankGroup.of(2, { clock, exchangeTimeoutMs: 500 }) as [LocalRankGroup, LocalRankGroup];
    const rank = new ClusterRank(clock, group, { schedule });
    rank.executor.submit(aggregateRequest(1, 8, 1));
    await pass(clock, 490);
    expect(rank.outcomes).toEqual([]);
    await pass(clock, 50);
    expect(rank.outcomes).toEqual(['1 failed']);
    expect(rank.errors.get(1)).toMatchObject({
      code: 'ERR_KVT_TRANSFER_TIMEOUT',
      message: 'rank 1 did not come to the exchange within 500 ms',
    });
  });

  it('needs a transceiver whose ledger can be shared, no host tier, and a size that is one', () => {
    const clock = new FakeClock();
    const [group] = LocalRankGroup.of(2) as [LocalRankGroup, LocalRankGroup];
    const { executor: _, ...parts } = new ClusterRank(clock, LocalRankGroup.of(1)[0] as LocalRankGroup);
    const transceiver = Object.create(parts.transceiver, { ledger: { value: undefined } });
    const limits = { chunkTokens: 8, tokenBudget: 24, maxTokensInBuffer: null };
    expect(
      () => new Executor({ clock, cache: parts.cache, engine: parts.engine, transceiver, limits, rankGroup: group }),
    ).toThrow(ConfigError);
    const hosted = Object.create(parts.cache, { layerGroups: { value: [{ hostSlotCount: 4 }] } });
    expect(() => new Executor({ clock, ...parts, cache: hosted, limits, rankGroup: group })).toThrow(
      /cannot have a host tier/,
    );
    expect(() => LocalRankGroup.of(0)).toThrow(ArgumentError);
  });
});
