import { describe, expect, it } from 'vitest';
import type { Message } from '../../../src/wire/index.js';
import type { SliceResult } from '../../../src/wire/messages.js';
import { RANK_LIMITS, type RankRequest } from '../../sim-lite/rank-world.js';
import { completes, questionTo, speak, underWay } from './under-way.js';

type Pair = Awaited<ReturnType<typeof underWay>>;

/** What the writer might say itself, about the real ticket. */
function liar({ world, context, generation }: Pair) {
  const { rid, ticket } = questionTo(world, context);
  const say = (message: Message): void => speak(world, context, generation, message);
  const slice = (rest: Partial<SliceResult>): SliceResult => ({
    ...{
      type: 'SLICE_RESULT',
      rid,
      ticket,
      sliceSeq: 1,
      isLast: false,
      ok: true,
      bytes: 0n,
      beginBlock: 2,
      endBlock: 2,
    },
    ...rest,
  });
  return { rid, ticket, say, slice };
}

describe('a writer that lies', () => {
  it('with slices that bring no block does not hold the pages beyond transferQueueTimeoutMs', async () => {
    const pair = await underWay();
    const { say, slice } = liar(pair);
    const { world, generation } = pair;
    for (let ms = 0; ms < RANK_LIMITS.transferQueueTimeoutMs + 2_000; ms += 500) {
      say(slice({ sliceSeq: 1 + ms / 500 }));
      await world.run(500, 50);
    }
    expect(generation.settled).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_TRANSFER_TIMEOUT' } }]);
    expect(world.leftovers()).toEqual([]);
  });

  it('with empty or failed slices further and further on does not either, and salvages what came before', async () => {
    for (const lie of [{}, { ok: false, beginBlock: 2 }]) {
      const pair = await underWay();
      const { say, slice } = liar(pair);
      const { world, generation } = pair;
      // Each at a block that no slice had reached.
      for (const block of [3, 4]) {
        await world.run(RANK_LIMITS.transferQueueTimeoutMs / 2 - 500, 50);
        say(slice({ sliceSeq: block, beginBlock: block, endBlock: block, ...lie }));
      }
      await world.run(2000, 50);
      expect(generation.settled).toMatchObject([{ outcome: 'failed', salvageableTokens: 8 }]);
      expect(world.leftovers()).toEqual([]);
    }
  });

  it('with slices that overlap, or whose bytes are not those of the plan, salvages no block of them', async () => {
    for (const [lie, salvaged] of [
      [{ beginBlock: 1, endBlock: 4, bytes: 1n }, 8],
      [{ beginBlock: 2, endBlock: 4, bytes: 1n }, 0],
    ] as const) {
      const pair = await underWay();
      const { say, slice } = liar(pair);
      say(slice(lie));
      await pair.world.run(20);
      pair.context.transceiver.cancelRequest((pair.sent[0] as RankRequest).request, 'enough');
      await pair.world.run(100);
      expect(pair.generation.settled).toMatchObject([{ outcome: 'cancelled', salvageableTokens: salvaged }]);
      expect(pair.world.leftovers()).toEqual([]);
    }
  });

  it('with a slice beyond the prompt is counted, and salvages nothing', async () => {
    const pair = await underWay();
    const { say, slice } = liar(pair);
    say(slice({ beginBlock: 0, endBlock: 2 ** 31 - 1 }));
    await pair.world.run(20);
    const { counters } = pair.generation.transceiver.stats();
    expect(counters['protocol_error:slice_beyond_prompt']).toBe(1);
    await completes(pair.world, pair.sent, pair.received);
  });

  it('with a report under the id of another request is not believed', async () => {
    const pair = await underWay();
    const { rid, ticket, say } = liar(pair);
    const report = { outcome: 'DONE', slices: 2, bytes: 0n, drained: true, errorCode: '', message: '' } as const;
    say({ type: 'WRITER_REPORT', rid: rid + 1n, ticket, ...report });
    await pair.world.run(20);
    expect(pair.generation.transceiver.stats().counters['stale:WRITER_REPORT']).toBe(1);
    await completes(pair.world, pair.sent, pair.received);
  });
});
