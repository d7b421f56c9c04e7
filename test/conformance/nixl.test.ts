import { createHash, randomFillSync } from 'node:crypto';
import { afterEach, beforeAll, describe, expect, it } from 'vitest';
import { capabilities } from '../../src/agent/native.js';
import { createAgent } from '../../src/agent/native-agent.js';
import type { CopyExplanation } from '../../src/agent/transfer-agent.js';
import type { TransferPlan } from '../../src/mapping/transfer-plan.js';
import { HANG_LIMIT_MS, withDeadline } from '../support/deadline.js';
import { agentSuite } from './agent-suite.js';
import { NixlTarget } from './nixl-target.js';
import { type Connection, NixlWriter } from './nixl-writer.js';
import { processSuite } from './process-suite.js';

const { nixl } = await capabilities();

if (!nixl.available) {
  const why = `NIXL IS NOT TESTED: ${nixl.reason}`;
  if ((process.env['KV_TRANSCEIVER_REQUIRE'] ?? '').split(/[\s,]+/).includes('nixl')) throw new Error(why);
  process.stderr.write(`\n${why}\n\n`);
}
const skipped = nixl.available ? '' : ` (SKIPPED: ${nixl.reason})`;

const POOL_BYTES = 64 << 20;
const PAGE_BYTES = 32768;
const PAGES = POOL_BYTES / PAGE_BYTES;
const TRIES = 8;

if (nixl.path !== null) process.env['KV_TRANSCEIVER_NIXL_LIB'] = nixl.path;

/** Without network cards: shared memory with copies by the kernel, and what is left where the kernel does not allow that. */
const TRANSPORTS = ['shm,tcp,self', 'tcp,self'];

