import { describe, expect, it } from 'vitest';
import type { Clock } from '../../src/clock.js';
import { encodeGroupFrame, type GroupMessage, speakerOf } from '../../src/rank-group/group-frame.js';
import { HubRankGroup } from '../../src/rank-group/hub-rank-group.js';
import type { RankReport } from '../../src/rank-group/rank-report.js';
import type { FrameOrigin, Messenger } from '../../src/wire/messenger.js';
import { FakeClock } from '../sim-lite/fake-clock.js';

const NONCE = 77n;
const JOIN: GroupMessage = { type: 'JOIN', size: 2, endpoint: 'tcp://127.0.0.1:5000' };
const REPORT: RankReport = {
  step: 1,
  afterRest: false,
  leaving: false,
  forwardError: null,
  check: { planHash: 1, prompts: 0, promptTokens: 0, decodes: 0, receives: 0, freeSlots: 0, live: 0 },
  offered: [],
  cancelled: [],
  ready: [],
  ended: [],
  drained: [],
};

const join = (nonce: bigint, incarnation: bigint): Uint8Array =>
  encodeGroupFrame({ rank: 1, nonce, incarnation, message: JOIN });

/** Rank 0 of two, to whom each answer to a stranger costs a millisecond. */
class Hub {
  readonly timers = new FakeClock(0);
  readonly sent: string[] = [];
  replies = 0;
  readonly group: HubRankGroup;
  #deliver: (frame: Uint8Array, origin: FrameOrigin) => void = () => {};

  constructor() {
    const clock: Clock = {
      now: () => this.timers.now() + this.replies,
      setTimer: (delayMs, callback) => this.timers.setTimer(delayMs, callback),
      nextTurn: () => this.timers.nextTurn(),
    };
    const messenger: Messenger = {
      endpoint: 'tcp://127.0.0.1:4000',
      maxConnections: 100,
      send: (endpoint) => void this.sent.push(endpoint),
      reply: () => {
        this.replies += 1;
      },
      onFrame: (listener) => {
        this.#deliver = listener;
      },
      onDisconnect: () => {},
      forget: () => {},
      close: () => Promise.resolve(),
    };
    const clocks = { clock, joinTimeoutMs: 60_000, exchangeTimeoutMs: 60_000, peerTimeoutMs: 60_000 };
    this.group = new HubRankGroup({ rank: 0, size: 2, nonce: NONCE, incarnation: 1n, messenger, ...clocks });
  }

  hear(connection: string, frame: Uint8Array): void {
    this.#deliver(frame, { kind: 'accepted', connection });
  }
}

describe('a flood of JOIN', () => {
  it('by who does not know the nonce gets half of the time, and neither a rank that joins nor one that reports waits for it', async () => {
    const hub = new Hub();
    for (let i = 0; i < 10_000; i++) hub.hear('flood', join(78n, 9n));
    expect(hub.replies).toBe(4);
    expect(hub.group.counts).toEqual({ join_refused: 4, strangers_dropped: 10_000 - 4 - 2 });

    hub.hear('rank 1', join(NONCE, 5n));
    await hub.group.joined;
    const agreed = hub.group.exchange(REPORT);
    hub.hear(
      'rank 1',
      encodeGroupFrame({ rank: 1, nonce: NONCE, incarnation: 5n, message: { type: 'REPORT', report: REPORT } }),
    );
    expect(await agreed).toEqual([REPORT, REPORT]);
    expect(hub.replies).toBe(4);

    // As long for everybody else, then the two that waited; what came meanwhile was as if it had been lost.
    hub.timers.advance(3);
    expect(hub.replies).toBe(4);
    hub.timers.advance(1);
    expect(hub.replies).toBe(6);
    await hub.group.close();
  });

  it('by who does leaves the ranks that are in their time, and goes round the connections', async () => {
    const hub = new Hub();
    hub.hear('rank 1', join(NONCE, 5n));
    await hub.group.joined;
    for (let i = 0; i < 100; i++) hub.hear('twin', join(NONCE, 6n));
    hub.hear('other', join(NONCE, 7n));
    expect(hub.group.counts).toEqual({ join_refused: 4, joins_dropped: 100 - 4 - 2 });
    const agreed = hub.group.exchange(REPORT);
    hub.hear(
      'rank 1',
      encodeGroupFrame({ rank: 1, nonce: NONCE, incarnation: 5n, message: { type: 'REPORT', report: REPORT } }),
    );
    expect(await agreed).toEqual([REPORT, REPORT]);
    hub.timers.advance(4);
    expect(hub.group.counts).toMatchObject({ join_refused: 7 });
    await hub.group.close();
    // Nothing is read after the end.
    hub.hear('twin', join(NONCE, 6n));
    expect(hub.replies).toBe(7);
  });

  it('is told from the frames of ranks by their first bytes', () => {
    expect(speakerOf(join(NONCE, 1n), NONCE)).toBe('joiner');
    expect(speakerOf(join(78n, 1n), NONCE)).toBe('stranger');
    expect(speakerOf(new Uint8Array(23), 0n)).toBe('stranger');
    const ping = encodeGroupFrame({ rank: 1, nonce: NONCE, incarnation: 5n, message: { type: 'PING' } });
    expect(speakerOf(ping, NONCE)).toBe('rank');
    expect(speakerOf(ping, 78n)).toBe('stranger');
  });
});
