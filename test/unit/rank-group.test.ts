import { describe, expect, it } from 'vitest';
import { ArgumentError, PeerLostError, StateError, WireError } from '../../src/errors.js';
import { disagreement } from '../../src/rank-group/disagreement.js';
import {
  decodeGroupFrame,
  encodeGroupFrame,
  type GroupFrame,
  type GroupMessage,
} from '../../src/rank-group/group-frame.js';
import { LocalRankGroup } from '../../src/rank-group/local-rank-group.js';
import { openRankGroup } from '../../src/rank-group/open-rank-group.js';
import { MAX_NEWS, newsLimit, type RankReport } from '../../src/rank-group/rank-report.js';
import { remoteError } from '../../src/rank-group/remote-error.js';
import { MAX_FRAME_BYTES } from '../../src/wire/limits.js';
import { seededRandom } from '../sim-lite/seeded-random.js';

const CHECK = { planHash: 0xfedcba98, prompts: 1, promptTokens: 2, decodes: 3, receives: 4, freeSlots: 5, live: 6 };

function report(rest: Partial<RankReport> = {}): RankReport {
  return {
    step: 1,
    afterRest: false,
    leaving: false,
    forwardError: null,
    check: CHECK,
    offered: [],
    cancelled: [],
    ready: [],
    ended: [],
    drained: [],
    ...rest,
  };
}

const FULL = report({
  step: 77,
  afterRest: true,
  leaving: true,
  forwardError: { code: 'ERR_KVT_INTERNAL', message: 'kein Gerät' },
  offered: [{ id: 2 ** 40 - 1, digest: 0xffffffff }],
  cancelled: [1],
  ready: [2, 3],
  ended: [
    { id: 4, outcome: 'completed', firstTokens: [9, 0xffffffff], code: '', message: '' },
    { id: 5, outcome: 'failed', firstTokens: [], code: 'ERR_KVT_TRANSPORT', message: 'Drähte' },
    { id: 6, outcome: 'cancelled', firstTokens: [], code: 'ERR_KVT_TRANSFER_CANCELLED', message: 'x' },
  ],
  drained: [7],
});

const MESSAGES: readonly GroupMessage[] = [
  { type: 'JOIN', size: 4, endpoint: 'tcp://127.0.0.1:5000' },
  { type: 'WELCOME', incarnation: 5n },
  { type: 'REFUSED', incarnation: 5n, code: 'ERR_KVT_COMPATIBILITY', text: 'no' },
  { type: 'REPORT', report: FULL },
  { type: 'AGREED', reports: [report(), FULL, report()] },
  { type: 'AWAITED' },
  { type: 'PING' },
  { type: 'PONG' },
  { type: 'BROKEN', code: 'ERR_KVT_PEER_LOST', text: 'gone' },
];

const frame = (message: GroupMessage): GroupFrame => ({ rank: 3, nonce: 2n ** 63n + 1n, incarnation: 12n, message });

describe('frames between ranks', () => {
  it.each(MESSAGES)(
    '$type is read back as it was written, and refused at every truncation and with a byte more',
    (message) => {
      const bytes = encodeGroupFrame(frame(message));
      expect(decodeGroupFrame(bytes)).toEqual(frame(message));
      for (let length = 0; length < bytes.length; length++) {
        expect(() => decodeGroupFrame(bytes.subarray(0, length))).toThrow(WireError);
      }
      expect(() => decodeGroupFrame(Uint8Array.from([...bytes, 0]))).toThrow(/trailing|bytes/);
    },
  );

  it('are decoded or refused with a WireError, whatever bits flip', () => {
    const random = seededRandom(7);
    let refused = 0;
    for (let run = 0; run < 20_000; run++) {
      const bytes = encodeGroupFrame(frame(MESSAGES[run % MESSAGES.length] as GroupMessage)).slice();
      for (let flips = 0; flips <= run % 3; flips++) {
        const at = Math.floor(random() * bytes.length);
        bytes[at] = (bytes[at] as number) ^ (1 << Math.floor(random() * 8));
      }
      try {
        decodeGroupFrame(bytes);
      } catch (error) {
        expect(error).toBeInstanceOf(WireError);
        refused += 1;
      }
    }
    expect(refused).toBeGreaterThan(5_000);
  });

  it('of another version, type, rank or count are refused with the reason', () => {
    const bytes = encodeGroupFrame(frame({ type: 'PING' }));
    const changed = (at: number, ...values: number[]): (() => unknown) => {
      const copy = bytes.slice();
      copy.set(values, at);
      return () => decodeGroupFrame(copy);
    };
    expect(changed(0, 1)).toThrow(/not a frame of a rank group/);
    expect(changed(4, 2)).toThrow(/run one build on all ranks/);
    expect(changed(5, 99)).toThrow(WireError);
    expect(changed(6, 0xff, 0xff)).toThrow(/rank 65535/);
    const counts = encodeGroupFrame(frame({ type: 'REPORT', report: report() })).slice();
    counts.set([0xff, 0xff], 24 + 4 + 1 + 28);
    expect(() => decodeGroupFrame(counts)).toThrow(/offered has 65535 entries, at most 4096/);
  });

  it('the reports of all ranks fit one frame at their bounds', () => {
    for (const size of [2, 8, 64, 1024]) {
      const count = newsLimit(size);
      expect(count).toBeGreaterThan(10);
      expect(count).toBeLessThanOrEqual(MAX_NEWS);
      const ids = Array.from({ length: count }, (_, id) => id);
      const most = report({
        offered: ids.map((id) => ({ id, digest: 1 })),
        cancelled: ids,
        ready: ids,
        drained: ids,
        ended: ids.map((id) => ({
          id,
          outcome: 'failed' as const,
          firstTokens: Array.from({ length: 64 }, () => 1),
          code: 'x'.repeat(64),
          message: 'x'.repeat(1000),
        })),
      });
      const one = encodeGroupFrame(frame({ type: 'REPORT', report: most })).length;
      expect(one * size).toBeLessThan(MAX_FRAME_BYTES);
    }
  });
});