describe.skipIf(!nixl.available).each(TRANSPORTS)(`nixl between two processes, UCX_TLS=%s${skipped}`, (tls) => {
  let writer: NixlWriter;
  const targets: NixlTarget[] = [];

  async function startTarget(): Promise<NixlTarget> {
    const target = await NixlTarget.start(POOL_BYTES, { UCX_TLS: tls });
    targets.push(target);
    return target;
  }

  /** Starts `count` writes of a whole pool each, one after the other, and waits until the first has arrived. */
  async function startWrites(target: NixlTarget, count: number): Promise<Connection> {
    writer = await NixlWriter.open(POOL_BYTES, tls);
    const connection = await writer.connect(target, PAGE_BYTES);
    for (let id = 1; id <= count; id++) writer.submit(id, connection, WHOLE_POOL);
    await writer.completionOf(1);
    return connection;
  }

  afterEach(async () => {
    for (const target of targets.splice(0)) {
      target.signal('SIGKILL');
      await target.exited;
    }
    await writer.agent.close(0);
  });

  /** What a new agent says of the way to a new target: by the probe, then also by what was sent. */
  async function adviceOfOnePair(): Promise<readonly string[]> {
    writer = await NixlWriter.open(POOL_BYTES, tls);
    const advice: string[] = [];
    writer.agent.onAdvice?.((message) => advice.push(message));
    const connection = await writer.connect(await startTarget(), PAGE_BYTES);
    const plan = { groups: [], stats: { coalescedDescriptors: 1, bytes: 1 } } as unknown as TransferPlan;
    const { reason } = writer.agent.explain(connection.peer, plan);
    // A machine that was too busy for a probe says nothing of it.
    expect(reason).toMatch(/; host memory at [\d.]+ GB\/s by a probe$|^(?!.*GB\/s)/);
    // What is sent is judged as well.
    for (let id = 1; id <= 2; id++) writer.submit(id, connection, WHOLE_POOL);
    await writer.completionOf(2);
    expect(writer.agent.explain(connection.peer, plan).advice).toEqual(advice);
    return advice;
  }

  it('is judged by its rate: a slow path is told of once, with its peer, rate and remedy, and no other', async () => {
    const told = /^peer .+: NIXL moves host memory to it at [\d.]+ GB\/s at best .+ UCX_TLS /;
    const expected = tls.startsWith('shm') ? [] : [expect.stringMatching(told)];
    let advice: readonly string[] = [];
    // Any path is slow while others have the processor, and TCP as fast as a copy that they hold up: another pair has another moment.
    for (let tries = 1; tries <= TRIES; tries++) {
      advice = await adviceOfOnePair();
      for (const text of advice) expect(text).toMatch(told);
      if (advice.length === expected.length || tries === TRIES) break;
      await writer.agent.close(5000);
    }
    expect(advice).toEqual(expected);
  });

  it.each([32768, 4096, 1000])('scattered pages of %i bytes arrive, and no byte beside them', async (pageBytes) => {
    writer = await NixlWriter.open(POOL_BYTES, tls);
    const target = await startTarget();
    const source = randomFillSync(Buffer.alloc(POOL_BYTES));
    writer.agent.writeBytes(writer.pool.base, source);
    const connection = await writer.connect(target, pageBytes);
    // At most half of the pages, so that most have a neighbour that must stay zero.
    const slots = Math.floor(POOL_BYTES / pageBytes);
    const count = Math.min(2048, Math.floor(slots / 2));
    const pairs = pairsOf(shuffled(slots).subarray(0, count), shuffled(slots, 77).subarray(0, count));
    const explained = writer.explain(connection, pairs);
    expect(explained).toMatchObject({ path: 'rdma', copy: { means: 'descriptors' } });
    const isForAnArena = count >= 1024 && pageBytes <= 16_384;
    expect(explained.copy?.remedy ?? '').toMatch(isForAnArena ? /kvCacheBounceSizeMb on both sides/ : /^$/);
    for (const id of [1, 2]) writer.submit(id, connection, pairs);
    await writer.completionOf(2);
    const done = await writer.completionOf(1);
    expect(done).toMatchObject({ status: 'transferred', bytes: count * pageBytes, drained: true, error: null });
    const told = writer.explain(connection, pairs).advice?.filter((text) => text.includes('kvCacheBounceSizeMb'));
    const { reason, remedy } = explained.copy as CopyExplanation;
    expect(told).toEqual(isForAnArena ? [`peer target: ${reason}; ${remedy}`] : []);

    const expected = Buffer.alloc(POOL_BYTES);
    for (let i = 0; i < pairs.length; i += 2) {
      const from = (pairs[i] as number) * pageBytes;
      source.copy(expected, (pairs[i + 1] as number) * pageBytes, from, from + pageBytes);
    }
    expect(await target.digest()).toBe(sha256(expected));
    await writer.agent.removePeer(connection.peer);
    expect(await writer.agent.close(5000)).toEqual({ drained: true, outstanding: 0 });
    expect(await target.close()).toEqual({ drained: true, outstanding: 0 });
  });

  it('a target killed while pages are on their way: typed failures, memory drains, the agent closes', async () => {
    const target = await startTarget();
    await startWrites(target, 60);
    target.signal('SIGKILL');
    const failures = (await writer.completionsOf(60)).filter(({ status }) => status !== 'transferred');
    expect(failures.length).toBeGreaterThan(0);
    for (const { status, error } of failures) {
      expect(status).toBe('failed');
      expect(['ERR_KVT_PEER_LOST', 'ERR_KVT_TRANSPORT']).toContain(error?.code);
    }
    // The agent waits for its quarantine, two seconds, although nobody removed the peer.
    expect(await writer.agent.close(8000)).toEqual({ drained: true, outstanding: 0 });
    const undrained = failures.filter(({ drained }) => !drained).map(({ submission }) => submission);
    expect(undrained.length).toBeGreaterThan(0);
    expect(writer.drainedLater().sort()).toEqual(undrained.sort());
  });

  it('a target killed just before close: close keeps its deadline', async () => {
    const target = await startTarget();
    await startWrites(target, 40);
    target.signal('SIGKILL');
    const report = await withDeadline(writer.agent.close(200), HANG_LIMIT_MS, () => 'close hangs');
    if (!report.drained) expect(report.outstanding).toBeGreaterThan(0);
    expect(writer.completions()).toHaveLength(40);
  });

  it('a restarted target is a new peer, and the lost one stays lost', async () => {
    const first = await startTarget();
    await startWrites(first, 20);
    first.signal('SIGKILL');
    await writer.completionsOf(20);
    await expect(writer.agent.addPeer(first.hello.metadata, 'target')).rejects.toMatchObject({
      code: 'ERR_KVT_PEER_LOST',
    });

    const second = await startTarget();
    expect(second.hello.name).not.toBe(first.hello.name);
    writer.agent.writeBytes(writer.pool.base, Buffer.alloc(PAGE_BYTES, 0xa5));
    writer.submit(100, await writer.connect(second, PAGE_BYTES), Int32Array.of(0, 7));
    expect(await writer.completionOf(100)).toMatchObject({ status: 'transferred', error: null });
    expect(await second.digest()).toBe(sha256(Buffer.alloc(POOL_BYTES).fill(0xa5, 7 * PAGE_BYTES, 8 * PAGE_BYTES)));
  });

  it('a target that stops answering holds up no other, and close gives up at its deadline and says so', async () => {
    const stopped = await startTarget();
    const lively = await startTarget();
    const toStopped = await startWrites(stopped, 1);
    const toLively = await writer.connect(lively, PAGE_BYTES);
    stopped.signal('SIGSTOP');
    for (let id = 2; id <= 20; id++) writer.submit(id, toStopped, WHOLE_POOL);
    writer.submit(100, toLively, WHOLE_POOL, 2);
    // Flows take turns, so that by the end of this one the stopped target has all it may have in flight.
    expect(await writer.completionOf(100)).toMatchObject({ status: 'transferred', bytes: POOL_BYTES });

    const report = await withDeadline(writer.agent.close(500), HANG_LIMIT_MS, () => 'close hangs');
    // Shared memory is written without the target's help; over TCP the writes are stuck.
    if (tls === 'tcp,self') expect(report.drained, JSON.stringify(writer.completions())).toBe(false);
    expect(writer.completions()).toHaveLength(21);
  });
});

