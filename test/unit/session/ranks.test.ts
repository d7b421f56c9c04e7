import { describe, expect, it } from 'vitest';
import { type InstanceShape, type Rank, type RankRequest, RankWorld } from '../../sim-lite/rank-world.js';

const ALL = 16;

/** A context and a generation instance, and one request of 16 tokens on the ranks that take part. */
async function begin(
  shapes: { readonly context?: InstanceShape; readonly generation?: InstanceShape } = {},
  options: Parameters<RankWorld['place']>[2] & { readonly contextDp?: number; readonly generationDp?: number } = {},
) {
  const world = new RankWorld();
  const context = await world.instance('context', shapes.context);
  const generation = await world.instance('generation', shapes.generation);
  const { contextDp = 0, generationDp = 0 } = options;
  const endpoint = context.at(-1)?.transceiver.endpoint ?? '';
  const sent = world.place(ofGroup(context, contextDp), 'context', options);
  const received = world.place(ofGroup(generation, generationDp), 'generation', { ...options, endpoint });
  return { world, context, generation, sent, received };
}

function ofGroup(ranks: readonly Rank[], dpRank: number): Rank[] {
  return ranks.filter(({ place }) => !place.attentionDp || place.dpRank === dpRank);
}

const outcomes = (requests: readonly RankRequest[]): string[] =>
  requests.map(({ rank, request }) =>
    rank.settled
      .filter((settled) => settled.request === request)
      .map(({ outcome }) => outcome)
      .join(),
  );

const all = (requests: readonly RankRequest[], outcome: string): string[] => requests.map(() => outcome);

const framesTo = (world: RankWorld, { transceiver }: Rank, type: string) =>
  world.network.log.filter(({ to, message }) => to === transceiver.endpoint && message.type === type);

const SHAPES: Record<string, { context: InstanceShape; generation: InstanceShape; writers: number }> = {
  'TP2 -> TP4': { context: { tpSize: 2 }, generation: { tpSize: 4 }, writers: 1 },
  'TP4 -> TP2': { context: { tpSize: 4 }, generation: { tpSize: 2 }, writers: 2 },
  'TP4 -> TP1, NHD': { context: { tpSize: 4, blockLayout: 'NHD' }, generation: {}, writers: 4 },
  'PP 3 + 1 -> PP1': { context: { layersPerStage: [3, 1] }, generation: {}, writers: 2 },
  'PP1 -> PP 1 + 3': { context: {}, generation: { layersPerStage: [1, 3] }, writers: 1 },
  'PP2 TP2 -> TP4': { context: { layersPerStage: [2, 2], tpSize: 2 }, generation: { tpSize: 4 }, writers: 2 },
  'CP1 -> CP2': { context: {}, generation: { cpSize: 2 }, writers: 1 },
  'CP2 -> CP1': { context: { cpSize: 2 }, generation: {}, writers: 2 },
  '2 KV heads, TP4 -> TP2': {
    context: { tpSize: 4, kvHeads: 2 },
    generation: { tpSize: 2, kvHeads: 2 },
    writers: 2,
  },
  '2 KV heads, TP2 -> TP4': {
    context: { tpSize: 2, kvHeads: 2 },
    generation: { tpSize: 4, kvHeads: 2 },
    writers: 1,
  },
  'blocks of 4 -> blocks of 8, TP2 -> TP1': {
    context: { tpSize: 2 },
    generation: { tokensPerBlock: 8 },
    writers: 2,
  },
};

