import { describe, expect, it } from 'vitest';
import type { RequestData } from '../../../src/wire/messages.js';
import type { Rank, RankRequest } from '../../sim-lite/rank-world.js';
import { completes, questionTo, speak, underWay } from './under-way.js';

const RID = (1n << 41n) + 77n;

/** A transfer is under way, and its receiver asks for something else as well. */
async function asking() {
  const parts = await underWay();
  const { world, context, generation, sent, received } = parts;
  const good = { ...questionTo(world, context), rid: RID, ticket: 0x5000n };
  const ask = async (change: Partial<RequestData>): Promise<string | undefined> => {
    const message = { ...good, ...change };
    speak(world, generation, context, message);
    await world.run(10);
    const answer = world.network.log.findLast(({ from, message: { type } }) => {
      return from === context.transceiver.endpoint && (type === 'WRITER_REPORT' || type === 'ACCEPTED');
    })?.message;
    if (answer === undefined || !('ticket' in answer) || answer.ticket !== message.ticket) return undefined;
    return answer.type === 'WRITER_REPORT' ? `${answer.outcome} ${answer.errorCode} ${answer.drained}` : answer.type;
  };
  const early = () => context.transceiver.stats().earlyRequests;
  const finish = (): Promise<void> => completes(world, sent, received);
  return { ...parts, good, ask, early, finish, counters: () => context.transceiver.stats().counters };
}

const run = (begin: number, ...slots: number[]) => [{ begin, slots: Int32Array.from(slots) }];

describe('a question about a request that is not here yet', () => {
  const bad: readonly [string, Partial<RequestData>][] = [
    ['an empty run', { runs: run(0) }],
    ['a run that is too short', { runs: run(0, 1, 2) }],
    ['a run that is too long', { runs: run(0, 1, 2, 3, 4, 5) }],
    ['a run that begins too late', { runs: run(1, 2, 3, 4) }],
    ['a run far out of range', { runs: run(2 ** 30, 1) }],
    ['an empty run far out of range', { runs: run(2 ** 31 - 1) }],
    ['a slot that its table does not have', { runs: run(0, 1, 2, 3, 24) }],
    ['a slot twice', { runs: run(0, 1, 2, 3, 3) }],
    ['a hole', { runs: run(0, 1, -1, 3, 4) }],
    ['no runs', { runs: [] }],
    ['a run too many', { runs: [...run(0, 1, 2, 3, 4), ...run(0, 1, 2, 3, 4)] }],
    ['more cached than there is', { cachedTokens: 17 }],
    ['2^31 cached tokens', { cachedTokens: 2 ** 31 }],
    ['2^32 - 1 cached tokens', { cachedTokens: 2 ** 32 - 1, runs: run(0) }],
    ['cached tokens whose blocks it asks for', { cachedTokens: 8 }],
    ['a prompt that its run does not cover', { promptLen: 17 }],
    ['a prompt of 2^32 - 1 tokens', { promptLen: 2 ** 32 - 1 }],
    ['no prompt', { promptLen: 0, runs: run(0) }],
    ['an aux slot that it does not have', { auxSlot: 4 }],
  ];

  it.each(bad)('%s: refused at once, counted, not kept', async (_, change) => {
    const { ask, early, finish, counters } = await asking();
    expect(await ask(change)).toBe('REFUSED ERR_KVT_PROTOCOL true');
    expect(early()).toBe(0);
    expect(counters()).toMatchObject({ 'request_data_refused:ERR_KVT_PROTOCOL': 1 });
    // Asked again it is answered again, from memory.
    expect(await ask(change)).toBe('REFUSED ERR_KVT_PROTOCOL true');
    await finish();
  });

  it('that fits is kept, and refused when the request turns out to be another one, whoever asks rightly is served', async () => {
    const { world, context, generation, ask, early, finish, counters } = await asking();
    expect(await ask({ promptLen: 13 })).toBe('ACCEPTED');
    expect(early()).toBe(1);
    const sent = world.place([context], 'context', { rid: RID, firstSlot: 2 });
    world.chunk(sent, 0, 8);
    await world.run(20);
    expect(counters()).toMatchObject({ 'request_data_refused:ERR_KVT_PROTOCOL': 1 });
    expect(early()).toBe(0);
    const { endpoint } = context.transceiver;
    const received = world.place([generation as Rank], 'generation', { rid: RID, endpoint, firstSlot: 1 });
    world.ask(received);
    await world.run(20);
    world.chunk(sent, 8, 16);
    await world.run(100);
    expect(generation.settled).toMatchObject([{ outcome: 'completed' }]);
    expect(world.wrongWords(received[0] as RankRequest)).toBe(0);
    generation.settled.length = 0;
    await finish();
  });

  it('with a cached prefix that ends inside a block is kept', async () => {
    const { ask, early, finish } = await asking();
    expect(await ask({ cachedTokens: 7, runs: run(1, 2, 3, 4) })).toBe('ACCEPTED');
    expect(early()).toBe(1);
    await finish().catch(() => undefined);
  });
});

describe('thousands of questions', () => {
  it('of one peer take its part of the table and no more; transfers go on meanwhile', async () => {
    const { world, context, generation, good, early, finish, counters } = await asking();
    for (let i = 0; i < 6000; i += 1) {
      const id = BigInt(i);
      speak(world, generation, context, { ...good, rid: RID + id, ticket: 0x10_0000n + id });
    }
    await world.run(20);
    expect(early()).toBe(2048);
    expect(counters()).toMatchObject({ early_requests_peer_full: 6000 - 2048 });
    const message = { ...good, type: 'CANCEL', from: 'generation', reason: 'x'.repeat(2048) } as const;
    for (let i = 0; i < 6000; i += 1) {
      const id = BigInt(i);
      speak(world, generation, context, { ...message, rid: RID + id, ticket: 0x10_0000n + id });
    }
    await world.run(20);
    expect(early()).toBe(0);
    const reports = world.network.log.filter(({ message: { type } }) => type === 'WRITER_REPORT');
    // What is remembered of each is no longer than it needs to be.
    for (const { bytes } of reports.slice(-100)) expect(bytes.length).toBeLessThan(500);
    await finish();
  });
});
