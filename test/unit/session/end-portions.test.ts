import { describe, expect, it } from 'vitest';
import type { ReceivedMessage } from '../../../src/wire/messages.js';
import { type Rank, type RankRequest, RankWorld } from '../../sim-lite/rank-world.js';
import { spendPortions } from '../../sim-lite/spent-clock.js';

const COUNT = 5;
const FIRST_RID = 1n << 42n;

/** Transfers of as many requests that have begun and hang: the first of two chunks was handed to the agent. */
async function manyUnderWay(isDropped: (message: ReceivedMessage) => boolean = () => false) {
  const world = new RankWorld();
  world.network.addRule(({ message }) => (isDropped(message) ? { copies: 0 } : null));
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

describe('the loss of a peer', () => {
  // One that has not heard of it would go on asking where another process may be by then, which would write into its pages (I7).
  it.each(['context', 'generation'] as const)(
    'of the %s server is heard by every session in the turn in which it is known, however long that takes',
    async (lost) => {
      const { world, context, generation } = await manyUnderWay();
      spendPortions(world.clock);
      const [gone, left] = lost === 'context' ? [context, generation] : [generation, context];
      world.kill(gone);
      hear(world);
      expect(codes(left)).toEqual(Array(COUNT).fill(LOST));
      // Nobody has proved yet that nothing touches them any more.
      expect(left.cache.pins.size).toBe(COUNT);
    },
  );
});

describe('a question that nobody has answered', () => {
  it('is not repeated to a server that was lost, nor to whoever listens there after it', async () => {
    const { world, context, received } = await manyUnderWay((message) => message.type === 'REQUEST_DATA');
    const { endpoint } = context.transceiver;
    const asked = (): number =>
      world.network.log.filter(({ to, message }) => to === endpoint && message.type === 'REQUEST_DATA').length;
    const before = asked();
    await world.run(1000);
    expect(asked()).toBeGreaterThan(before);
    world.kill(context);
    hear(world);
    const atLoss = asked();
    await world.run(10_000, 100);
    expect(asked()).toBe(atLoss);
    expect(received.flatMap(({ rank }) => codes(rank))).toContain(LOST);
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
