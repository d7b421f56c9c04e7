import { describe, expect, it } from 'vitest';
import { InternalError, PeerLostError } from '../../src/errors.js';
import { decodeGroupFrame, encodeGroupFrame, type GroupMessage } from '../../src/rank-group/group-frame.js';
import { HubRankGroup } from '../../src/rank-group/hub-rank-group.js';
import { LocalRankGroup } from '../../src/rank-group/local-rank-group.js';
import { MemberRankGroup } from '../../src/rank-group/member-rank-group.js';
import type { RankReport } from '../../src/rank-group/rank-report.js';
import type { FrameOrigin, Messenger } from '../../src/wire/messenger.js';
import { FakeClock } from '../sim-lite/fake-clock.js';

const NONCE = 77n;
const HUB = 'tcp://127.0.0.1:4000';
const ORIGIN: FrameOrigin = { kind: 'accepted', connection: 'a' };
const REPORT: RankReport = {
  step: 1,
  afterRest: true,
  leaving: false,
  forwardError: null,
  check: { planHash: 1, prompts: 0, promptTokens: 0, decodes: 0, receives: 0, freeSlots: 0, live: 0 },
  offered: [],
  cancelled: [],
  ready: [],
  ended: [],
  drained: [],
};

/** One rank of two, whose messenger throws when a test says so. */
function rankOf(rank: 0 | 1) {
  const clock = new FakeClock();
  const sent: GroupMessage['type'][] = [];
  const warnings: string[] = [];
  let failing = false;
  let hear: (frame: Uint8Array, origin: FrameOrigin) => void = () => {};
  let disconnect: (endpoint: string) => void = () => {};
  const messenger: Messenger = {
    endpoint: rank === 0 ? HUB : 'tcp://127.0.0.1:4001',
    maxConnections: 100,
    send: (_, frame) => {
      if (failing) throw new TypeError('out of the blue');
      sent.push(decodeGroupFrame(frame).message.type);
    },
    reply: () => {
      throw new TypeError('out of the blue');
    },
    onFrame: (listener) => {
      hear = listener;
    },
    onDisconnect: (listener) => {
      disconnect = listener;
    },
    forget: () => {},
    close: () => Promise.resolve(),
  };
  const clocks = { clock, joinTimeoutMs: 60_000, exchangeTimeoutMs: 60_000, peerTimeoutMs: 4000 };
  const shared = { rank, size: 2, nonce: NONCE, incarnation: BigInt(rank + 1), messenger, ...clocks };
  const options = { ...shared, onWarning: (message: string) => void warnings.push(message) };
  const group = rank === 0 ? new HubRankGroup(options) : new MemberRankGroup({ ...options, hubEndpoint: HUB });
  const other = rank === 0 ? 1 : 0;
  const say = (message: GroupMessage, nonce = NONCE): void =>
    hear(encodeGroupFrame({ rank: other, nonce, incarnation: BigInt(other + 1), message }), ORIGIN);
  const fail = (): void => {
    failing = true;
  };
  return { clock, group, sent, warnings, say, fail, disconnect: (endpoint: string) => disconnect(endpoint) };
}

function joinedHub() {
  const hub = rankOf(0);
  hub.say({ type: 'JOIN', size: 2, endpoint: 'tcp://127.0.0.1:4001' });
  return hub;
}

const BLUE = expect.objectContaining({ message: expect.stringContaining('out of the blue') });

describe('what goes wrong behind a callback of a rank group', () => {
  it('a timer of rank 0 that fails ends the group: who waits in an exchange hears why', async () => {
    const { clock, group, fail, warnings } = joinedHub();
    const agreed = group.exchange(REPORT);
    agreed.catch(() => {});
    fail();
    clock.advance(1000);
    await expect(agreed).rejects.toBeInstanceOf(InternalError);
    await expect(group.exchange(REPORT)).rejects.toEqual(BLUE);
    // The news that it ended could not be told either.
    expect(group.counts).toEqual({ internal_errors: 2 });
    expect(warnings[0]).toMatch(/^internal error, a timer: out of the blue/);
    expect(group.isAwaited).toBe(true);
  });

  it('a frame of a rank that cannot be answered ends it', async () => {
    const { group, fail, say } = joinedHub();
    const agreed = group.exchange(REPORT);
    agreed.catch(() => {});
    fail();
    say({ type: 'REPORT', report: REPORT });
    await expect(agreed).rejects.toEqual(BLUE);
  });

  it('a timer of another rank that fails ends it there', async () => {
    const { clock, group, fail } = rankOf(1);
    const joined = group.joined;
    joined.catch(() => {});
    fail();
    clock.advance(300);
    await expect(joined).rejects.toEqual(BLUE);
    expect(group.counts).toEqual({ internal_errors: 1 });
  });

  it('a stranger whose refusal fails ends nothing', async () => {
    const { clock, group, say } = joinedHub();
    const agreed = group.exchange(REPORT);
    say({ type: 'JOIN', size: 2, endpoint: 'tcp://127.0.0.1:4002' }, 78n);
    expect(group.counts).toEqual({ internal_errors: 1, join_refused: 1 });
    clock.advance(100);
    say({ type: 'REPORT', report: REPORT });
    expect(await agreed).toEqual([REPORT, REPORT]);
  });

  it('a listener that throws ends nothing', async () => {
    const { group, say } = joinedHub();
    group.onAwaited(() => {
      throw new Error('whoever listens');
    });
    say({ type: 'REPORT', report: REPORT });
    expect(group.counts).toEqual({ internal_errors: 1 });
    expect(await group.exchange(REPORT)).toEqual([REPORT, REPORT]);
  });

  it('a connection that breaks while nothing can be said', async () => {
    const { clock, group, fail, disconnect } = joinedHub();
    const agreed = group.exchange(REPORT);
    agreed.catch(() => {});
    fail();
    disconnect('tcp://127.0.0.1:4001');
    clock.advance(100);
    await expect(agreed).rejects.toBeInstanceOf(PeerLostError);
  });

  it('in one process: a listener that throws does not keep the other ranks asleep', async () => {
    const clock = new FakeClock();
    const warnings: string[] = [];
    const onWarning = (message: string): void => void warnings.push(message);
    const ranks = LocalRankGroup.of(3, { clock, exchangeTimeoutMs: 500, onWarning });
    const woken: number[] = [];
    for (const { rank } of ranks)
      ranks[rank]?.onAwaited(() => {
        woken.push(rank);
        if (rank === 1) throw new Error('whoever listens');
      });
    const agreed = ranks[0]?.exchange(REPORT);
    agreed?.catch(() => {});
    expect(woken).toEqual([1, 2]);
    clock.advance(500);
    await expect(agreed).rejects.toMatchObject({ code: 'ERR_KVT_TRANSFER_TIMEOUT' });
    expect(woken).toEqual([1, 2, 0, 1, 2]);
    expect(ranks[2]?.counts).toEqual({ internal_errors: 2 });
    expect(warnings[0]).toMatch(/^internal error, the listener of rank 1: whoever listens/);
  });
});
