import { spawn } from 'node:child_process';
import { createServer } from 'node:net';
import { dirname } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { Dealer } from 'zeromq';
import { decodeGroupFrame, encodeGroupFrame } from '../../src/rank-group/group-frame.js';
import { generateCurveKeyPair } from '../../src/wire/curve-keys.js';
import { ZeromqMessenger } from '../../src/wire/zeromq-messenger.js';
import { Collector, HANG_LIMIT_MS, withDeadline } from '../support/deadline.js';
import { ownAddress } from '../support/own-address.js';
import { type TranspiledSources, transpileSources } from '../support/transpiled-sources.js';

const CHILD = fileURLToPath(new URL('rank-child.mjs', import.meta.url));
let sources: TranspiledSources;

interface Line {
  readonly kind: string;
  readonly [field: string]: unknown;
}

interface RankProcess {
  readonly lines: Collector<Line>;
  readonly exited: Promise<number | string>;
  kill(): void;
  /** The first line of this kind. */
  heard(kind: string, limitMs?: number): Promise<Line>;
}

const running: RankProcess[] = [];

beforeAll(() => {
  sources = transpileSources(['rank-group/index', 'executor/index', 'cache/index', 'session/transfer-ledger', 'clock']);
});
afterAll(() => sources.remove());
afterEach(async () => {
  for (const rank of running.splice(0)) {
    rank.kill();
    await rank.exited;
  }
});

