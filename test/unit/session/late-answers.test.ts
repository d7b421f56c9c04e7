import { describe, expect, it } from 'vitest';
import { type Rank, RankWorld } from '../../sim-lite/rank-world.js';

/** One request over connections this slow. */
async function transferred(latencyMs: number) {
  const world = new RankWorld({ latencyMs });
  const [context] = (await world.instance('context')) as [Rank];
  const [generation] = (await world.instance('generation')) as [Rank];
  const sent = world.place([context], 'context');
  world.ask(world.place([generation], 'generation', { endpoint: context.transceiver.endpoint }));
  await world.run(3000);
  world.chunk(sent, 0, 16);
  await world.run(2000);
  expect(generation.settled.map(({ outcome }) => outcome)).toEqual(['completed']);
  const sum = (name: string): number =>
    [context, generation].reduce((total, { transceiver }) => total + (transceiver.stats().counters[name] ?? 0), 0);
  return { world, sum };
}

describe('answers to a HELLO that was answered before', () => {
  it('are late, not strange: a HELLO is repeated while its answer is on its way', async () => {
    const { world, sum } = await transferred(200);
    const hellos = world.network.log.filter(({ message }) => message.type === 'HELLO').length;
    expect(hellos).toBeGreaterThan(3);
    expect(sum('late_hello_acks')).toBeGreaterThan(0);
    expect(sum('stale:HELLO_ACK')).toBe(0);
  });

  it('do not come where nothing was repeated', async () => {
    const { sum } = await transferred(1);
    expect([sum('late_hello_acks'), sum('stale:HELLO_ACK')]).toEqual([0, 0]);
  });
});