describe('several ranks on either side', () => {
  for (const [name, { context, generation, writers }] of Object.entries(SHAPES))
    it(`${name}: every byte arrives, every rank completes once`, async () => {
      const { world, sent, received } = await begin({ context, generation });
      world.ask(received);
      await world.run(50);
      for (const { rank, request } of sent) expect(rank.transceiver.receiverReady(request)).toBe(true);
      world.chunk(sent, 0, 9);
      await world.run(30);
      expect(outcomes(received)).toEqual(all(received, ''));
      world.chunk(sent, 9, ALL);
      await world.run(60);
      expect(outcomes(received)).toEqual(all(received, 'completed'));
      expect(outcomes(sent)).toEqual(all(sent, 'completed'));
      for (const one of received) {
        expect(world.wrongWords(one)).toBe(0);
        expect(one.rank.settled[0]).toMatchObject({ firstTokens: [0], salvageableTokens: 0, timings: { slices: 2 } });
        expect(framesTo(world, one.rank, 'ACCEPTED')).toHaveLength(writers);
      }
      expect(world.leftovers()).toEqual([]);
    });

  it('a receiver that asks before, between and after the slices gets the same', async () => {
    const { world, sent, received } = await begin({ generation: { tpSize: 4 } });
    world.ask(received.slice(0, 1));
    await world.run(50);
    expect(sent.map(({ rank, request }) => rank.transceiver.receiverReady(request))).toEqual([false]);
    world.chunk(sent, 0, 8);
    await world.run(30);
    world.ask(received.slice(1, 3));
    await world.run(50);
    world.chunk(sent, 8, ALL);
    await world.run(50);
    expect(outcomes(sent)).toEqual(['']);
    expect(outcomes(received)).toEqual(['completed', 'completed', 'completed', '']);
    world.ask(received.slice(3));
    await world.run(100);
    expect(outcomes(sent)).toEqual(all(sent, 'completed'));
    expect(outcomes(received)).toEqual(all(received, 'completed'));
    for (const one of received) expect(world.wrongWords(one)).toBe(0);
    expect(world.leftovers()).toEqual([]);
  });

  it('names the aux slot to one writer, and the bytes of the others too are counted', async () => {
    const { world, context, sent, received } = await begin({ context: { layersPerStage: [3, 1] } });
    world.ask(received);
    await world.run(50);
    const slots = context.map((rank) =>
      framesTo(world, rank, 'REQUEST_DATA').map(({ message }) => message.type === 'REQUEST_DATA' && message.auxSlot),
    );
    expect(slots).toEqual([[0], [-1]]);
    world.chunk(sent, 0, ALL);
    await world.run(50);
    // 4 layers of 16 tokens of 8 heads of 2 elements of 2 bytes, K and V.
    expect(received[0]?.rank.settled).toMatchObject([{ timings: { bytesDone: 4 * 16 * 8 * 2 * 2 * 2 } }]);
  });

  it('refuses a receiver that names an aux slot to a rank that does not send aux', async () => {
    const { world, context, received } = await begin({ context: { layersPerStage: [3, 1] } });
    const [, second] = context;
    const generation = received[0]?.rank.transceiver.endpoint;
    world.network.addRule(({ from, to, message }) =>
      from === generation && to === second?.transceiver.endpoint && message.type === 'REQUEST_DATA'
        ? { copies: 0 }
        : null,
    );
    world.ask(received);
    await world.run(50);
    const frame = framesTo(world, second as Rank, 'REQUEST_DATA')[0];
    expect(frame?.message).toMatchObject({ auxSlot: -1 });
    // The same question with a slot: i32 behind ticket, time, prompt and cached tokens.
    const forged = Uint8Array.from(frame?.bytes ?? []);
    new DataView(forged.buffer).setInt32(24 + 20, 0, true);
    world.network.sayAs(generation ?? '', second?.transceiver.endpoint ?? '', forged);
    await world.run(50);
    expect(outcomes(received)).toEqual(['failed']);
    expect(received[0]?.rank.settled[0]?.error?.message).toContain('another rank sends aux');
  });
});

