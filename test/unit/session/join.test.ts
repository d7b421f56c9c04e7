import { describe, expect, it } from 'vitest';
import { ArgumentError, StateError } from '../../../src/errors.js';
import { type Rank, RankWorld } from '../../sim-lite/rank-world.js';

async function pair(): Promise<{ world: RankWorld; ranks: [Rank, Rank]; endpoints: [string, string] }> {
  const world = new RankWorld();
  const ranks = (await world.instance('context', { tpSize: 2 }, false)) as [Rank, Rank];
  return { world, ranks, endpoints: [ranks[0].transceiver.endpoint, ranks[1].transceiver.endpoint] };
}

describe('joinInstance', () => {
  it('refuses a list that does not fit', async () => {
    const { ranks, endpoints } = await pair();
    const [first, second] = endpoints;
    const [{ transceiver }] = ranks;
    for (const [list, message] of [
      [[first], /has 1 entries, the instance has 2 ranks/],
      [[first, second, 'tcp://127.0.0.1:1'], /has 3 entries/],
      [[second, first], /\[0\] is tcp.*but rank 0 is here/],
      [[first, first], /names an endpoint twice/],
      [[first, 'ipc:///tmp/x'], /\[1\] must be tcp:\/\/host:port/],
    ] as const) {
      expect(() => transceiver.joinInstance(list)).toThrow(ArgumentError);
      expect(() => transceiver.joinInstance(list)).toThrow(message);
    }
    transceiver.joinInstance(endpoints);
    expect(() => transceiver.joinInstance([first, 'tcp://127.0.0.1:1'])).toThrow(StateError);
    expect(() => transceiver.joinInstance(endpoints)).not.toThrow();
  });

  it('a single rank has joined from the start', async () => {
    const [rank] = (await new RankWorld().instance('context')) as [Rank];
    expect(() => rank.transceiver.joinInstance([rank.transceiver.endpoint])).not.toThrow();
    expect(() => rank.transceiver.joinInstance([])).toThrow(ArgumentError);
  });

  it('until then HELLO is not answered; the peer repeats it, and the request runs when the instance is whole', async () => {
    const { world, ranks } = await pair();
    const generation = await world.instance('generation');
    const sent = world.place(ranks, 'context');
    const received = world.place(generation, 'generation', { endpoint: ranks[1].transceiver.endpoint });
    world.ask(received);
    await world.run(1_000);
    expect(world.network.sentTypes(({ message }) => message.type !== 'HELLO')).toEqual([]);
    world.join(ranks);
    await world.run(3_000);
    world.chunk(sent, 0, 16);
    await world.run(100);
    expect(received[0]?.rank.settled).toMatchObject([{ outcome: 'completed' }]);
    expect(world.leftovers()).toEqual([]);
  });

  it('until then nobody is greeted, and a request waits', async () => {
    const world = new RankWorld();
    const context = await world.instance('context');
    const generation = await world.instance('generation', { tpSize: 2 }, false);
    const sent = world.place(context, 'context');
    const received = world.place(generation, 'generation', { endpoint: context[0]?.transceiver.endpoint ?? '' });
    world.ask(received);
    await world.run(6_000, 100);
    expect(world.network.log).toEqual([]);
    expect(received.map(({ rank }) => rank.settled)).toEqual([[], []]);
    world.join(generation);
    await world.run(50);
    world.chunk(sent, 0, 16);
    await world.run(100);
    for (const one of received) {
      expect(one.rank.settled).toMatchObject([{ outcome: 'completed' }]);
      expect(world.wrongWords(one)).toBe(0);
    }
  });

  it('an instance that is never whole ends the request by the HELLO timeout', async () => {
    const { world, ranks } = await pair();
    const generation = await world.instance('generation');
    world.ask(world.place(generation, 'generation', { endpoint: ranks[0].transceiver.endpoint }));
    await world.run(5_200, 50);
    expect(generation[0]?.settled).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_TRANSFER_TIMEOUT' } }]);
  });
});
