import { describe, expect, it } from 'vitest';
import { SystemClock } from '../../src/clock.js';
import { resolveCacheTransceiverConfig } from '../../src/config/index.js';
import { ArgumentError } from '../../src/errors.js';
import { buildPageTable, type RankPlaceInDp, SINGLE_RANK } from '../../src/mapping/index.js';
import { type OpenedTransceiver, openTransceiver } from '../../src/open-transceiver.js';
import type { Settled } from '../../src/session/cache-transceiver.js';
import { ZeromqMessenger } from '../../src/wire/index.js';
import { type SimAgent, SimFabric } from '../sim-lite/sim-agent.js';
import { TableCache } from '../sim-lite/table-cache.js';
import { makeRequest } from '../sim-lite/transfer-pair.js';
import { HANG_LIMIT_MS } from '../support/deadline.js';

const SLOTS = [3, 1, 2, 0];

interface OpenRank extends OpenedTransceiver {
  readonly agent: SimAgent;
  readonly cache: TableCache;
  readonly settled: Settled[];
}

/** Ranks of one or several instances in this process: real sockets and time, memory simulated. */
class RankSet {
  readonly clock = new SystemClock();
  readonly fabric = new SimFabric(this.clock);
  readonly ranks: OpenRank[] = [];

  async open(instanceName: string, place: RankPlaceInDp | undefined, kvHeads: number): Promise<OpenRank> {
    const groups = [{ kind: 'attention', windowSize: null, tokensPerBlock: 4, layers: [0, 1], slotCount: 4 }] as const;
    const agent = this.fabric.createAgent(`${instanceName}-${this.ranks.length}`);
    const cache = new TableCache(groups, 4);
    const opened = await openTransceiver({
      instanceName,
      agent,
      messenger: await ZeromqMessenger.open({}),
      cache,
      layout: buildPageTable({
        groups,
        kvHeads,
        headDim: 4,
        dtype: 'bfloat16',
        poolLayout: 'per-layer',
        blockLayout: 'HND',
      }),
      config: resolveCacheTransceiverConfig({ backend: 'HOST' }),
      ...(place === undefined ? {} : { place }),
    });
    const rank = { ...opened, agent, cache, settled: [] };
    this.ranks.push(rank);
    return rank;
  }

  async until(what: string, isThere: () => boolean): Promise<void> {
    const deadline = this.clock.now() + HANG_LIMIT_MS;
    while (!isThere()) {
      if (this.clock.now() > deadline) {
        const state = this.ranks.map(({ transceiver }) => JSON.stringify(transceiver.stats())).join('\n');
        throw new Error(`no ${what} within ${HANG_LIMIT_MS} ms:\n${state}`);
      }
      await this.clock.nextTurn();
      for (const { agent, transceiver, settled } of this.ranks) {
        agent.run();
        settled.push(...transceiver.takeSettled());
      }
    }
  }

  async close(): Promise<void> {
    await Promise.all(this.ranks.map(({ transceiver }) => transceiver.close(500)));
  }
}

/** All bytes of the keys of a layer. */
function pool({ agent, pageTable }: OpenRank, index: number): Uint8Array {
  const { base, slotStride, slotCount } = pageTable.pools[index] as (typeof pageTable.pools)[number];
  return agent.bytesAt(base, slotStride * slotCount);
}

describe('ranks over ZeroMQ', () => {
  it('two context ranks, opened and joined, write their heads into the pages of one generation rank', async () => {
    const set = new RankSet();
    try {
      const place = { ...SINGLE_RANK, tpSize: 2, layersPerStage: [2] };
      const context = [
        await set.open('context', place, 1),
        await set.open('context', { ...place, tpRank: 1 }, 1),
      ] as const;
      const generation = await set.open('generation', undefined, 2);
      const endpoints = context.map(({ transceiver }) => transceiver.endpoint);
      const request = makeRequest(7, 'generation', { endpoint: endpoints[1] ?? '' });
      generation.cache.place(7, SLOTS);
      // Asked before the instance is whole: HELLO is repeated until it is.
      generation.transceiver.requestAndReceiveAsync(request);
      for (const { transceiver } of context) transceiver.joinInstance(endpoints);
      const sent = context.map((rank, index) => {
        const one = makeRequest(1, 'context');
        rank.cache.place(1, [0, 1, 2, 3]);
        for (const layer of [0, 1]) pool(rank, layer).fill(16 * (index + 1) + layer);
        return { rank, one };
      });
      await set.until('receivers', () => sent.every(({ rank, one }) => rank.transceiver.receiverReady(one)));
      for (const { rank, one } of sent) {
        one.chunkEnd = 16;
        one.outputTokens.push(42);
        rank.transceiver.respondAndSendAsync(one, { after: null });
      }
      await set.until('outcomes', () => set.ranks.every(({ settled }) => settled.length > 0));
      expect(set.ranks.map(({ settled }) => settled[0]?.outcome)).toEqual(['completed', 'completed', 'completed']);
      expect(generation.settled[0]?.firstTokens).toEqual([42]);
      // Keys, then values; of each the head of rank 0, then that of rank 1: 4 tokens of 4 elements of 2 bytes.
      for (const layer of [0, 1]) {
        const page = [...pool(generation, layer).subarray(0, 128)];
        const heads = [0, 1, 0, 1].flatMap((rank) => new Array<number>(32).fill(16 * (rank + 1) + layer));
        expect(page).toEqual(heads);
      }
      await set.until('release', () => set.ranks.every(({ transceiver }) => transceiver.stats().held === 0));
    } finally {
      await set.close();
    }
  });

  it('a place outside its instance is refused, and nothing stays open', async () => {
    const set = new RankSet();
    const place = { ...SINGLE_RANK, tpSize: 2, tpRank: 2, layersPerStage: [2] };
    await expect(set.open('context', place, 1)).rejects.toThrow(ArgumentError);
    expect(set.ranks).toEqual([]);
  });
});
