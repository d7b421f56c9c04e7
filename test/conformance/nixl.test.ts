import { createHash, randomFillSync } from 'node:crypto';
import { afterEach, describe, expect, it } from 'vitest';
import { capabilities } from '../../src/agent/native.js';
import { createAgent } from '../../src/agent/native-agent.js';
import type {
  Completion,
  DrainedNotice,
  FragmentTable,
  PeerHandle,
  Pool,
  TransferAgent,
} from '../../src/agent/transfer-agent.js';
import type { PageTable } from '../../src/mapping/page-table.js';
import { Collector, withDeadline } from '../support/deadline.js';
import { NixlTarget } from './nixl-target.js';

const { nixl } = await capabilities();
const isRequired = (process.env['KV_TRANSCEIVER_REQUIRE'] ?? '').split(/[\s,]+/).includes('nixl');

if (!nixl.available) {
  const why = `NIXL IS NOT TESTED: ${nixl.reason}`;
  if (isRequired) throw new Error(why);
  process.stderr.write(`\n${why}\n\n`);
}

const MIB = 1 << 20;
const POOL_BYTES = 64 * MIB;

type Notice = Completion | DrainedNotice;

/** Without network cards: shared memory with copies by the kernel, and what is left when that is not allowed. */
const TRANSPORTS = ['shm,tcp,self', 'tcp,self'];

