import { describe, expect, it } from 'vitest';
import type { Cancel } from '../../../src/wire/messages.js';
import { type Rank, type RankRequest, RankWorld } from '../../sim-lite/rank-world.js';
import { speak } from './under-way.js';

const RID = (1n << 41n) + 7n;

/** A context rank, an instance that generates, and another instance that is a peer of the context rank as well. */
async function begin(tpSize = 1) {
  const world = new RankWorld();
  const [context] = (await world.instance('context')) as [Rank];
  const owner = await world.instance('generation', { tpSize });
  const [guesser] = (await world.instance('other')) as [Rank];
  const { endpoint } = context.transceiver;
  const own = { rid: (1n << 41n) + 1n, firstSlot: 1 };
  world.ask(world.place([guesser], 'generation', { ...own, endpoint }));
  await world.run(50);
  world.chunk(world.place([context], 'context', own), 0, 16);
  await world.run(100);
  expect(guesser.settled.map(({ outcome }) => outcome)).toEqual(['completed']);
  const generation = owner[0]?.transceiver.endpoint ?? '';
  const asked = () => world.place(owner, 'generation', { rid: RID, endpoint });
  const guessed = () => world.place([guesser], 'generation', { rid: RID, endpoint });
  const comes = (named: string | null = generation): RankRequest[] => {
    const sent = world.place([context], 'context', { rid: RID, ...(named === null ? {} : { generation: named }) });
    for (const { rank, request } of sent) rank.transceiver.receiverReady(request);
    return sent;
  };
  const cancel: Cancel = { type: 'CANCEL', rid: RID, ticket: 0x77n, from: 'generation', endpoint, reason: 'guessed' };
  return { world, context, owner, guesser, asked, guessed, comes, cancel };
}

const outcomes = (requests: readonly RankRequest[]) => requests.map(({ rank }) => rank.settled.at(-1)?.outcome);

describe('a request that names the instance which generates', () => {
  for (const when of ['before it comes', 'after it came'] as const)
    for (const tpSize of [1, 2])
      it(`is given to that instance of ${tpSize}, whoever asked first ${when}`, async () => {
        const { world, context, guesser, asked, guessed, comes } = await begin(tpSize);
        let sent = when === 'after it came' ? comes() : [];
        world.ask(guessed());
        await world.run(50);
        const received = asked();
        world.ask(received);
        await world.run(50);
        if (sent.length === 0) sent = comes();
        await world.run(100);
        world.chunk(sent, 0, 16);
        await world.run(100);
        expect(outcomes(received)).toEqual(received.map(() => 'completed'));
        for (const one of received) expect(world.wrongWords(one)).toBe(0);
        expect(guesser.settled.at(-1)).toMatchObject({
          outcome: 'failed',
          error: { message: expect.stringContaining('not of that instance') },
        });
        expect(context.transceiver.stats().counters['foreign_request:REQUEST_DATA']).toBe(1);
        expect(world.leftovers()).toEqual([]);
      });

  it('is not cancelled by another peer, before it comes or while nobody has asked', async () => {
    const { world, context, guesser, asked, comes, cancel } = await begin();
    speak(world, guesser, context, cancel);
    await world.run(20);
    const sent = comes();
    speak(world, guesser, context, { ...cancel, ticket: 0x78n });
    await world.run(20);
    const received = asked();
    world.ask(received);
    await world.run(50);
    world.chunk(sent, 0, 16);
    await world.run(100);
    expect(outcomes(received)).toEqual(['completed']);
    expect(context.transceiver.stats().counters['foreign_request:CANCEL']).toBe(2);
    expect(world.leftovers()).toEqual([]);
  });

  it('is not given to a rank that lists the named endpoint in its own instance', async () => {
    const { world, context, owner, guesser, asked, comes } = await begin();
    const named = owner[0]?.transceiver.endpoint ?? '';
    // Two ranks, of which the second is the one that the request names: nothing but the liar says so.
    const [liar] = (await world.instance('liar', { tpSize: 2 }, false)) as [Rank];
    liar.transceiver.joinInstance([liar.transceiver.endpoint, named]);
    const sent = comes();
    const wanted = world.place([liar], 'generation', { rid: RID, endpoint: context.transceiver.endpoint });
    world.ask(wanted);
    await world.run(300);
    const received = asked();
    world.ask(received);
    await world.run(100);
    world.chunk(sent, 0, 16);
    await world.run(100);
    expect(outcomes(received)).toEqual(['completed']);
    expect(outcomes(wanted)).toEqual(['failed']);
    expect(guesser.settled).toHaveLength(1);
  });

  it('is cancelled by a rank of that instance which the context rank did not know yet', async () => {
    const { world, context, owner, comes } = await begin(2);
    const [, second] = owner as [Rank, Rank];
    // A peer, by a request of its own rank group, but not the one that requests name.
    const own = { rid: (1n << 41n) + 9n, firstSlot: 1, endpoint: context.transceiver.endpoint };
    const early = world.place([second], 'generation', own);
    world.ask(early);
    await world.run(50);
    expect(context.transceiver.stats().peers).toContainEqual(expect.stringContaining(second.transceiver.endpoint));
    const { endpoint } = second.transceiver;
    const cancel = { type: 'CANCEL', rid: RID, from: 'generation', endpoint, reason: 'gave up' } as const;
    speak(world, second, context, { ...cancel, ticket: 0x77n });
    await world.run(20);
    const [sent] = comes();
    await world.run(100);
    expect(sent?.rank.settled.at(-1)).toMatchObject({ outcome: 'cancelled' });
    expect(context.transceiver.stats().counters['foreign_request:CANCEL']).toBeUndefined();
  });
});

describe('a request that names nobody', () => {
  it('is whoever’s asks first; a cancel of another peer, made before both, does not count', async () => {
    const { world, context, guesser, asked, comes, cancel } = await begin();
    speak(world, guesser, context, cancel);
    await world.run(20);
    const received = asked();
    world.ask(received);
    await world.run(50);
    const sent = comes(null);
    world.chunk(sent, 0, 16);
    await world.run(100);
    expect(outcomes(received)).toEqual(['completed']);
    expect(context.transceiver.stats().counters['foreign_request:CANCEL']).toBe(1);
  });
});
