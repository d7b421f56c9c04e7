import { decode, encode } from '@msgpack/msgpack';
import { describe, expect, it } from 'vitest';
import { HEADER_BYTES } from '../../../src/wire/frame-header.js';
import { encodeFrame } from '../../../src/wire/index.js';
import type { Rank, RankWorld } from '../../sim-lite/rank-world.js';
import { Stranger } from '../../sim-lite/stranger.js';
import { completes, helloOf, underWay } from './under-way.js';

/** The bytes of `frame` with another page table. */
function withTable(frame: Uint8Array, change: (table: Record<string, unknown>) => void): Uint8Array {
  const body = decode(frame.subarray(HEADER_BYTES), { useBigInt64: true }) as {
    rankInfo: { pageTable: Record<string, unknown> };
  };
  change(body.rankInfo.pageTable);
  return Buffer.concat([frame.subarray(0, HEADER_BYTES), encode(body, { useBigInt64: true })]);
}

const LIES: readonly (readonly [string, (table: Record<string, unknown>) => void])[] = [
  ['no pools', (table) => void Object.assign(table, { pools: [] })],
  ['fewer pools than its layers name', (table) => void Object.assign(table, { pools: firstOf(table['pools']) })],
  ['groups that are no list', (table) => void Object.assign(table, { layerGroups: 7 })],
];

function firstOf(list: unknown): unknown[] {
  return Array.isArray(list) ? list.slice(0, 1) : [];
}

function greetsWith(
  world: RankWorld,
  context: Rank,
  generation: Rank,
  change: (table: Record<string, unknown>) => void,
) {
  const { hello } = helloOf(world, generation);
  const liar = new Stranger(world.network, 0x666n);
  const { endpoint, incarnation } = liar;
  const rankInfo = { ...hello.rankInfo, endpoint, incarnation, rankEndpoints: [endpoint] };
  liar.say(context.transceiver.endpoint, { type: 'CANCEL_ACK', rid: 1n, ticket: 1n });
  const bytes = withTable(encodeFrame({ ...hello, rankInfo }, { incarnation }), change);
  world.network.sayAs(endpoint, context.transceiver.endpoint, bytes);
  return { liar, nonce: hello.nonce };
}

describe('a HELLO with a page table that cannot be', () => {
  it.each(LIES)('%s: refused by type, with the reason, on its own connection', async (_, change) => {
    const { world, context, generation, sent, received } = await underWay();
    const { liar, nonce } = greetsWith(world, context, generation, change);
    await world.run(50);
    expect(liar.heard).toMatchObject([
      {
        type: 'HELLO_ACK',
        nonce,
        answer: {
          accepted: false,
          message: expect.stringContaining('cannot be believed'),
          findings: [
            { field: 'pageTable', verdict: 'refused: bad-page-table', a: expect.stringContaining('page table') },
          ],
        },
      },
    ]);
    expect(context.transceiver.stats().counters).toMatchObject({ hello_refused: 1, 'wire_error:bad-page-table': 1 });
    expect(context.messenger.connectionTo(liar.endpoint)).toBeUndefined();
    await completes(world, sent, received);
  });

  it('of a version that packs aux in another way: refused as one that does not fit, before anything is sent', async () => {
    const { world, context, generation, sent, received } = await underWay();
    const { liar } = greetsWith(world, context, generation, (table) => {
      // As the first version says it: not at all.
      delete (table['aux'] as Record<string, unknown>)['auxLayout'];
    });
    await world.run(50);
    expect(liar.heard.filter(({ type }) => type === 'HELLO_ACK')).toMatchObject([
      {
        answer: { accepted: false, findings: [{ field: 'aux.auxLayout', whichSideToChange: expect.any(String) }] },
      },
    ]);
    expect(context.transceiver.stats().counters).toMatchObject({ hello_refused: 1 });
    await completes(world, sent, received);
  });

  it('two thousand of them change nothing for the others, and leave nothing', async () => {
    const { world, context, generation, sent, received } = await underWay();
    const { hello } = helloOf(world, generation);
    const { liar } = greetsWith(world, context, generation, LIES[0]?.[1] ?? (() => {}));
    const rankInfo = {
      ...hello.rankInfo,
      endpoint: liar.endpoint,
      incarnation: 0x666n,
      rankEndpoints: [liar.endpoint],
    };
    const bytes = withTable(encodeFrame({ ...hello, rankInfo }, { incarnation: 0x666n }), LIES[0]?.[1] ?? (() => {}));
    for (let i = 1; i < 2000; i += 1) world.network.sayAs(liar.endpoint, context.transceiver.endpoint, bytes);
    await world.run(50);
    expect(context.transceiver.stats().counters).toMatchObject({ hello_refused: 2000 });
    expect(context.transceiver.stats().peers).toHaveLength(1);
    await completes(world, sent, received);
  });

  it('in the answer to ours is a refusal with findings, at once, and not a timeout', async () => {
    const { world, context, generation } = await underWay();
    const liar = new Stranger(world.network, 0x666n);
    liar.silent = true;
    const [received] = world.place([generation], 'generation', {
      rid: (1n << 41n) + 5n,
      firstSlot: 1,
      endpoint: liar.endpoint,
    });
    if (received === undefined) throw new Error('no request');
    world.ask([received]);
    await world.run(20);
    const [asked] = liar.heard;
    if (asked?.type !== 'HELLO') throw new Error('it was not greeted');
    const { endpoint, incarnation } = liar;
    const rankInfo = { ...helloOf(world, generation).hello.rankInfo, endpoint, incarnation, rankEndpoints: [endpoint] };
    const answer = { accepted: true, rankInfo } as const;
    const bytes = encodeFrame({ type: 'HELLO_ACK', nonce: asked.nonce, endpoint, answer }, { incarnation });
    liar.say(generation.transceiver.endpoint, { type: 'CANCEL_ACK', rid: 1n, ticket: 1n });
    world.network.sayAs(endpoint, generation.transceiver.endpoint, withTable(bytes, LIES[0]?.[1] ?? (() => {})));
    await world.run(50);
    expect(generation.settled).toMatchObject([
      { outcome: 'failed', error: { code: 'ERR_KVT_COMPATIBILITY', details: { findings: [{ field: 'pageTable' }] } } },
    ]);
    expect(generation.transceiver.stats().counters).toMatchObject({ hello_ack_refused: 1 });
    expect(context.transceiver.stats().peers).toHaveLength(1);
  });
});
