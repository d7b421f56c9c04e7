import { describe, expect, it } from 'vitest';
import { RANK_LIMITS, type Rank, type RankRequest, RankWorld } from '../../sim-lite/rank-world.js';
import { spendPortions } from './spent-clock.js';

const COUNT = 5;
const FIRST_RID = 1n << 42n;

/** Transfers of as many requests that have begun and hang: the first of two chunks was handed to the agent. */
async function manyUnderWay() {
  const world = new RankWorld();
  const [context] = (await world.instance('context', { auxSlots: 16 })) as [Rank];
  const [generation] = (await world.instance('generation', { auxSlots: 16 })) as [Rank];
  context.agent.scripts.push(...Array.from({ length: 100 }, () => 'hang' as const));
  const sent: RankRequest[] = [];
  const received: RankRequest[] = [];
  for (let i = 0; i < COUNT; i++) {
    const common = { rid: FIRST_RID + BigInt(i), firstSlot: i };
    sent.push(...world.place([context], 'context', common));
    received.push(...world.place([generation], 'generation', { ...common, endpoint: context.transceiver.endpoint }));
  }
  world.ask(received);
  await world.run(50);
  world.chunk(sent, 0, 8);
  await world.run(20);
  return { world, context, generation, sent, received };
}

/** One turn of the event loop, and no time. */
async function turn(world: RankWorld): Promise<void> {
  await world.clock.turn();
  take(world);
}

/** Within one turn: that a connection broke. */
function hear(world: RankWorld): void {
  world.clock.advance(1);
  take(world);
}

function take(world: RankWorld): void {
  for (const rank of world.ranks) rank.settled.push(...rank.transceiver.takeSettled());
}

function codes(rank: Rank): string[] {
  return rank.settled.map(({ outcome, error }) => error?.code ?? outcome);
}

const LOST = 'ERR_KVT_PEER_LOST';

describe('many receives whose writer is lost', () => {
  it('end one by one, each once, whatever its user does meanwhile', async () => {
    const { world, context, generation, received } = await manyUnderWay();
    spendPortions(world.clock);
    world.kill(context);
    hear(world);
    expect(codes(generation)).toHaveLength(1);
    const last = received.at(-1) as RankRequest;
    expect(generation.transceiver.cancelRequest(last.request, 'by its user')).toBe(false);
    for (let i = 0; i < 3 * COUNT; i++) await turn(world);
    expect(codes(generation).sort()).toEqual([...Array(COUNT - 1).fill(LOST), 'ERR_KVT_TRANSFER_CANCELLED'].sort());
    expect(new Set(generation.settled.map(({ request }) => request.id)).size).toBe(COUNT);
    // Nobody has proved that the lost process writes no more.
    expect(generation.cache.pins.size).toBe(COUNT);
    await world.run(RANK_LIMITS.kvTransferTimeoutMs + 6000, 100);
    expect(generation.cache.pins.size).toBe(0);
    expect(generation.transceiver.stats().counters['released_unproven']).toBe(COUNT);
  });

  it('hear that it is back after all of them have heard that it was lost, and let it stop', async () => {
    const { world, context, generation, received } = await manyUnderWay();
    const stop = spendPortions(world.clock);
    world.network.breakConnection(generation.transceiver.endpoint, context.transceiver.endpoint);
    hear(world);
    expect(codes(generation)).toHaveLength(1);
    // One that asks now greets the writer at once, and is answered before the others have heard of the loss.
    const [late] = world.place([generation], 'generation', { endpoint: context.transceiver.endpoint, firstSlot: 7 });
    world.ask([late as RankRequest]);
    world.clock.advance(2);
    take(world);
    expect(generation.transceiver.stats().peersByState.verified).toBe(1);
    expect(codes(generation)).toHaveLength(1);
    for (let i = 0; i < 4 * COUNT; i++) await turn(world);
    stop();
    expect(codes(generation)).toEqual(Array(COUNT).fill(LOST));
    context.agent.release();
    await world.run(3000);
    context.agent.release();
    await world.run(1000);
    // By the word of the writer, which was told to stop, and long before they would go without it.
    expect(received.map(({ request }) => generation.cache.isPinned(request.id))).toEqual(Array(COUNT).fill(false));
    expect(generation.transceiver.stats().counters['released_unproven']).toBeUndefined();
    generation.transceiver.cancelRequest((late as RankRequest).request, 'the end of the test');
    await world.run(1000);
    expect(world.leftovers()).toEqual([]);
  });
});

describe('many sends whose receiver is lost', () => {
  it('end one by one, as lost also when the agent knows before they do', async () => {
    const { world, context, generation, sent } = await manyUnderWay();
    spendPortions(world.clock);
    world.kill(generation);
    hear(world);
    expect(codes(context)).toHaveLength(1);
    // The next chunk of one that has not heard: its agent takes nothing for that peer any more.
    world.chunk(sent.slice(-1), 8, 16);
    await turn(world);
    expect(codes(context).at(-1)).toBe(LOST);
    for (let i = 0; i < 3 * COUNT; i++) await turn(world);
    expect(codes(context)).toEqual(Array(COUNT).fill(LOST));
    expect(new Set(context.settled.map(({ request }) => request.id)).size).toBe(COUNT);
    // What hangs in the agent still reads them.
    expect(context.cache.pins.size).toBe(COUNT);
    context.agent.release();
    await turn(world);
    expect(world.leftovers()).toEqual([]);
  });
});

describe('a transceiver that closes', () => {
  it('ends every request before it is closed, whatever the deadline', async () => {
    const { world, context, generation } = await manyUnderWay();
    spendPortions(world.clock);
    let isClosed = false;
    const closing = Promise.all([context.transceiver.close(1), generation.transceiver.close(1)]).finally(() => {
      isClosed = true;
    });
    await turn(world);
    expect(codes(generation).length).toBeLessThan(COUNT);
    expect(() => world.ask(world.place([generation], 'generation'))).toThrow(/is closing/);
    for (let i = 0; i < 8 * COUNT && !isClosed; i++) {
      await world.clock.run(5);
      await turn(world);
    }
    const reports = await closing;
    expect(codes(context)).toEqual(Array(COUNT).fill('ERR_KVT_TRANSFER_CANCELLED'));
    expect(codes(generation)).toEqual(Array(COUNT).fill('ERR_KVT_TRANSFER_CANCELLED'));
    // What hangs in the agent may still touch the pages.
    expect(reports.map(({ drained }) => drained)).toEqual([false, false]);
  });
});
