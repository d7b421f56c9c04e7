import { readdirSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { generateCurveKeyPair } from '../../src/wire/curve-keys.js';
import { decodeFrame } from '../../src/wire/frame-codec.js';
import type { Hello } from '../../src/wire/messages.js';
import { type Child, startChild } from '../support/child.js';
import { until } from '../support/deadline.js';
import { type TranspiledSources, transpileSources } from '../support/transpiled-sources.js';
import { AttackedPair } from './hostile/attacked-pair.js';
import type { FloodResult, FloodSettings } from './hostile/flood-entry.js';
import type { StormSettings } from './hostile/storm-entry.js';
import { type StrangerKeys, ZeromqStranger } from './hostile/zeromq-stranger.js';

const ENTRY = '../test/integration/hostile/flood-entry';
const STORM = '../test/integration/hostile/storm-entry';
let sources: TranspiledSources;
let pair: AttackedPair | null = null;
const strangers: ZeromqStranger[] = [];
const children: Child[] = [];
const servers: Server[] = [];

beforeAll(() => {
  sources = transpileSources([ENTRY, STORM]);
});
afterAll(() => sources.remove());
afterEach(async () => {
  for (const child of children.splice(0)) {
    child.kill('SIGKILL');
    await child.exited;
  }
  for (const stranger of strangers.splice(0)) stranger.close();
  for (const server of servers.splice(0)) server.close();
  await pair?.close();
  pair = null;
});

const descriptors = (): number => readdirSync('/proc/self/fd').length;
const counters = ({ context }: AttackedPair): Readonly<Record<string, number>> => context.transceiver.stats().counters;
const dropped = ({ context }: AttackedPair): number => context.messenger.counts().framesDropped['socket-error'];

function helloOf({ hello }: AttackedPair): { hello: Hello; incarnation: bigint } {
  const { message, incarnation } = decodeFrame(hello);
  if (message.type !== 'HELLO') throw new Error('no HELLO');
  return { hello: message, incarnation };
}

async function stranger(attacked: AttackedPair, incarnation = 0x99n): Promise<ZeromqStranger> {
  const opened = await ZeromqStranger.open(attacked.context.transceiver.endpoint, incarnation);
  strangers.push(opened);
  return opened;
}

async function flood(
  attacked: AttackedPair,
  count: number,
  keys: StrangerKeys | null = null,
  limitMs = 10_000,
): Promise<FloodResult> {
  const hello = Buffer.from(attacked.hello).toString('hex');
  const settings: FloodSettings = { target: attacked.context.transceiver.endpoint, count, hello, keys, limitMs };
  const child = await startChild([sources.path(ENTRY), JSON.stringify(settings)]);
  children.push(child);
  return JSON.parse(child.firstLine) as FloodResult;
}

describe('a storm of HELLOs with large page tables', () => {
  it('has half of the time at most: what it brings beyond is dropped and counted, and transfers go on', async () => {
    pair = await AttackedPair.open();
    expect(await pair.transfer()).toBe('completed');
    const hello = Buffer.from(pair.hello).toString('hex');
    const { endpoint } = pair.context.transceiver;
    const settings: StormSettings = { target: endpoint, connections: 4, layers: 4096, hello };
    children.push(await startChild([sources.path(STORM), JSON.stringify(settings)]));
    const attacked = pair;
    await until(
      () => (counters(attacked)['greetings_dropped'] ?? 0) > 100,
      () => 'no greeting was dropped',
    );
    for (let i = 0; i < 3; i += 1) expect(await pair.transfer()).toBe('completed');
    // Each dropped one would have taken as long as those that were read.
    const { greetings_dropped: dropped = 0, 'wire_error:bad-page-table': read = 0 } = counters(pair);
    expect(read).toBeGreaterThan(0);
    expect(dropped).toBeGreaterThan(read);
    expect(pair.context.transceiver.stats().peers).toHaveLength(1);
  });
});

describe('a flood of HELLOs from processes that are there', () => {
  it('ends at what the limit of open files allows; the rest is refused with the remedy, a transfer goes on', async () => {
    // (1000 - 500) / 12 / 2 messengers = 20 connections, 16 of them peers.
    pair = await AttackedPair.open({ descriptorLimit: 1000 });
    const { finish } = await pair.begin();
    const before = descriptors();
    const { accepted, refused, silent, refusals } = await flood(pair, 30);
    // Those that were refused cost the connection that they made.
    const cost = (descriptors() - before - refused) / accepted;
    expect([accepted, refused, silent]).toEqual([15, 15, 0]);
    expect(refusals).toEqual([expect.stringMatching(/16 ranks are peers .*ulimit -n/)]);
    // What a connection is reckoned at.
    expect(cost).toBeGreaterThan(5);
    expect(cost).toBeLessThanOrEqual(12);
    expect(counters(pair)).toMatchObject({ hello_refused_full: 15 });
    expect(pair.context.warnings.filter((text) => text.includes('ulimit -n'))).toHaveLength(1);
    expect(dropped(pair)).toBe(0);
    expect(await finish()).toBe('completed');
    expect(await pair.transfer()).toBe('completed');
  });

  it('the same under CURVE, from members; who has no key comes no further than the door', async () => {
    const own = generateCurveKeyPair();
    pair = await AttackedPair.open({ descriptorLimit: 1000, curve: own });
    const { finish } = await pair.begin();
    const member = await flood(pair, 18, { ...own, serverKey: own.publicKey });
    expect([member.accepted, member.refused, member.silent]).toEqual([15, 3, 0]);
    const before = counters(pair)['hello_refused'];
    const outside = await flood(pair, 2, { ...generateCurveKeyPair(), serverKey: own.publicKey }, 500);
    expect([outside.accepted, outside.refused, outside.silent]).toEqual([0, 0, 2]);
    expect(counters(pair)['hello_refused']).toBe(before);
    const { messenger } = pair.context;
    await until(
      () => messenger.counts().handshakesRefused['client-not-allowed'] > 0,
      () => JSON.stringify(messenger.counts()),
    );
    expect(await finish()).toBe('completed');
  });
});

describe('addresses that a stranger names', () => {
  it('1,100 in PINGs reach nobody; in HELLOs one at a time is asked, and it is forgotten', async () => {
    pair = await AttackedPair.open();
    const { finish } = await pair.begin();
    const { hello } = helloOf(pair);
    const one = await stranger(pair);
    let reached = 0;
    const listener = createServer((socket) => {
      reached += 1;
      socket.destroy();
    });
    servers.push(listener);
    await new Promise<void>((resolve) => listener.listen(0, '0.0.0.0', resolve));
    const address = listener.address();
    const port = address !== null && typeof address === 'object' ? address.port : 0;
    const named = (i: number): string => `tcp://127.1.${i >> 8}.${i & 255}:${port}`;
    for (let i = 0; i < 1100; i += 1) await one.say({ type: 'PING', endpoint: named(i), sessions: 0, freeAuxSlots: 0 });
    const read = (): number => counters(pair as AttackedPair)['unknown_peer:PING'] ?? 0;
    await until(
      () => read() === 1100 && one.heard.length > 0,
      () => 'the PINGs are not answered',
    );
    expect(one.heard.every(({ socket, message }) => socket === 'dealer' && message.type === 'GOODBYE')).toBe(true);
    expect(reached).toBe(0);
    const before = descriptors();
    for (let i = 0; i < 1100; i += 1) await one.greet(hello, named(i));
    const refused = (): number => {
      const { greetings_dropped: dropped = 0, ...rest } = counters(pair as AttackedPair);
      return dropped + (rest['introductions_refused:connection_full'] ?? 0);
    };
    await until(
      () => refused() >= 1000,
      () => 'the HELLOs are not refused',
    );
    expect(descriptors() - before).toBeLessThan(20);
    // Again and again, for one may find no room behind the others.
    await until(
      () => {
        void one.greet(hello, 'tcp://169.254.169.254:80');
        return (counters(pair as AttackedPair)['introductions_refused:address'] ?? 0) > 0;
      },
      () => 'an address of another network is not refused',
    );
    expect(await finish()).toBe('completed');
    // It has closed what it was asked by: nobody answered.
    await until(
      () => descriptors() <= before + 2,
      () => 'the connection is not given up',
    );
    expect(reached).toBeGreaterThan(0);
    expect(await pair.transfer()).toBe('completed');
  });
});

describe('frames in the name of a peer', () => {
  it('GOODBYE, CANCEL and a whole HELLO with its incarnation and endpoint end nothing', async () => {
    pair = await AttackedPair.open();
    const { finish, rid } = await pair.begin();
    const { hello, incarnation } = helloOf(pair);
    const { endpoint } = pair.generation.transceiver;
    const liar = await stranger(pair, incarnation);
    for (let i = 0; i < 20; i += 1) {
      await liar.say({ type: 'GOODBYE', endpoint, drainMs: 0, reason: 'forged' });
      await liar.say({ type: 'CANCEL', rid, ticket: BigInt(i), from: 'generation', endpoint, reason: 'forged' });
      await liar.say(hello);
      await liar.greet(hello);
    }
    await until(
      () => (counters(pair as AttackedPair)['unknown_peer:GOODBYE'] ?? 0) >= 20,
      () => 'not all was read',
    );
    expect(counters(pair)['peers_lost']).toBeUndefined();
    expect(await finish()).toBe('completed');
    // Both are peers: one number at two endpoints.
    const peers = (): number => (pair as AttackedPair).context.transceiver.stats().peers.length;
    await until(
      () => peers() === 2,
      () => 'the liar is no peer under its own endpoint',
    );
  });

  it('a liar that takes the incarnation first does not keep the other out', async () => {
    const other = await AttackedPair.open();
    try {
      await other.transfer();
      const { hello, incarnation } = helloOf(other);
      pair = other;
      const liar = await stranger(other, incarnation);
      await liar.greet(hello);
      await until(
        () => liar.heard.some(({ message }) => message.type === 'HELLO_ACK'),
        () => 'the liar is not answered',
      );
      expect(await other.transfer()).toBe('completed');
    } finally {
      pair = other;
    }
  });

  it('a page table that cannot be is refused with findings on its own connection', async () => {
    pair = await AttackedPair.open();
    const { finish } = await pair.begin();
    const { hello } = helloOf(pair);
    const liar = await stranger(pair);
    const [pool] = hello.rankInfo.pageTable.pools;
    if (pool === undefined) throw new Error('no pool');
    const pageTable = { ...hello.rankInfo.pageTable, pools: [pool] };
    await liar.greet({ ...hello, rankInfo: { ...hello.rankInfo, pageTable } });
    await until(
      () => liar.heard.length > 0,
      () => 'the liar is not answered',
    );
    expect(liar.heard).toMatchObject([
      { socket: 'dealer', message: { answer: { accepted: false, findings: [{ field: 'pageTable' }] } } },
    ]);
    expect(await finish()).toBe('completed');
  });
});