function start(group: object, options: object): RankProcess {
  const root = dirname(sources.path('clock'));
  const child = spawn(process.execPath, [CHILD, root, JSON.stringify({ ...options, group })], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const lines = new Collector<Line>();
  let stderr = '';
  child.stderr.on('data', (chunk: Buffer) => {
    stderr += chunk.toString();
  });
  createInterface({ input: child.stdout }).on('line', (line) => lines.push(JSON.parse(line) as Line));
  const exited = new Promise<number | string>((resolve) => {
    child.on('exit', (code, signal) => resolve(code ?? signal ?? 'unknown'));
  });
  const rank: RankProcess = {
    lines,
    exited,
    kill: () => void child.kill('SIGKILL'),
    heard: async (kind, limitMs = HANG_LIMIT_MS) => {
      const told = async (): Promise<Line> => {
        for (let count = 1; ; count++) {
          const line = (await lines.waitFor(count, limitMs))[count - 1] as Line;
          if (line.kind === kind) return line;
        }
      };
      return withDeadline(
        told(),
        limitMs,
        () => `no ${kind}; heard ${JSON.stringify(lines.values).slice(0, 2000)} ${stderr}`,
      );
    },
  };
  running.push(rank);
  return rank;
}

async function startAll(
  options: object | ((rank: number) => object),
  group: object = {},
  size = 3,
): Promise<RankProcess[]> {
  const { endpoint: rank0Endpoint } = await ownAddress();
  return Array.from({ length: size }, (_, rank) =>
    start(
      { rank, size, nonce: '77', rank0Endpoint, ...group },
      typeof options === 'function' ? options(rank) : options,
    ),
  );
}

describe('three ranks in three processes', () => {
  it('exchange reports in rank order', async () => {
    const ranks = await startAll({ mode: 'exchange', steps: 3, last: 'nothing' });
    for (const rank of ranks) {
      await withDeadline(rank.exited, HANG_LIMIT_MS, () => JSON.stringify(rank.lines.values));
      expect(rank.lines.values).toEqual([
        { kind: 'joining' },
        { kind: 'joined' },
        { kind: 'agreed', cancelled: [1, 101, 201] },
        { kind: 'agreed', cancelled: [2, 102, 202] },
        { kind: 'agreed', cancelled: [3, 103, 203] },
      ]);
    }
  });

  it('run one schedule over one page table, whatever each transfer takes, and are silent when idle', async () => {
    const ranks = await startAll({ mode: 'execute', count: 60, idleMs: 300 });
    const [first, ...others] = await Promise.all(ranks.map((rank) => rank.heard('done')));
    expect((first as Line)['outcomes']).toHaveLength(60);
    expect((first as Line)['outcomes']).toContain('60 cancelled ');
    expect(((first as Line)['batches'] as string[]).length).toBeGreaterThan(20);
    expect(first).toMatchObject({ held: 0, free: [48] });
    expect((first as Line)['idleExchanges']).toBeLessThan(12);
    for (const other of others) expect({ ...other, idleExchanges: 0 }).toEqual({ ...first, idleExchanges: 0 });
  });

  it.each([0, 2])('rank %i is killed: the others end their requests with an error that names it', async (victim) => {
    // No silence is long enough: it is the broken connection that tells.
    const ranks = await startAll({ mode: 'execute', count: 5, transferMs: 1e6 }, { peerTimeoutMs: 1e6 });
    await Promise.all(ranks.map((rank) => rank.heard('submitted')));
    (ranks[victim] as RankProcess).kill();
    for (const [rank, process] of ranks.entries()) {
      if (rank === victim) continue;
      const lost = await process.heard('lost');
      expect(lost).toMatchObject({ name: 'PeerLostError', code: 'ERR_KVT_PEER_LOST' });
      expect(lost['message']).toContain(`rank ${victim} `);
      const { outcomes } = await process.heard('done');
      expect(
        (outcomes as string[]).filter((line) => line.endsWith('failed ERR_KVT_PEER_LOST')).length,
      ).toBeGreaterThanOrEqual(4);
    }
  });

  it('a call at another step is named on every rank', async () => {
    const ranks = await startAll((rank) => ({ mode: 'exchange', steps: 2, last: rank === 1 ? { step: 7 } : {} }));
    for (const rank of ranks) {
      const error = await rank.heard('error');
      expect(error).toMatchObject({ code: 'ERR_KVT_PROTOCOL' });
      expect(error['message']).toMatch(/different steps: rank 0 3, rank 1 7, rank 2 3/);
    }
  });

  it('another schedule is named on every rank', async () => {
    const check = { planHash: 1, prompts: 4, promptTokens: 0, decodes: 0, receives: 0, freeSlots: 9, live: 0 };
    const ranks = await startAll((rank) => ({ mode: 'exchange', steps: 1, last: rank === 2 ? { check } : {} }));
    for (const rank of ranks) {
      expect((await rank.heard('error'))['message']).toMatch(
        /different schedules before step 2, prompts in the last step: rank 0 0, rank 1 0, rank 2 4/,
      );
    }
  });

  it('a rank that stays away from an exchange is named', async () => {
    const ranks = await startAll(
      (rank) => ({ mode: rank === 1 ? 'stayAway' : 'exchange', steps: 1, last: 'nothing' }),
      // Ranks 0 and 2 come to the exchange well within this of each other, on a busy machine too.
      { exchangeTimeoutMs: 3000 },
    );
    for (const rank of [ranks[0], ranks[2]] as RankProcess[]) {
      const error = await rank.heard('error');
      expect(error).toMatchObject({ code: 'ERR_KVT_TRANSFER_TIMEOUT' });
      expect(error['message']).toMatch(/rank 1 did not come to the exchange within 3000 ms/);
    }
  });
});

describe('joining', () => {
  it('a rank that never comes: those that wait are told which', async () => {
    const { endpoint: rank0Endpoint } = await ownAddress();
    const options = { mode: 'exchange', steps: 1, last: 'nothing' };
    const group = { size: 3, nonce: '77', rank0Endpoint, joinTimeoutMs: 3000 };
    // It knocks before rank 0 is there, and waits for longer.
    const one = start({ ...group, rank: 1, joinTimeoutMs: HANG_LIMIT_MS }, options);
    await one.heard('joining');
    for (const rank of [one, start({ ...group, rank: 0 }, options)]) {
      const refused = await rank.heard('refused');
      expect(refused).toMatchObject({ code: 'ERR_KVT_TRANSFER_TIMEOUT' });
      expect(refused['message']).toMatch(/^rank 2 did not join the rank group within 3000 ms/);
    }
  });

  it('rank 0 never comes: the error names its address', async () => {
    const { endpoint: rank0Endpoint } = await ownAddress();
    const group = { rank: 1, size: 2, nonce: '77', rank0Endpoint, joinTimeoutMs: 300, peerTimeoutMs: 200 };
    const refused = await start(group, { mode: 'exchange', steps: 1 }).heard('refused');
    expect(refused['message']).toContain(`rank 0 at ${rank0Endpoint} did not let rank 1 in`);
  });

  it('another nonce, another size, a rank twice: refused with the reason; the group is not disturbed', async () => {
    const { endpoint: rank0Endpoint } = await ownAddress();
    const options = { mode: 'exchange', steps: 1, last: 'nothing' };
    const group = { size: 3, nonce: '77', rank0Endpoint };
    const zero = start({ ...group, rank: 0 }, options);
    const stranger = start({ ...group, rank: 1, nonce: '78' }, options);
    expect(await stranger.heard('refused')).toMatchObject({ code: 'ERR_KVT_COMPATIBILITY' });
    const oversized = start({ ...group, rank: 1, size: 4 }, options);
    expect((await oversized.heard('refused'))['message']).toMatch(/rank 1 of 4 cannot join a group of 3/);
    // The first of two that claim to be rank 1 is let in.
    const twice = [start({ ...group, rank: 1 }, options), start({ ...group, rank: 1 }, options)];
    const refused = await Promise.race(
      twice.map(async (rank, index) => ({ index, line: await rank.heard('refused') })),
    );
    expect(refused.line['message']).toMatch(/rank 1 is taken/);
    const two = start({ ...group, rank: 2 }, options);
    for (const rank of [zero, two, twice[1 - refused.index] as RankProcess]) {
      expect(await rank.heard('agreed')).toEqual({ kind: 'agreed', cancelled: [1, 101, 201] });
    }
  });

  it('who is refused hears it on the connection that it made; the address that it names is not connected to', async () => {
    const { endpoint: rank0Endpoint } = await ownAddress();
    const group = { size: 2, nonce: '77', rank0Endpoint };
    const zero = start({ ...group, rank: 0 }, { mode: 'exchange', steps: 1, last: 'nothing' });
    let reached = 0;
    const listener = createServer((socket) => {
      reached += 1;
      socket.destroy();
    });
    await new Promise<void>((resolve) => listener.listen(0, '127.0.0.1', resolve));
    const { port } = listener.address() as { port: number };
    const dealer = new Dealer({ linger: 0 });
    dealer.connect(rank0Endpoint);
    const join = { type: 'JOIN', size: 2, endpoint: `tcp://127.0.0.1:${port}` } as const;
    await dealer.send(encodeGroupFrame({ rank: 1, nonce: 78n, incarnation: 5n, message: join }));
    const [answer] = await withDeadline(dealer.receive(), HANG_LIMIT_MS, () => 'the JOIN is not answered');
    expect(decodeGroupFrame(answer as Buffer).message).toMatchObject({ type: 'REFUSED', incarnation: 5n });
    dealer.close();
    const one = start({ ...group, rank: 1 }, { mode: 'exchange', steps: 1, last: 'nothing' });
    for (const rank of [zero, one]) expect(await rank.heard('agreed')).toEqual({ kind: 'agreed', cancelled: [1, 101] });
    expect(reached).toBe(0);
    listener.close();
  });

  it('garbage, and frames of strangers, change nothing', async () => {
    const { endpoint: rank0Endpoint } = await ownAddress();
    const messenger = await ZeromqMessenger.open();
    const group = { size: 2, nonce: '77', rank0Endpoint };
    const zero = start({ ...group, rank: 0 }, { mode: 'exchange', steps: 1, last: 'nothing' });
    for (let i = 0; i < 200; i++) {
      messenger.send(
        rank0Endpoint,
        Uint8Array.from({ length: i }, (_, at) => (at * 31 + i * 7) & 0xff),
      );
      // The magic is right, and all the rest is not.
      const framed = Uint8Array.from({ length: 24 + i }, (_, at) => (at * 17 + i) & 0xff);
      framed.set([0x4b, 0x56, 0x47, 0x31, 1, i % 10]);
      messenger.send(rank0Endpoint, framed);
    }
    const one = start({ ...group, rank: 1 }, { mode: 'exchange', steps: 1, last: 'nothing' });
    for (const rank of [zero, one]) {
      expect(await rank.heard('agreed')).toEqual({ kind: 'agreed', cancelled: [1, 101] });
      expect(await withDeadline(rank.exited, HANG_LIMIT_MS, () => 'the rank does not end')).toBe(0);
    }
    await messenger.close(0);
  });
});

describe('with keys', () => {
  const options = { mode: 'exchange', steps: 1, last: 'nothing' };
  const agreed = { kind: 'agreed', cancelled: [1, 101] };

  it('ranks of one pair, and ranks of a pair each, come together', async () => {
    const [zeroKeys, oneKeys] = [generateCurveKeyPair(), generateCurveKeyPair()];
    const shared = generateCurveKeyPair();
    for (const [zeroCurve, oneCurve] of [
      [shared, shared],
      [
        { ...zeroKeys, peers: { '*': oneKeys.publicKey } },
        { ...oneKeys, peers: { '*': zeroKeys.publicKey } },
      ],
    ]) {
      const group = { size: 2, nonce: '77', rank0Endpoint: (await ownAddress()).endpoint };
      const ranks = [
        start({ ...group, rank: 0, curve: zeroCurve }, options),
        start({ ...group, rank: 1, curve: oneCurve }, options),
      ];
      for (const rank of ranks) expect(await rank.heard('agreed')).toEqual(agreed);
    }
  });

  it('a rank whose key is not allowed, that expects another key of rank 0, or that has none is refused at once, with the remedy', async () => {
    const curve = generateCurveKeyPair();
    const stranger = generateCurveKeyPair();
    const { endpoint: rank0Endpoint } = await ownAddress();
    const group = { size: 2, nonce: '77', rank0Endpoint };
    const zero = start({ ...group, rank: 0, curve }, options);
    const refusals: readonly [object, string][] = [
      [
        { curve: { ...stranger, peers: { '*': curve.publicKey } } },
        `${rank0Endpoint} does not accept the public key ${stranger.publicKey}: add it to security.allowedClients there`,
      ],
      [{ curve: { ...curve, peers: { '*': stranger.publicKey } } }, 'likely not the holder of'],
      [{}, `${rank0Endpoint} demands encryption: set security.curve here too`],
    ];
    // All of them have the nonce: the key decides.
    for (const [keys, remedy] of refusals) {
      const rank = start({ ...group, rank: 1, ...keys }, options);
      expect(await rank.heard('refused')).toMatchObject({
        code: 'ERR_KVT_COMPATIBILITY',
        message: expect.stringContaining(`rank 1 cannot join the rank group: `) as string,
      });
      expect((await rank.heard('refused'))['message']).toContain(remedy);
    }
    const one = start({ ...group, rank: 1, curve }, options);
    for (const rank of [zero, one]) expect(await rank.heard('agreed')).toEqual(agreed);
  });

  it('rank 0 says whom it refused when a rank is missing; keys that are none are no keys', async () => {
    const [curve, stranger] = [generateCurveKeyPair(), generateCurveKeyPair()];
    const { endpoint: rank0Endpoint } = await ownAddress();
    const group = { size: 2, nonce: '77', rank0Endpoint };
    const one = start({ ...group, rank: 1, curve: { ...stranger, peers: { '*': curve.publicKey } } }, options);
    // It knocks before rank 0 is there, and is refused while that waits.
    await one.heard('joining');
    const zero = start({ ...group, rank: 0, curve, joinTimeoutMs: 3000 }, options);
    expect(await one.heard('refused')).toMatchObject({ code: 'ERR_KVT_COMPATIBILITY' });
    const missing = await zero.heard('refused');
    expect(missing['code']).toBe('ERR_KVT_TRANSFER_TIMEOUT');
    expect(missing['message']).toContain('rank 1 did not join the rank group within 3000 ms');
    expect(missing['message']).toContain(`refused a client at 127.0.0.1 with the public key ${stranger.publicKey}`);
    const bad = await start({ ...group, rank: 1, curve: { ...curve, secretKey: 'hunter2' } }, options).heard('refused');
    expect(bad['code']).toBe('ERR_KVT_CONFIG');
    expect(bad['message']).not.toContain('hunter2');
  });
});
