import { describe, expect, it } from 'vitest';
import { decodeFrame, encodeFrame } from '../../../src/wire/index.js';
import { type Rank, type RankRequest, RankWorld } from '../../sim-lite/rank-world.js';

const ALL = 16;
const DP2 = { tpSize: 4, dpSize: 2 };

/** A context instance of two DP groups of two ranks each; `dpRank` has the request. Two generation ranks. */
async function begin(dpRank: number, ctxDpRank: number | null = null) {
  const world = new RankWorld();
  const context = await world.instance('context', DP2);
  const generation = await world.instance('generation', { tpSize: 2 });
  const group = (of: number): Rank[] => context.filter(({ place }) => place.dpRank === of);
  const sent = world.place(group(dpRank), 'context');
  const endpoint = context[0]?.transceiver.endpoint ?? '';
  const received = world.place(generation, 'generation', { endpoint, ctxDpRank });
  return { world, context, generation, sent, received, others: group(1 - dpRank) };
}

const outcomes = (requests: readonly RankRequest[]): string[] =>
  requests.map(({ rank }) => rank.settled.map(({ outcome }) => outcome).join());

const sentTo = (world: RankWorld, ranks: readonly Rank[], type: string): number =>
  world.network.log.filter(
    ({ to, message }) => message.type === type && ranks.some(({ transceiver }) => transceiver.endpoint === to),
  ).length;

describe('attention DP, the group of the request not known', () => {
  for (const dpRank of [0, 1])
    it(`asks every group; group ${dpRank} writes, the other one is told to forget it`, async () => {
      const { world, sent, received, others } = await begin(dpRank);
      world.ask(received);
      await world.run(50);
      expect(sentTo(world, others, 'REQUEST_DATA')).toBe(2);
      expect(sent.every(({ rank, request }) => rank.transceiver.receiverReady(request))).toBe(true);
      world.chunk(sent, 0, 8);
      await world.run(50);
      expect(sentTo(world, others, 'CANCEL')).toBe(2);
      world.chunk(sent, 8, ALL);
      await world.run(50);
      expect(outcomes(received)).toEqual(['completed', 'completed']);
      expect(outcomes(sent)).toEqual(['completed', 'completed']);
      for (const one of received) expect(world.wrongWords(one)).toBe(0);
      expect(received[0]?.rank.settled[0]?.timings).toMatchObject({ bytesPlanned: 2048, bytesDone: 2048 });
      expect(world.leftovers()).toEqual([]);
    });

  it('the context request comes first: the early question is served, the other group answers the cancel', async () => {
    const { world, sent, received, others } = await begin(1);
    world.chunk(sent, 0, ALL);
    await world.run(20);
    world.ask(received);
    await world.run(100);
    expect(outcomes(received)).toEqual(['completed', 'completed']);
    expect(sentTo(world, others, 'CANCEL')).toBe(2);
    expect(world.leftovers()).toEqual([]);
  });

  it('pages are held until the group that does not write has said so', async () => {
    const { world, sent, received, others } = await begin(0);
    const mute = world.network.addRule(({ to, message }) =>
      message.type === 'CANCEL' && others.some(({ transceiver }) => transceiver.endpoint === to) ? { copies: 0 } : null,
    );
    world.ask(received);
    await world.run(50);
    world.chunk(sent, 0, ALL);
    await world.run(100);
    expect(outcomes(received)).toEqual(['completed', 'completed']);
    expect(received.every(({ rank, request }) => rank.cache.isPinned(request.id))).toBe(true);
    mute();
    await world.run(1_000);
    expect(world.leftovers()).toEqual([]);
  });

  it('no group has it: the queue clock ends it', async () => {
    const { world, received } = await begin(0);
    world.ask(received);
    await world.run(20_200, 100);
    expect(outcomes(received)).toEqual(['failed', 'failed']);
    await world.run(1_000, 100);
    expect(world.leftovers()).toEqual([]);
  });

  it('refused by every group: failed; by one: not', async () => {
    const { world, sent, received, others } = await begin(0);
    const generation = received.map(({ rank }) => rank.transceiver.endpoint);
    world.network.addRule(({ from, message }) =>
      message.type === 'REQUEST_DATA' && generation.includes(from) ? { copies: 0 } : null,
    );
    world.ask(received);
    await world.run(50);
    // The same questions with little time left, so that they run out before the receiver gives up.
    const hurry = (ranks: readonly Rank[]): void => {
      for (const { transceiver } of ranks) {
        const asked = new Map(
          world.network.log
            .filter(({ to, message }) => to === transceiver.endpoint && message.type === 'REQUEST_DATA')
            .map(({ from, bytes }) => [from, decodeFrame(bytes)]),
        );
        for (const [from, { message, incarnation }] of asked) {
          if (message.type !== 'REQUEST_DATA') continue;
          const hurried = encodeFrame({ ...message, timeLeftMs: 200 }, { incarnation });
          world.network.sayAs(from, transceiver.endpoint, hurried);
        }
      }
    };
    hurry(others);
    await world.run(500);
    const refusals = world.network.log.filter(
      ({ message }) => message.type === 'WRITER_REPORT' && message.errorCode === 'ERR_KVT_NOT_ASSIGNED',
    );
    expect(refusals.length).toBeGreaterThanOrEqual(2);
    expect(refusals.every(({ to }) => generation.includes(to))).toBe(true);
    expect(outcomes(received)).toEqual(['', '']);
    hurry(sent.map(({ rank }) => rank));
    await world.run(700);
    expect(outcomes(received)).toEqual(['failed', 'failed']);
    expect(received[0]?.rank.settled[0]?.error?.message).toContain('another group has it, or none');
    expect(world.leftovers()).toEqual([]);
  });

  it('a cancel by the user reaches every group', async () => {
    const { world, sent, received, others } = await begin(0);
    world.ask(received);
    await world.run(50);
    for (const { rank, request } of received) rank.transceiver.cancelRequest(request, 'client left');
    await world.run(100);
    expect(outcomes(received)).toEqual(['cancelled', 'cancelled']);
    expect(sentTo(world, others, 'CANCEL')).toBe(2);
    expect(sent.map(({ rank, request }) => rank.transceiver.receiverReady(request))).toEqual([false, false]);
    await world.run(50);
    expect(world.leftovers()).toEqual([]);
  });

  it('a rank of the other group dies before it is known who writes: the request goes on', async () => {
    const { world, sent, received, others } = await begin(0);
    world.ask(received);
    await world.run(50);
    world.kill(others[0] as Rank);
    await world.run(50);
    expect(outcomes(received)).toEqual(['', '']);
    world.chunk(sent, 0, ALL);
    await world.run(100);
    expect(outcomes(received)).toEqual(['completed', 'completed']);
    // The dead one was asked: nothing proves that it did not write.
    expect(received[0]?.rank.cache.pins.size).toBe(1);
    await world.run(11_000, 100);
    expect(world.leftovers()).toEqual([]);
  });

  it('the group that has it fails: so does the receive, at once', async () => {
    const { world, sent, received } = await begin(1);
    world.ask(received);
    await world.run(50);
    for (const { rank } of sent) rank.agent.scripts.push('fail');
    world.chunk(sent, 0, 8);
    await world.run(100);
    expect(outcomes(received)).toEqual(['failed', 'failed']);
    expect(world.leftovers()).toEqual([]);
  });
});

