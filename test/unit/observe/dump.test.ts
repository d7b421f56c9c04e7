import { describe, expect, it } from 'vitest';
import type { TransceiverDump } from '../../../src/transceiver.js';
import { TransferPair } from '../../sim-lite/transfer-pair.js';
import { ObservedTransfer } from './observed-transfer.js';

/** What survives JSON is what an operator gets. */
function asJson<T>(value: T): T {
  const copy = JSON.parse(JSON.stringify(value)) as T;
  expect(copy).toEqual(value);
  return copy;
}

describe('stats', () => {
  it('are JSON, and complete when nothing has happened yet', async () => {
    const pair = await TransferPair.create();
    expect(asJson(pair.context.transceiver.stats())).toEqual({
      sendSessions: 0,
      receiveSessions: 0,
      sendSessionsByState: { created: 0, active: 0, draining: 0, closed: 0 },
      receiveSessionsByState: {
        created: 0,
        requested: 0,
        receiving: 0,
        completed: 0,
        failed: 0,
        cancelled: 0,
        released: 0,
      },
      retainedSessions: 0,
      held: 0,
      freeAuxSlots: 4,
      auxSlots: 4,
      peers: [],
      peersByState: { verified: 0, accepted: 0, greeting: 0 },
      earlyRequests: 0,
      openReports: 0,
      cache: [],
      bounce: null,
      notes: null,
      messenger: null,
      fallbacks: [],
      observers: 0,
      counters: {},
    });
  });
});

describe('dump', () => {
  it('shows a transfer from both ends in its middle: states, clocks, peers, tickets, pins', async () => {
    const pair = await TransferPair.create();
    const transfer = new ObservedTransfer(pair);
    transfer.ask();
    await pair.run(100);
    transfer.chunk(0, 8);
    await pair.run(50);
    const context = asJson(pair.context.transceiver.dump());
    const generation = asJson(pair.generation.transceiver.dump());
    const [send] = context.send;
    const [receive] = generation.receive;
    expect(send).toMatchObject({
      rid: (1n << 41n).toString(),
      request: 1,
      state: 'active',
      outcome: null,
      errorCode: null,
      promptTokens: 16,
      clocksLeft: { queueMs: null, progressMs: null, transferMs: null },
      slices: 1,
      lastSliceSubmitted: false,
      expectedReceivers: 1,
      receivers: [{ tasks: { transferred: 1 }, aux: null, drained: true }],
      receiversLeftOut: 0,
    });
    expect(receive).toMatchObject({
      rid: send?.rid,
      state: 'receiving',
      auxSlot: 0,
      infoEndpoint: pair.context.transceiver.endpoint,
      releaseInMs: null,
      writers: [{ rank: 0, isExpected: true, accepted: true, slices: 1, lastSliceSeen: false, outcome: null }],
    });
    expect(receive?.writers[0]?.ticket).toBe(send?.receivers[0]?.ticket);
    expect(receive?.writers[0]?.ticket).toMatch(/^[0-9a-f]{16}$/);
    expect(receive?.ageMs).toBeGreaterThanOrEqual(150);
    expect(receive?.clocksLeft.progressMs).toBeGreaterThan(4000);
    expect(context.holds).toEqual([{ request: 1, state: 'held', isShared: false }]);
    expect(context.peers).toMatchObject([
      { endpoint: pair.generation.transceiver.endpoint, state: 'accepted', isLinked: true },
    ]);
    expect(generation.peers).toMatchObject([
      { endpoint: pair.context.transceiver.endpoint, state: 'verified', isLinked: false },
    ]);
    expect(context).toMatchObject({
      lifecycle: 'open',
      endpoint: pair.context.transceiver.endpoint,
      leftOut: { send: 0 },
    });
  });

  it('shows retained pages with the error and the time until they go', async () => {
    const pair = await TransferPair.create();
    const transfer = new ObservedTransfer(pair);
    transfer.ask();
    await pair.run(100);
    pair.kill(pair.context);
    await pair.run(2000);
    const { receive, stats, holds } = asJson(pair.generation.transceiver.dump());
    expect(receive).toMatchObject([{ state: 'failed', outcome: 'failed', errorCode: 'ERR_KVT_PEER_LOST' }]);
    expect(receive[0]?.releaseInMs).toBeGreaterThan(7000);
    expect(receive[0]?.releaseInMs).toBeLessThanOrEqual(10_000);
    expect(receive[0]?.writers[0]?.drained).toBe(false);
    expect(stats.retainedSessions).toBe(1);
    expect(holds).toHaveLength(1);
  });

  it('is bounded, says what it leaves out, and has no token, metadata or content', async () => {
    const pair = await TransferPair.create();
    for (const id of [4, 2, 1, 5, 3]) {
      new ObservedTransfer(pair, id, { rid: (1n << 41n) + BigInt(id), firstSlot: (id - 1) * 4 }).ask();
      await pair.run(20);
    }
    await pair.run(100);
    const bounded = asJson(pair.generation.transceiver.dump({ maxEntries: 2 }));
    expect(bounded.receive.map(({ request }) => request)).toEqual([4, 2]);
    expect(bounded.holds.map(({ request }) => request)).toEqual([1, 2]);
    expect(bounded.leftOut).toEqual({ send: 0, receive: 3, holds: 3, peers: 0 });
    const whole = pair.generation.transceiver.dump();
    expect(whole.receive.map(({ request }) => request)).toEqual([4, 2, 1, 5, 3]);
    // Tokens of the third prompt.
    expect(JSON.stringify(whole)).not.toMatch(/\b30(0[0-9]|1[0-5])\b/);
    expect(JSON.stringify(whole)).not.toContain('agentMetadata');
    const none: TransceiverDump = pair.generation.transceiver.dump({ maxEntries: 0 });
    expect(none.leftOut).toEqual({ send: 0, receive: 5, holds: 5, peers: 1 });
  });
});
