import { describe, expect, it } from 'vitest';
import { EarlyRequests } from '../../../src/session/early-requests.js';
import type { Peer } from '../../../src/session/peer.js';
import { encodeFrame, type RequestData } from '../../../src/wire/index.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { RANK_LIMITS, type Rank, RankWorld } from '../../sim-lite/rank-world.js';
import { helloOf, questionTo } from './under-way.js';

const MAX_WAIT_MS = 1000;
const peer = (): Peer => ({}) as Peer;

function question(rid: number, timeLeftMs = 500, slots = 1): RequestData {
  return {
    type: 'REQUEST_DATA',
    rid: BigInt(rid),
    ticket: BigInt(rid) + 1_000_000n,
    timeLeftMs,
    promptLen: 4,
    cachedTokens: 0,
    auxSlot: -1,
    endpoint: '',
    traceparent: '',
    runs: [{ begin: 0, slots: new Int32Array(slots) }],
  };
}

describe('EarlyRequests', () => {
  it('waits no longer than requests wait here, whatever the receiver says', () => {
    const clock = new FakeClock(0);
    const early = new EarlyRequests(clock, MAX_WAIT_MS);
    early.keep(peer(), question(1, 2 ** 32 - 1));
    early.keep(peer(), question(2, 300));
    clock.advance(300);
    expect(early.sweep().map(({ message }) => message.rid)).toEqual([2n]);
    clock.advance(699);
    expect(early.sweep()).toEqual([]);
    clock.advance(1);
    expect(early.sweep().map(({ message }) => message.rid)).toEqual([1n]);
    expect([early.count, early.peerCount]).toEqual([0, 0]);
  });

  it('one peer gets an eighth of the table, and the others the rest of it', () => {
    const early = new EarlyRequests(new FakeClock(0), MAX_WAIT_MS);
    const greedy = peer();
    const kept = (who: Peer, first: number, count: number) =>
      Array.from({ length: count }, (_, i) => early.keep(who, question(first + i))).filter((a) => a === 'kept').length;
    expect(kept(greedy, 0, 3000)).toBe(2048);
    expect(early.keep(greedy, question(9000))).toBe('peer_full');
    // Asked again, it is still kept.
    expect(early.keep(greedy, question(0))).toBe('kept');
    for (let other = 1; other < 8; other += 1) expect(kept(peer(), other * 10_000, 2048)).toBe(2048);
    expect(early.keep(peer(), question(99_000))).toBe('full');
    early.take(5n);
    expect(early.keep(greedy, question(9000))).toBe('kept');
    early.dropPeer(greedy);
    expect([early.count, early.peerCount]).toEqual([7 * 2048, 7]);
    expect(early.of(1_000_007n)).toBeUndefined();
    expect(kept(peer(), 200_000, 2048)).toBe(2048);
  });

  it('the same for the slots that its questions name', () => {
    const early = new EarlyRequests(new FakeClock(0), MAX_WAIT_MS);
    const greedy = peer();
    expect(early.keep(greedy, question(1, 500, 2 ** 21 - 1))).toBe('kept');
    expect(early.keep(greedy, question(2, 500, 2))).toBe('peer_full');
    expect(early.keep(greedy, question(3, 500, 1))).toBe('kept');
    expect(early.keep(peer(), question(4, 500, 2 ** 21))).toBe('kept');
  });
});

describe('a question whose time runs out before its request comes', () => {
  it('is answered: nothing was written, and nothing will be; the request itself can still be asked for', async () => {
    const world = new RankWorld();
    const [context] = (await world.instance('context')) as [Rank];
    const [generation] = (await world.instance('generation')) as [Rank];
    const options = { rid: (1n << 41n) + 5n };
    const received = world.place([generation], 'generation', { ...options, endpoint: context.transceiver.endpoint });
    const mute = world.network.addRule(({ message, from }) =>
      message.type === 'REQUEST_DATA' && from === generation.transceiver.endpoint ? { copies: 0 } : null,
    );
    world.ask(received);
    await world.run(50);
    // The question as the receiver sent it, with little time left.
    const asked = questionTo(world, context);
    const { incarnation } = helloOf(world, generation);
    const hurried = encodeFrame({ ...asked, timeLeftMs: 200 }, { incarnation });
    world.network.sayAs(generation.transceiver.endpoint, context.transceiver.endpoint, hurried);
    await world.run(150);
    expect(world.network.log.filter(({ message }) => message.type === 'WRITER_REPORT')).toEqual([]);
    await world.run(300);
    const reports = world.network.log.filter(({ message }) => message.type === 'WRITER_REPORT');
    expect(reports).toMatchObject([
      {
        to: generation.transceiver.endpoint,
        message: { ticket: asked.ticket, outcome: 'REFUSED', drained: true, errorCode: 'ERR_KVT_TRANSFER_TIMEOUT' },
      },
    ]);
    expect(context.transceiver.stats().counters['early_requests_expired']).toBe(1);
    expect(generation.settled).toMatchObject([{ outcome: 'failed' }]);
    expect(world.leftovers()).toEqual([]);
    // Asked once more, the answer is the same, and moves nothing.
    world.network.sayAs(generation.transceiver.endpoint, context.transceiver.endpoint, hurried);
    await world.run(20);
    expect(world.network.sentTypes(({ from }) => from === context.transceiver.endpoint).at(-1)).toBe('WRITER_REPORT');
    mute();
    const again = world.place([generation], 'generation', { ...options, endpoint: context.transceiver.endpoint });
    const sent = world.place([context], 'context', options);
    world.ask(again);
    await world.run(50);
    world.chunk(sent, 0, 16);
    await world.run(100);
    expect(generation.settled.at(-1)?.outcome).toBe('completed');
    expect(world.leftovers()).toEqual([]);
  });

  it('of a receiver that waits longer than this rank: it is told after transferQueueTimeoutMs', async () => {
    const world = new RankWorld();
    const [context] = (await world.instance('context')) as [Rank];
    const [generation] = (await world.instance('generation')) as [Rank];
    const received = world.place([generation], 'generation', { endpoint: context.transceiver.endpoint });
    world.ask(received);
    await world.run(50);
    const asked = questionTo(world, context);
    const patient = { ...asked, rid: 77n, ticket: 78n, timeLeftMs: 2 ** 32 - 1 };
    const { incarnation } = helloOf(world, generation);
    const frame = encodeFrame(patient, { incarnation });
    world.network.sayAs(generation.transceiver.endpoint, context.transceiver.endpoint, frame);
    await world.run(RANK_LIMITS.transferQueueTimeoutMs - 200, 100);
    const told = () =>
      world.network.log.filter(({ message }) => message.type === 'WRITER_REPORT' && message.ticket === 78n).length;
    expect(told()).toBe(0);
    await world.run(400, 100);
    expect(told()).toBe(1);
  });
});
