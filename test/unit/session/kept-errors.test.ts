import * as v8 from 'node:v8';
import { describe, expect, it } from 'vitest';
import { RxSession } from '../../../src/session/rx-session.js';
import { TxSession } from '../../../src/session/tx-session.js';
import { RANK_LIMITS, type Rank, type RankRequest, RankWorld } from '../../sim-lite/rank-world.js';

/** After a garbage collection; not in the type definitions of every Node that has it. */
const { queryObjects } = v8 as unknown as {
  readonly queryObjects: (type: unknown, options: { readonly format: 'count' }) => number;
};
const alive = (): number[] => [TxSession, RxSession].map((type) => queryObjects(type, { format: 'count' }));

const COUNT = 3;
const LONG_MS = RANK_LIMITS.transferQueueTimeoutMs + RANK_LIMITS.kvTransferTimeoutMs + 10_000;

/** As many requests on both sides, whose pages were not asked for yet. */
async function world() {
  const world = new RankWorld();
  const [context] = (await world.instance('context')) as [Rank];
  const [generation] = (await world.instance('generation')) as [Rank];
  const [sent, received]: [RankRequest[], RankRequest[]] = [[], []];
  for (let i = 0; i < COUNT; i++) {
    const common = { rid: (1n << 42n) + BigInt(i), firstSlot: 8 * i };
    sent.push(...world.place([context], 'context', common));
    received.push(...world.place([generation], 'generation', { ...common, endpoint: context.transceiver.endpoint }));
  }
  return { world, context, generation, sent, received };
}

/** Kept by their user, with the errors, of which nobody has asked for a stack. */
function codes({ settled }: Rank): (string | undefined)[] {
  return settled.map(({ error }) => error?.code);
}

// V8 keeps the functions that an error was made in until its stack is asked for, and so what these have captured.
describe('an error that somebody keeps does not keep the session that ended with it', () => {
  it.each<[string, (parts: Awaited<ReturnType<typeof world>>) => Promise<void>, 'context' | 'generation', string]>([
    [
      'of a request that nobody asked for',
      async ({ world, sent }) => {
        world.chunk(sent, 0, 16);
        await world.run(LONG_MS, 100);
      },
      'context',
      'ERR_KVT_TRANSFER_TIMEOUT',
    ],
    [
      'of a receive that nobody answered',
      async ({ world, received }) => {
        world.ask(received);
        await world.run(LONG_MS, 100);
      },
      'generation',
      'ERR_KVT_TRANSFER_TIMEOUT',
    ],
    [
      'of a server that closes, which sends',
      async ({ world, context, sent }) => {
        world.chunk(sent, 0, 8);
        const closed = context.transceiver.close(1000);
        await world.run(2000);
        await closed;
      },
      'context',
      'ERR_KVT_TRANSFER_CANCELLED',
    ],
    [
      'of a server that closes, which receives',
      async ({ world, generation, received }) => {
        world.ask(received);
        await world.run(50);
        const closed = generation.transceiver.close(1000);
        await world.run(2000);
        await closed;
      },
      'generation',
      'ERR_KVT_TRANSFER_CANCELLED',
    ],
    [
      'of a writer that is lost',
      async ({ world, context, received }) => {
        world.ask(received);
        await world.run(50);
        world.kill(context);
        await world.run(LONG_MS, 100);
      },
      'generation',
      'ERR_KVT_PEER_LOST',
    ],
    [
      'of a receiver that is lost',
      async ({ world, generation, sent, received }) => {
        world.ask(received);
        await world.run(50);
        world.chunk(sent, 0, 8);
        world.kill(generation);
        await world.run(LONG_MS, 100);
      },
      'context',
      'ERR_KVT_PEER_LOST',
    ],
  ])('%s', async (_, end, side, code) => {
    const parts = await world();
    await end(parts);
    expect(codes(parts[side])).toEqual(Array(COUNT).fill(code));
    expect(alive()).toEqual([0, 0]);
  });
});