describe.skipIf(!nixl.available).each(TRANSPORTS)(`nixl conformance, UCX_TLS=%s${skipped}`, (tls) => {
  // UCX reads it anew for each agent; child processes inherit it.
  beforeAll(() => {
    process.env['UCX_TLS'] = tls;
  });
  agentSuite('nixl', (name) => createAgent({ kind: 'nixl', name }));
  processSuite('nixl', (name) => createAgent({ kind: 'nixl', name }));
});

describe.skipIf(!nixl.available)(`nixl metadata${skipped}`, () => {
  it('of the agent itself is refused', async () => {
    const agent = await createAgent({ kind: 'nixl', name: 'alone' });
    await agent.allocatePool({ sizeBytes: 1 << 20 });
    await expect(agent.addPeer(await agent.metadata(), 'itself')).rejects.toMatchObject({ code: 'ERR_KVT_TRANSPORT' });
    expect(await agent.close(1000)).toEqual({ drained: true, outstanding: 0 });
  });
});

function sha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

/** The numbers below `count` in an order that is the same in every run. */
function shuffled(count: number, seed = 1): Int32Array {
  const slots = Int32Array.from({ length: count }, (_, i) => i);
  let state = seed;
  for (let i = count - 1; i > 0; i--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const j = Math.floor((state / 2 ** 32) * (i + 1));
    const moved = slots[i] as number;
    slots[i] = slots[j] as number;
    slots[j] = moved;
  }
  return slots;
}

/** Pairs ascending by source slot, as a plan gives them. */
function pairsOf(from: Int32Array, to: Int32Array): Int32Array {
  const order = Array.from(from, (slot, i) => [slot, to[i] as number] as const).sort(([a], [b]) => a - b);
  return Int32Array.from(order.flat());
}

const WHOLE_POOL = pairsOf(shuffled(PAGES), shuffled(PAGES, 77));