describe('attention DP, the group of the request known', () => {
  it('asks that group alone', async () => {
    const { world, sent, received, others } = await begin(1, 1);
    world.ask(received);
    await world.run(50);
    world.chunk(sent, 0, ALL);
    await world.run(50);
    expect(outcomes(received)).toEqual(['completed', 'completed']);
    expect(sentTo(world, others, 'REQUEST_DATA')).toBe(0);
    for (const one of received) expect(world.wrongWords(one)).toBe(0);
  });

  it('a group that does not exist is refused by name', async () => {
    const { world, received } = await begin(1, 2);
    world.ask(received);
    await world.run(50);
    expect(outcomes(received)).toEqual(['failed', 'failed']);
    expect(received[0]?.rank.settled[0]?.error).toMatchObject({
      code: 'ERR_KVT_COMPATIBILITY',
      message: expect.stringContaining('ctxDpRank 2'),
    });
    expect(world.leftovers()).toEqual([]);
  });

  it('on the generation side: the ranks of the asking group are the receivers', async () => {
    const world = new RankWorld();
    const context = await world.instance('context', { tpSize: 2 });
    const generation = await world.instance('generation', DP2);
    const sent = world.place(context, 'context');
    const endpoint = context[1]?.transceiver.endpoint ?? '';
    const received = world.place(generation.slice(2), 'generation', { endpoint });
    world.ask(received);
    await world.run(50);
    expect(sent.map(({ rank, request }) => rank.transceiver.receiverReady(request))).toEqual([true, true]);
    world.chunk(sent, 0, ALL);
    await world.run(50);
    expect(outcomes(received)).toEqual(['completed', 'completed']);
    for (const one of received) expect(world.wrongWords(one)).toBe(0);
    expect(world.leftovers()).toEqual([]);
  });
});
