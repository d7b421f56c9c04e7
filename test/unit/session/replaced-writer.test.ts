import { describe, expect, it } from 'vitest';
import { RANK_LIMITS, type Rank, type RankRequest, RankWorld } from '../../sim-lite/rank-world.js';

const SHAPE = { tpSize: 2, kvHeads: 2 };

/**
 * Two context ranks have computed a prompt and one receiver asks the first of them; to the second its greeting does not get through, until another
 * process has taken its place.
 */
async function replacedBeforeAsked(firstGenTokens: readonly number[]) {
  const world = new RankWorld();
  const context = await world.instance('context', SHAPE);
  const [generation] = (await world.instance('generation', { kvHeads: 2 })) as [Rank];
  const options = { style: 'context_first', firstGenTokens } as const;
  const sent = world.place(context, 'context', { ...options, generation: generation.transceiver.endpoint });
  world.chunk(sent, 0, 16);
  const [first, second] = context as [Rank, Rank];
  const deafen = world.network.addRule(({ from, to }) =>
    from === generation.transceiver.endpoint && to === second.transceiver.endpoint ? { copies: 0 } : null,
  );
  const received = world.place([generation], 'generation', { ...options, endpoint: first.transceiver.endpoint });
  world.ask(received);
  await world.run(300);
  const fresh = await world.restart('context', SHAPE, second, context);
  deafen();
  return { world, generation, fresh, received };
}

describe('a writer that was replaced before it was asked', () => {
  it('says at once that it is not the one that computed the prompt', async () => {
    const { world, generation, fresh, received } = await replacedBeforeAsked([7]);
    await world.run(600);
    expect(generation.settled).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_TRANSPORT' } }]);
    expect(generation.settled[0]?.error?.message).toMatch(/it took the place of the one that did/);
    expect(generation.settled[0]?.error?.details['remoteCode']).toBe('ERR_KVT_SESSION_RETIRED');
    expect(fresh.transceiver.stats().counters['request_data_refused:ERR_KVT_SESSION_RETIRED']).toBe(1);
    expect(generation.cache.isPinned((received[0] as RankRequest).request.id)).toBe(false);
  });

  it('is waited for no longer than for progress when nobody said that the prompt is computed, once a sibling is done', async () => {
    const { world, generation } = await replacedBeforeAsked([]);
    await world.run(RANK_LIMITS.noProgressTimeoutMs - 500, 50);
    expect(generation.settled).toEqual([]);
    await world.run(1500, 50);
    expect(generation.settled).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_TRANSFER_TIMEOUT' } }]);
    expect(generation.settled[0]?.error?.message).toMatch(/noProgressTimeoutMs/);
  });

  it('alone: what the process before it computed is not waited for', async () => {
    const world = new RankWorld();
    const context = await world.instance('context');
    const [generation] = (await world.instance('generation')) as [Rank];
    const fresh = await world.restart('context', {}, context[0] as Rank, context);
    const options = { style: 'context_first', firstGenTokens: [7], endpoint: fresh.transceiver.endpoint } as const;
    world.ask(world.place([generation], 'generation', options));
    await world.run(200);
    expect(generation.settled).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_TRANSPORT' } }]);
    expect(world.leftovers()).toEqual([]);
  });
});

describe('a prompt that is computed', () => {
  it('is sent to whoever asks for it late', async () => {
    const world = new RankWorld();
    const context = await world.instance('context', SHAPE);
    const [generation] = (await world.instance('generation', { kvHeads: 2 })) as [Rank];
    const options = { style: 'context_first', firstGenTokens: [7] } as const;
    const sent = world.place(context, 'context', { ...options, generation: generation.transceiver.endpoint });
    world.chunk(sent, 0, 16);
    await world.run(1000);
    const endpoint = (context[1] as Rank).transceiver.endpoint;
    const received = world.place([generation], 'generation', { ...options, endpoint });
    world.ask(received);
    await world.run(200);
    expect(generation.settled.map(({ outcome }) => outcome)).toEqual(['completed']);
    expect(world.wrongWords(received[0] as RankRequest)).toBe(0);
    expect(world.leftovers()).toEqual([]);
  });

  it('and another DP group is asked too: it says that it does not have it, and the group that has it is waited for', async () => {
    const world = new RankWorld();
    const context = await world.instance('context', { tpSize: 2, dpSize: 2 });
    const [generation] = (await world.instance('generation')) as [Rank];
    const options = { style: 'context_first', firstGenTokens: [7] } as const;
    const [, second] = context as [Rank, Rank];
    world.chunk(world.place([second], 'context', options), 0, 16);
    const received = world.place([generation], 'generation', { ...options, endpoint: second.transceiver.endpoint });
    world.ask(received);
    await world.run(200);
    expect(generation.settled.map(({ outcome }) => outcome)).toEqual(['completed']);
    expect(world.leftovers()).toEqual([]);
    const [other] = context as [Rank, Rank];
    expect(other.transceiver.stats().counters['request_data_refused:ERR_KVT_NOT_ASSIGNED']).toBe(1);
  });
});