describe('one of several writers', () => {
  it('fails: the outcome at once, its siblings are cancelled, pages wait for all of them', async () => {
    const { world, sent, received } = await begin({ context: { tpSize: 2 } });
    const [first, second] = sent.map(({ rank }) => rank) as [Rank, Rank];
    world.ask(received);
    await world.run(50);
    first.agent.scripts.push('fail');
    second.agent.scripts.push('hang');
    world.chunk(sent, 0, 8);
    await world.run(100);
    expect(outcomes(received)).toEqual(['failed']);
    expect(outcomes(sent)).toEqual(['failed', 'cancelled']);
    const [{ rank, request }] = received as [RankRequest];
    expect(rank.cache.isPinned(request.id)).toBe(true);
    expect(second.cache.isPinned(sent[1]?.request.id ?? 0)).toBe(true);
    second.agent.release();
    await world.run(50);
    expect(rank.cache.isPinned(request.id)).toBe(false);
    expect(world.leftovers()).toEqual([]);
  });

  it('is killed: the other one is told, and its rank is named', async () => {
    const { world, sent, received } = await begin({ context: { tpSize: 2 } });
    world.ask(received);
    await world.run(50);
    world.chunk(sent, 0, 8);
    await world.run(20);
    world.kill(sent[1]?.rank as Rank);
    await world.run(50);
    expect(outcomes(received)).toEqual(['failed']);
    expect(received[0]?.rank.settled[0]).toMatchObject({
      error: { code: 'ERR_KVT_PEER_LOST', message: expect.stringContaining('context rank 1') },
      salvageableTokens: 8,
    });
    expect(outcomes(sent).slice(0, 1)).toEqual(['cancelled']);
    expect(received[0]?.rank.cache.pins.size).toBe(1);
    await world.run(11_000, 100);
    expect(world.leftovers()).toEqual([]);
    expect(received[0]?.rank.transceiver.stats().counters['released_unproven']).toBe(1);
  });

  it('does not know this process any more: it alone is asked again, the others keep their ticket', async () => {
    const { world, context, sent, received } = await begin({ context: { tpSize: 2 } });
    const [, second] = context as [Rank, Rank];
    const generation = received[0]?.rank as Rank;
    // A first request makes both writers known; then one of them loses the receiver, which does not notice.
    world.ask(received);
    await world.run(50);
    world.chunk(sent, 0, ALL);
    await world.run(50);
    expect(outcomes(received)).toEqual(['completed']);
    world.network.breakConnection(second.transceiver.endpoint, generation.transceiver.endpoint);
    await world.run(20);
    const options = { rid: (1n << 41n) + 7n, firstSlot: 2 };
    const again = world.place(context, 'context', options);
    const wanted = world.place([generation], 'generation', {
      ...options,
      endpoint: context[0]?.transceiver.endpoint ?? '',
    });
    world.ask(wanted);
    await world.run(400);
    world.chunk(again, 0, ALL);
    await world.run(100);
    expect(outcomes(wanted)).toEqual(['completed']);
    expect(world.wrongWords(wanted[0] as RankRequest)).toBe(0);
    expect(context.map((rank) => framesTo(world, rank, 'REQUEST_DATA').length)).toEqual([2, 3]);
    expect(generation.transceiver.stats().counters['greeted_again']).toBe(1);
    expect(world.leftovers()).toEqual([]);
  });

  it('never gets the request: once its sibling is done it is expected to progress, and the writer that is done is not waited for', async () => {
    const { world, sent, received } = await begin({ context: { tpSize: 2 } });
    world.ask(received);
    await world.run(50);
    world.chunk(sent.slice(0, 1), 0, ALL);
    await world.run(3_500, 100);
    expect(outcomes(received)).toEqual(['']);
    await world.run(1_000, 100);
    expect(outcomes(received)).toEqual(['failed']);
    expect(received[0]?.rank.settled[0]?.error?.message).toMatch(/context rank 1.*noProgressTimeoutMs/);
    expect(outcomes(sent)).toEqual(['completed', '']);
    expect(world.leftovers()).toEqual([]);
  });

  it('is of another instance: refused before it hears of the request', async () => {
    const world = new RankWorld();
    const [a0] = (await world.instance('context', { tpSize: 2 }, false)) as [Rank, Rank];
    const others = await world.instance('other', { tpSize: 2 });
    // Rank 0 says that rank 1 of its instance is where a rank of another one answers.
    const foreign = others[1] as Rank;
    a0.transceiver.joinInstance([a0.transceiver.endpoint, foreign.transceiver.endpoint]);
    const [generation] = (await world.instance('generation')) as [Rank];
    const received = world.place([generation], 'generation', { endpoint: a0.transceiver.endpoint });
    world.ask(received);
    await world.run(100);
    expect(outcomes(received)).toEqual(['failed']);
    expect(generation.settled[0]?.error).toMatchObject({
      code: 'ERR_KVT_COMPATIBILITY',
      message: expect.stringContaining('instanceName'),
    });
    expect(framesTo(world, foreign, 'REQUEST_DATA')).toEqual([]);
    expect(world.leftovers()).toEqual([]);
  });
});