describe.skipIf(!nixl.available)(
  `nixl between two processes${nixl.available ? '' : ` (skipped: ${nixl.reason})`}`,
  () => {
    describe.each(TRANSPORTS)('UCX_TLS=%s', (tls) => {
      let agent: TransferAgent;
      let pool: Pool;
      let notices: Collector<Notice>;
      const targets: NixlTarget[] = [];

      async function openWriter(): Promise<void> {
        process.env['UCX_TLS'] = tls;
        agent = await createAgent({ kind: 'nixl', name: 'writer' });
        pool = await agent.allocatePool({ sizeBytes: POOL_BYTES });
        notices = new Collector();
        agent.onCompletions((batch) => batch.forEach(notices.push));
      }

      async function startTarget(): Promise<NixlTarget> {
        const target = await NixlTarget.start(POOL_BYTES, { UCX_TLS: tls });
        targets.push(target);
        return target;
      }

      afterEach(async () => {
        for (const target of targets.splice(0)) {
          target.signal('SIGKILL');
          await target.exited;
        }
        await agent.close(0);
      });

      function fragmentsOf(peer: PeerHandle, target: NixlTarget, pageBytes: number): FragmentTable {
        const table = (base: number): PageTable => ({
          pools: [
            {
              base,
              memory: { kind: 'host' },
              slotBytes: pageBytes,
              slotStride: pageBytes,
              slotCount: Math.floor(POOL_BYTES / pageBytes),
            },
          ],
          layerGroups: [],
          aux: null,
        });
        const whole = { srcPool: 0, srcOffset: 0, dstPool: 0, dstOffset: 0, bytes: pageBytes, count: 1 };
        return agent.prepareFragments(peer, table(pool.base), table(target.hello.base), [
          { ...whole, srcStride: 0, dstStride: 0 },
        ]);
      }

      const submit = (id: number, peer: PeerHandle, fragments: FragmentTable, slotPairs: Int32Array): void =>
        // One flow, so that submissions end one after the other and most are still to come when the first is done.
        agent.submit({ id, peer, flow: 1, groups: [{ fragments, slotPairs }], after: null });

      const completions = (): Completion[] => notices.values.filter((notice) => notice.kind === 'completion');

      async function writesUntilFirstDone(target: NixlTarget, count: number): Promise<void> {
        const peer = await agent.addPeer(target.hello.metadata, 'target');
        const fragments = fragmentsOf(peer, target, 32768);
        const pairs = pairsOf(shuffled(POOL_BYTES / 32768), shuffled(POOL_BYTES / 32768));
        for (let id = 1; id <= count; id++) submit(id, peer, fragments, pairs);
        await notices.waitFor(1, 10_000);
      }

      it.each([32768, 4096, 1000])('scattered pages of %i bytes arrive, and no byte beside them', async (pageBytes) => {
        await openWriter();
        const target = await startTarget();
        const source = randomFillSync(Buffer.alloc(POOL_BYTES));
        agent.writeBytes(pool.base, source);
        const peer = await agent.addPeer(target.hello.metadata, 'target');
        // Every second page at most, so that neighbours must stay zero.
        const slots = Math.floor(POOL_BYTES / pageBytes);
        const count = Math.min(2048, Math.floor(slots / 2));
        const from = shuffled(slots).subarray(0, count);
        const to = shuffled(slots).subarray(0, count);
        submit(1, peer, fragmentsOf(peer, target, pageBytes), pairsOf(from, to));
        const [done] = await notices.waitFor(1, 10_000);
        expect(done).toMatchObject({ submission: 1, status: 'transferred', bytes: count * pageBytes, drained: true });

        const expected = Buffer.alloc(POOL_BYTES);
        from.forEach((slot, i) => {
          source.copy(expected, (to[i] ?? 0) * pageBytes, slot * pageBytes, (slot + 1) * pageBytes);
        });
        expect(await target.digest()).toBe(createHash('sha256').update(expected).digest('hex'));
        await agent.removePeer(peer);
        expect(await agent.close(5000)).toEqual({ drained: true, outstanding: 0 });
        expect(await target.close()).toEqual({ drained: true, outstanding: 0 });
      });

      it('a target killed while pages are on their way: typed failures, memory drains, the agent closes', async () => {
        await openWriter();
        const target = await startTarget();
        const count = 60;
        await writesUntilFirstDone(target, count);
        target.signal('SIGKILL');
        await target.exited;

        await withDeadline(
          (async () => {
            while (completions().length < count) await notices.waitFor(notices.values.length + 1, 10_000);
          })(),
          10_000,
          () => `${completions().length} of ${count} submissions settled`,
        );
        const failures = completions().filter(({ status }) => status !== 'transferred');
        expect(failures.length).toBeGreaterThan(0);
        for (const { status, error } of failures) {
          expect(status).toBe('failed');
          expect(['ERR_KVT_PEER_LOST', 'ERR_KVT_TRANSPORT']).toContain(error?.code);
        }
        // The agent waits for the quarantine by itself: two seconds, and no peer was removed.
        expect(await agent.close(8000)).toEqual({ drained: true, outstanding: 0 });
        const undrained = failures.filter(({ drained }) => !drained).map(({ submission }) => submission);
        const drained = notices.values.filter(({ kind }) => kind === 'drained').map(({ submission }) => submission);
        expect(drained.sort()).toEqual(undrained.sort());
      });

      it('a target killed just before close: close keeps its deadline', async () => {
        await openWriter();
        const target = await startTarget();
        await writesUntilFirstDone(target, 40);
        target.signal('SIGKILL');
        const started = performance.now();
        const report = await withDeadline(agent.close(200), 3000, () => 'close hangs');
        expect(performance.now() - started).toBeLessThan(1500);
        if (!report.drained) expect(report.outstanding).toBeGreaterThan(0);
        expect(completions()).toHaveLength(40);
      });

      it('a restarted target is a new peer, and the lost one stays lost', async () => {
        await openWriter();
        const first = await startTarget();
        await writesUntilFirstDone(first, 20);
        first.signal('SIGKILL');
        await first.exited;
        await notices.waitFor(20, 10_000);
        await expect(agent.addPeer(first.hello.metadata, 'target')).rejects.toMatchObject({
          code: expect.stringMatching(/^ERR_KVT_(PEER_LOST|STATE)$/),
        });

        const second = await startTarget();
        expect(second.hello.name).not.toBe(first.hello.name);
        agent.writeBytes(pool.base, Buffer.alloc(4096, 0xa5));
        const peer = await agent.addPeer(second.hello.metadata, 'target');
        submit(100, peer, fragmentsOf(peer, second, 4096), Int32Array.of(0, 7));
        const expected = Buffer.alloc(POOL_BYTES).fill(0xa5, 7 * 4096, 8 * 4096);
        await withDeadline(
          (async () => {
            while (!completions().some(({ submission }) => submission === 100)) {
              await notices.waitFor(notices.values.length + 1, 10_000);
            }
          })(),
          10_000,
          () => 'the write to the new target did not settle',
        );
        expect(completions().find(({ submission }) => submission === 100)).toMatchObject({ status: 'transferred' });
        expect(await second.digest()).toBe(createHash('sha256').update(expected).digest('hex'));
      });

      it('a target that stops answering holds up no other, and close gives up at its deadline and says so', async () => {
      await openWriter();
      const stopped = await startTarget();
      const lively = await startTarget();
      await writesUntilFirstDone(stopped, 1);
      const peer = await agent.addPeer(lively.hello.metadata, 'lively');
      await stopped.stop();

      const pairs = pairsOf(shuffled(POOL_BYTES / 32768), shuffled(POOL_BYTES / 32768));
      for (let id = 2; id <= 20; id++) submit(id, peers[0] as PeerHandle, fragmentTables[0] as FragmentTable, pairs, 1);
      submit(100, peer, fragmentsOf(peer, lively, 32768), pairs, 2);
      // Flows take turns, so that by now the stopped target has all it may have in flight.
      expect(await completionOf(100)).toMatchObject({ status: 'transferred', bytes: POOL_BYTES });

      const report = await withDeadline(agent.close(500), 4000, () => 'close hangs');
      // Shared memory is written without the target's help; over TCP the writes are stuck.
      if (tls === 'tcp,self') expect(report.drained, JSON.stringify(completions())).toBe(false);
      expect(completions()).toHaveLength(21);
    });
  });

  it('refuses metadata that is none, and its own', async () => {
      process.env['UCX_TLS'] = 'shm,tcp,self';
      const agent = await createAgent({ kind: 'nixl', name: 'alone' });
      await agent.allocatePool({ sizeBytes: MIB });
      await expect(agent.addPeer(new Uint8Array(0), 'x')).rejects.toMatchObject({ code: 'ERR_KVT_ARGUMENT' });
      await expect(agent.addPeer(new Uint8Array(4096), 'x')).rejects.toMatchObject({ code: 'ERR_KVT_ARGUMENT' });
      await expect(agent.addPeer(await agent.metadata(), 'x')).rejects.toMatchObject({ code: 'ERR_KVT_ARGUMENT' });
      expect(await agent.close(1000)).toEqual({ drained: true, outstanding: 0 });
    });
  },
);

/** The numbers below `count` in an order that is the same in every run. */
function shuffled(count: number): Int32Array {
  const slots = Int32Array.from({ length: count }, (_, i) => i);
  let state = 0x2545f491;
  for (let i = count - 1; i > 0; i--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const j = state % (i + 1);
    const moved = slots[i] as number;
    slots[i] = slots[j] as number;
    slots[j] = moved;
  }
  return slots;
}

/** Pairs ascending by source slot, as a plan gives them. */
function pairsOf(from: Int32Array, to: Int32Array): Int32Array {
  const order = Array.from(from, (slot, i) => [slot, to[i] ?? 0] as const).sort(([a], [b]) => a - b);
  return Int32Array.from(order.flat());
}