describe('what ranks report', () => {
  it('is compared: step, then each field of the schedule, naming all ranks', () => {
    expect(disagreement([report(), report(), report()])).toBeNull();
    expect(disagreement([report(), report({ step: 2 })])?.message).toMatch(/different steps: rank 0 1, rank 1 2/);
    for (const field of Object.keys(CHECK) as (keyof typeof CHECK)[]) {
      const error = disagreement([report(), report({ check: { ...CHECK, [field]: 1000 } })]);
      expect(error?.details).toEqual({ step: 1, field, values: [CHECK[field], 1000] });
      expect(error?.message).toContain('rank 1 1000');
    }
  });

  it('of errors keeps their code, also an unknown one', () => {
    expect(remoteError('ERR_KVT_PEER_LOST', 'x')).toBeInstanceOf(PeerLostError);
    expect(remoteError('ERR_KVT_RESOURCE', 'x')).toMatchObject({ code: 'ERR_KVT_RESOURCE', retryable: true });
    expect(remoteError('toString', 'x')).toMatchObject({ code: 'ERR_KVT_PROTOCOL' });
  });
});

describe('a local group', () => {
  it('gives every rank the reports of all, in rank order, and wakes those that are not there', async () => {
    const ranks = LocalRankGroup.of(3);
    const woken: number[] = [];
    for (const { rank } of ranks) ranks[rank]?.onAwaited(() => void woken.push(rank));
    const [zero, one, two] = ranks as [LocalRankGroup, LocalRankGroup, LocalRankGroup];
    const first = one.exchange(report({ ready: [1] }));
    expect([woken, ranks.map(({ isAwaited }) => isAwaited)]).toEqual([
      [0, 2],
      [true, false, true],
    ]);
    await expect(one.exchange(report())).rejects.toBeInstanceOf(StateError);
    const others = [zero.exchange(report({ ready: [0] })), two.exchange(report({ ready: [2] }))];
    for (const reports of await Promise.all([first, ...others])) {
      expect(reports.map(({ ready }) => ready)).toEqual([[0], [1], [2]]);
    }
    expect(ranks.map(({ isAwaited }) => isAwaited)).toEqual([false, false, false]);
  });

  it('fails the exchanges of all once a rank left or ran something else', async () => {
    const [zero, one] = LocalRankGroup.of(2) as [LocalRankGroup, LocalRankGroup];
    const waiting = zero.exchange(report());
    await one.close('it is done');
    await expect(waiting).rejects.toThrow('rank 1 left the rank group: it is done');
    await expect(one.exchange(report())).rejects.toBeInstanceOf(PeerLostError);
    const parted = LocalRankGroup.of(2).map((rank, index) => rank.exchange(report({ step: 1 + index })));
    for (const exchange of parted) await expect(exchange).rejects.toThrow(/different steps/);
    expect(() => LocalRankGroup.of(1.5)).toThrow(ArgumentError);
  });
});

describe('opening a group', () => {
  const good = { rank: 0, size: 2, nonce: 5n, rank0Endpoint: 'tcp://127.0.0.1:5000' };

  it.each([
    [{ size: 0 }, /size is 0/],
    [{ size: 5000 }, /size is 5000/],
    [{ rank: 2 }, /rank is 2; it must be an integer from 0 to 1/],
    [{ nonce: 0n }, /nonce must be a bigint/],
    [{ rank0Endpoint: 'ipc:///tmp/x' }, /tcp:\/\/host:port/],
    [{ exchangeTimeoutMs: 0 }, /exchangeTimeoutMs is 0/],
    [{ rank0Endpoint: 'tcp://0.0.0.0:5000', advertiseHost: 'localhost' }, /allowPlaintext/],
  ])('refuses %o', async (wrong, message) => {
    await expect(openRankGroup({ ...good, ...wrong })).rejects.toThrow(message);
  });

  it('of one rank opens nothing', async () => {
    const group = await openRankGroup({ ...good, size: 1 });
    const only = report();
    expect(await group.exchange(only)).toEqual([only]);
    expect([group.rank, group.size, group.isAwaited]).toEqual([0, 1, false]);
    await group.close();
  });
});
