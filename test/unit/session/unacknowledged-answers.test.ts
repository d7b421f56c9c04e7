import { describe, expect, it } from 'vitest';
import { AnswerRoom } from '../../../src/session/answer-room.js';
import type { Cancel, RequestData } from '../../../src/wire/messages.js';
import { DROP } from '../../sim-lite/fake-messenger.js';
import { RANK_LIMITS, type Rank, RankWorld } from '../../sim-lite/rank-world.js';
import { questionTo, speak } from './under-way.js';

const RID = 1n << 42n;
/** An eighth of the table: what one peer may ask, and have repeated, at once. */
const PEER_SHARE = 2048;

/** A context rank, a peer that acknowledges nothing, and one that does. */
async function world() {
  const world = new RankWorld();
  const [context] = (await world.instance('context')) as [Rank];
  const [mute] = (await world.instance('mute')) as [Rank];
  const [good] = (await world.instance('good')) as [Rank];
  const { endpoint } = context.transceiver;
  world.ask(world.place([mute], 'generation', { endpoint, firstSlot: 1 }));
  await world.run(50);
  const question = questionTo(world, context);
  world.network.addRule(({ message, to }) =>
    message.type === 'WRITER_REPORT' && to === mute.transceiver.endpoint ? DROP : null,
  );
  let asked = 0n;
  const ask = (timeLeftMs: number): RequestData => {
    asked += 1n;
    const message = { ...question, rid: RID + asked, ticket: (7n << 40n) + asked, timeLeftMs };
    speak(world, mute, context, message);
    return message;
  };
  const stats = () => context.transceiver.stats();
  /** Reports to the mute peer, by ticket. */
  const told = () => {
    const count = new Map<bigint, number>();
    for (const { message, to } of world.network.log)
      if (message.type === 'WRITER_REPORT' && to === mute.transceiver.endpoint)
        count.set(message.ticket, (count.get(message.ticket) ?? 0) + 1);
    return count;
  };
  return { world, context, mute, good, endpoint, ask, stats, told };
}

describe('a peer that acknowledges no answer', () => {
  it('and gives its questions a millisecond to live: every one is answered, its share of them is repeated', async () => {
    const { world: w, ask, stats, told } = await world();
    const tickets: bigint[] = [];
    for (let round = 0; round < 4; round += 1) {
      for (let i = 0; i < 700; i += 1) tickets.push(ask(1).ticket);
      await w.run(110);
    }
    await w.run(1200, 50);
    expect(stats()).toMatchObject({
      openReports: PEER_SHARE,
      // Its first, which has time.
      earlyRequests: 1,
      counters: { early_requests_expired: 2800, early_answers_peer_full: 2800 - PEER_SHARE },
    });
    const times = told();
    expect(tickets.filter((ticket) => times.get(ticket) === undefined)).toEqual([]);
    // The first of them again and again; those beyond the share once.
    expect(Math.min(...tickets.slice(0, 700).map((ticket) => times.get(ticket) ?? 0))).toBeGreaterThan(2);
    expect([...new Set(tickets.slice(PEER_SHARE).map((ticket) => times.get(ticket)))]).toEqual([1]);
    // Who asks how it goes is told again.
    const last = tickets.at(-1) as bigint;
    const rid = RID + 2800n;
    speak(w, w.ranks[1] as Rank, w.ranks[0] as Rank, {
      type: 'STATUS',
      rid,
      ticket: last,
      endpoint: (w.ranks[1] as Rank).transceiver.endpoint,
    });
    await w.run(10);
    expect(told().get(last)).toBe(2);
    // What is never acknowledged is given up, and leaves its place.
    await w.run(RANK_LIMITS.kvTransferTimeoutMs + 500, 500);
    expect(stats()).toMatchObject({ openReports: 0, counters: { reports_unacknowledged: PEER_SHARE } });
    const again = ask(1);
    await w.run(500, 50);
    expect(told().get(again.ticket)).toBeGreaterThan(1);
    expect(stats().counters['early_answers_peer_full']).toBe(2800 - PEER_SHARE);
  }, 60_000);

  it('and cancels by other tickets of its own: the same bound', async () => {
    const { world: w, context, mute, ask, stats } = await world();
    for (let i = 0; i < PEER_SHARE + 200; i += 1) {
      const { rid, ticket } = ask(10_000);
      const cancel: Cancel = {
        type: 'CANCEL',
        rid,
        ticket: ticket + (1n << 45n),
        from: 'generation',
        endpoint: mute.transceiver.endpoint,
        reason: 'x',
      };
      speak(w, mute, context, cancel);
    }
    await w.run(20);
    expect(stats()).toMatchObject({
      openReports: PEER_SHARE,
      // Its first, which has time.
      earlyRequests: 1,
      counters: { early_answers_peer_full: 200 },
    });
  });

  it('costs others nothing: their answers are repeated until they hear them, and their requests run', async () => {
    const { world: w, context, good, endpoint, ask, stats } = await world();
    for (let round = 0; round < 2; round += 1) {
      for (let i = 0; i < 1500; i += 1) ask(1);
      await w.run(110);
    }
    expect(stats().counters['early_answers_peer_full']).toBe(3000 - PEER_SHARE);
    const rid = RID + 100_000n;
    const received = w.place([good], 'generation', { rid, endpoint, firstSlot: 1 });
    w.ask(received);
    await w.run(50);
    // The first word of the cancel is lost; the receiver asks no more.
    let lost = 0;
    w.network.addRule(({ message, to }) =>
      message.type === 'WRITER_REPORT' && to === good.transceiver.endpoint && lost++ < 1 ? DROP : null,
    );
    const [sent] = w.place([context], 'context', { rid, firstSlot: 2 });
    if (sent === undefined) throw new Error('nothing was placed');
    context.transceiver.cancelRequest(sent.request, 'not wanted');
    await w.run(400);
    expect(good.settled).toMatchObject([{ outcome: 'cancelled' }]);
    good.settled.length = 0;
    const next = { rid: rid + 1n };
    w.ask(w.place([good], 'generation', { ...next, endpoint, firstSlot: 1 }));
    await w.run(50);
    w.chunk(w.place([context], 'context', { ...next, firstSlot: 2 }), 0, 16);
    await w.run(100);
    expect(good.settled).toMatchObject([{ outcome: 'completed' }]);
    // All that is open is the mute peer's.
    expect(stats().openReports).toBe(PEER_SHARE);
  });
});

describe('AnswerRoom', () => {
  it('has an eighth for each peer, and what is given back is free again', () => {
    const room = new AnswerRoom();
    const take = (endpoint: string, count: number) =>
      Array.from({ length: count }, () => room.take(endpoint)).filter((answer) => answer === 'taken').length;
    for (let peer = 0; peer < 7; peer += 1) expect(take(`tcp://${peer}`, 3000)).toBe(PEER_SHARE);
    expect(room.take('tcp://0')).toBe('peer_full');
    room.giveBack('tcp://0');
    expect(take('tcp://0', 2)).toBe(1);
    expect(take('tcp://7', 2000)).toBe(2000);
    expect(take('tcp://8', 100)).toBe(48);
    expect(room.take('tcp://9')).toBe('full');
    room.giveBack('tcp://3');
    expect([room.take('tcp://9'), room.take('tcp://9')]).toEqual(['taken', 'full']);
    room.clear();
    expect([room.count, room.take('tcp://0')]).toEqual([0, 'taken']);
  });
});
