import { expect, it } from 'vitest';
import { RankWorld } from '../../sim-lite/rank-world.js';

it('two requests of one instance that different DP groups computed are each asked of their own', async () => {
  const world = new RankWorld();
  const context = await world.instance('context', { tpSize: 4, dpSize: 2 });
  const generation = await world.instance('generation', { tpSize: 2 });
  const endpoint = context[0]?.transceiver.endpoint ?? '';
  const lives = [0, 1].map((dpRank) => {
    const rid = (1n << 41n) + BigInt(100 + dpRank);
    const ranks = context.filter(({ place }) => place.dpRank === dpRank);
    return {
      sent: world.place(ranks, 'context', { rid, firstSlot: dpRank }),
      received: world.place(generation, 'generation', { rid, endpoint, ctxDpRank: dpRank, firstSlot: dpRank }),
    };
  });
  for (const { received } of lives) {
    world.ask(received);
    await world.run(50);
  }
  for (const { sent } of lives) world.chunk(sent, 0, 16);
  await world.run(200);
  for (const rank of generation) expect(rank.settled.map(({ outcome }) => outcome)).toEqual(['completed', 'completed']);
});

it('the second of two writers that dies without a word is missed after three seconds', async () => {
  const world = new RankWorld();
  const context = await world.instance('context', { tpSize: 2 });
  const generation = await world.instance('generation');
  const endpoint = context[0]?.transceiver.endpoint ?? '';
  const sent = world.place(context, 'context');
  const received = world.place(generation, 'generation', { endpoint });
  world.ask(received);
  await world.run(100);
  world.chunk(sent, 0, 8);
  await world.run(100);
  const gone = context[1]?.transceiver.endpoint;
  world.network.addRule(({ from, to }) => (from === gone || to === gone ? { copies: 0 } : undefined));
  await world.run(4500);
  expect(received[0]?.rank.settled).toMatchObject([{ outcome: 'failed', error: { code: 'ERR_KVT_PEER_LOST' } }]);
});
