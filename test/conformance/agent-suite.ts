import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { FragmentTable, PeerHandle, Pool, TransferAgent } from '../../src/agent/transfer-agent.js';
import { ArgumentError, KvTransceiverError, StateError, TransferError, TransportError } from '../../src/errors.js';
import { CompletionLog } from '../support/completion-log.js';
import { expectedBytes, fragment, patterned, poolTable, shuffled } from '../support/paged-pools.js';

const SLOT = 1024;
const SLOTS = 64;
const POOL_BYTES = SLOT * SLOTS;

/** What every TransferAgent must do, whatever moves the bytes. */
export function agentSuite(kind: TransferAgent['kind'], open: (name: string) => Promise<TransferAgent>): void {
  describe(`${kind} agent`, () => {
    let writer: TransferAgent;
    let target: TransferAgent;
    let source: Pool;
    let destination: Pool;
    let peer: PeerHandle;
    let log: CompletionLog;

    beforeEach(async () => {
      [writer, target] = await Promise.all([open('writer'), open('target')]);
      [source, destination] = await Promise.all([
        writer.allocatePool({ sizeBytes: POOL_BYTES }),
        target.allocatePool({ sizeBytes: POOL_BYTES }),
      ]);
      peer = await writer.addPeer(await target.metadata(), 'target');
      log = new CompletionLog(writer);
    });

    afterEach(async () => {
      await Promise.all([writer.close(5000), target.close(5000)]);
    });

    function wholeSlots(): FragmentTable {
      return writer.prepareFragments(peer, poolTable(source, SLOT), poolTable(destination, SLOT), [
        fragment({ bytes: SLOT }),
      ]);
    }

    it('has a name of its own and says its kind', async () => {
      expect(writer.kind).toBe(kind);
      expect(writer.name).not.toBe(target.name);
      const again = await open('writer');
      expect(again.name).not.toBe(writer.name);
      await again.close(1000);
    });

    it('hands out zeroed memory that is read and written inside its bounds only', () => {
      expect(source.sizeBytes).toBe(POOL_BYTES);
      expect(writer.readBytes(source.base, POOL_BYTES).every((byte) => byte === 0)).toBe(true);
      const bytes = patterned(100, 1);
      writer.writeBytes(source.base + 50, bytes);
      expect(writer.readBytes(source.base + 50, 100)).toEqual(bytes);
      expect(writer.readBytes(source.base + POOL_BYTES, 0)).toHaveLength(0);
      for (const [address, length] of [
        [source.base + POOL_BYTES - 10, 11],
        [source.base - 1, 1],
        [4096, 8],
        [source.base, -1],
        [source.base + 0.5, 1],
        [Number.NaN, 1],
      ] as const) {
        expect(() => writer.readBytes(address, length)).toThrow(ArgumentError);
      }
      expect(() => writer.writeBytes(destination.base, bytes)).toThrow(ArgumentError);
    });

    it('refuses pools that have no size or can never fit', async () => {
      await expect(writer.allocatePool({ sizeBytes: 0 })).rejects.toBeInstanceOf(KvTransceiverError);
      await expect(writer.allocatePool({ sizeBytes: -1 })).rejects.toBeInstanceOf(ArgumentError);
      await expect(writer.allocatePool({ sizeBytes: 1.5 })).rejects.toBeInstanceOf(ArgumentError);
      await expect(writer.allocatePool({ sizeBytes: 2 ** 46 })).rejects.toMatchObject({ code: 'ERR_KVT_RESOURCE' });
    });

    it('moves exactly the bytes of the plan', async () => {
      const sourceBytes = patterned(POOL_BYTES, 2);
      const before = patterned(POOL_BYTES, 3);
      writer.writeBytes(source.base, sourceBytes);
      target.writeBytes(destination.base, before);
      // Heads of a token-major layout, a layer in the middle, and a piece with other places on both sides.
      const fragments = [
        fragment({ srcOffset: 0, dstOffset: 64, bytes: 16, count: 8, srcStride: 32, dstStride: 48 }),
        fragment({ srcOffset: 512, dstOffset: 512, bytes: 100 }),
        fragment({ srcOffset: 300, dstOffset: 900, bytes: 37 }),
      ];
      const destinationStride = 2 * SLOT;
      const table = writer.prepareFragments(
        peer,
        poolTable(source, SLOT),
        poolTable(destination, SLOT, destinationStride),
        fragments,
      );
      const from = shuffled(SLOTS, 7).subarray(0, 20).toSorted();
      const to = shuffled(SLOTS / 2, 9).subarray(0, 20);
      const slotPairs = Int32Array.from({ length: 40 }, (_, i) => (i % 2 === 0 ? from : to)[i >> 1] as number);
      writer.submit({ id: 1, peer, flow: 0, groups: [{ fragments: table, slotPairs }], after: null });
      const completion = await log.of(1);
      expect(completion).toMatchObject({ status: 'transferred', bytes: 20 * (16 * 8 + 100 + 37), drained: true });
      expect(completion.error).toBeNull();
      const after = target.readBytes(destination.base, POOL_BYTES);
      const expected = expectedBytes(sourceBytes, before, SLOT, destinationStride, fragments, slotPairs);
      expect(after).toEqual(expected);
      expect(writer.readBytes(source.base, POOL_BYTES)).toEqual(sourceBytes);
    });

    it('takes several groups, and slot arrays may be reused at once', async () => {
      writer.writeBytes(source.base, patterned(POOL_BYTES, 4));
      const halves = [0, SLOT / 2].map((offset) =>
        writer.prepareFragments(peer, poolTable(source, SLOT), poolTable(destination, SLOT), [
          fragment({ srcOffset: offset, dstOffset: offset, bytes: SLOT / 2 }),
        ]),
      );
      const slotPairs = Int32Array.of(0, 1, 2, 3);
      const groups = halves.map((fragments) => ({ fragments, slotPairs }));
      writer.submit({ id: 1, peer, flow: 0, groups, after: null });
      slotPairs.fill(63);
      expect(await log.of(1)).toMatchObject({ status: 'transferred', bytes: 2 * SLOT });
      expect(target.readBytes(destination.base + SLOT, SLOT)).toEqual(writer.readBytes(source.base, SLOT));
      expect(target.readBytes(destination.base + 3 * SLOT, SLOT)).toEqual(
        writer.readBytes(source.base + 2 * SLOT, SLOT),
      );
      expect(target.readBytes(destination.base + 63 * SLOT, SLOT).every((byte) => byte === 0)).toBe(true);
    });

    it('completes a slice of nothing', async () => {
      const fragments = wholeSlots();
      writer.submit({
        id: 5,
        peer,
        flow: 1,
        groups: [{ fragments, slotPairs: new Int32Array(0) }],
        after: null,
      });
      writer.submit({ id: 6, peer, flow: 1, groups: [], after: null });
      for (const id of [5, 6]) {
        expect(await log.of(id)).toMatchObject({ status: 'transferred', bytes: 0, drained: true, postedAtMs: null });
      }
    });

    it('answers each submission once, with times of the monotonic clock', async () => {
      const fragments = wholeSlots();
      const beforeMs = Number(process.hrtime.bigint()) / 1e6;
      const ids = Array.from({ length: 60 }, (_, i) => i + 1);
      for (const id of ids) {
        writer.submit({
          id,
          peer,
          flow: id % 4,
          groups: [{ fragments, slotPairs: Int32Array.of(id, id) }],
          after: null,
        });
      }
      await Promise.all(ids.map((id) => log.of(id)));
      const afterMs = Number(process.hrtime.bigint()) / 1e6;
      expect(log.notices.map((notice) => notice.submission).toSorted((a, b) => a - b)).toEqual(ids);
      for (const { postedAtMs, finishedAtMs, bytes } of log.completions()) {
        expect(bytes).toBe(SLOT);
        expect(postedAtMs).toBeGreaterThanOrEqual(beforeMs);
        expect(finishedAtMs).toBeGreaterThanOrEqual(postedAtMs as number);
        expect(finishedAtMs).toBeLessThanOrEqual(afterMs);
      }
    });

    it('waits for the event of a submission and lets other flows pass', async () => {
      const fragments = wholeSlots();
      writer.writeBytes(source.base, patterned(POOL_BYTES, 5));
      const event = writer.createEvent();
      const groups = (slot: number) => [{ fragments, slotPairs: Int32Array.of(slot, slot) }];
      writer.submit({ id: 1, peer, flow: 1, groups: groups(1), after: event });
      writer.submit({ id: 2, peer, flow: 1, groups: groups(2), after: null });
      writer.submit({ id: 3, peer, flow: 2, groups: groups(3), after: null });
      await log.of(3);
      expect(log.completions().map((completion) => completion.submission)).toEqual([3]);
      expect(target.readBytes(destination.base + SLOT, 2 * SLOT).every((byte) => byte === 0)).toBe(true);
      event.signal();
      event.signal();
      expect((await log.of(1)).status).toBe('transferred');
      expect((await log.of(2)).status).toBe('transferred');
      writer.submit({ id: 4, peer, flow: 1, groups: groups(4), after: event });
      expect((await log.of(4)).status).toBe('transferred');
    });

    it('fails what waits for an event that fails', async () => {
      const fragments = wholeSlots();
      const event = writer.createEvent();
      const groups = [{ fragments, slotPairs: Int32Array.of(1, 1) }];
      writer.submit({ id: 1, peer, flow: 1, groups, after: event });
      event.fail('layer 3 ran out of memory');
      const completion = await log.of(1);
      expect(completion).toMatchObject({ status: 'failed', bytes: 0, drained: true, postedAtMs: null });
      expect(completion.error).toBeInstanceOf(TransferError);
      expect(completion.error?.message).toContain('layer 3 ran out of memory');
      writer.submit({ id: 2, peer, flow: 1, groups, after: event });
      expect((await log.of(2)).status).toBe('failed');
    });

    it('refuses the event of another agent', () => {
      const fragments = wholeSlots();
      const groups = [{ fragments, slotPairs: Int32Array.of(1, 1) }];
      expect(() => writer.submit({ id: 1, peer, flow: 1, groups, after: target.createEvent() })).toThrow(ArgumentError);
    });

    it('cancels what was not posted, and ignores ids it does not know', async () => {
      const fragments = wholeSlots();
      const event = writer.createEvent();
      writer.submit({
        id: 1,
        peer,
        flow: 1,
        groups: [{ fragments, slotPairs: Int32Array.of(1, 1) }],
        after: event,
      });
      writer.cancel(99);
      writer.cancel(1);
      writer.cancel(1);
      const completion = await log.of(1);
      expect(completion).toMatchObject({ status: 'cancelled', bytes: 0, drained: true, postedAtMs: null });
      expect(completion.error).toMatchObject({ code: 'ERR_KVT_TRANSFER_CANCELLED', peer: 'target' });
      event.signal();
      writer.cancel(1);
      expect(log.notices).toHaveLength(1);
    });

    it.each([
      ['a slot behind the pool', Int32Array.of(0, SLOTS)],
      ['a source slot behind the pool', Int32Array.of(1, 1, SLOTS, 1)],
      ['a hole', Int32Array.of(-1, 0)],
      ['half a pair', Int32Array.of(1, 1, 2)],
    ])('refuses %s, and the submission then does not exist', async (_what, slotPairs) => {
      const fragments = wholeSlots();
      expect(() => writer.submit({ id: 1, peer, flow: 0, groups: [{ fragments, slotPairs }], after: null })).toThrow(
        ArgumentError,
      );
      writer.submit({
        id: 1,
        peer,
        flow: 0,
        groups: [{ fragments, slotPairs: Int32Array.of(0, 0) }],
        after: null,
      });
      expect((await log.of(1)).status).toBe('transferred');
      expect(log.notices).toHaveLength(1);
    });

    it('refuses an id in use, and ids, flows and handles that are none', () => {
      const fragments = wholeSlots();
      const groups = [{ fragments, slotPairs: Int32Array.of(0, 0) }];
      const held = writer.createEvent();
      const good = { id: 1, peer, flow: 0, groups, after: null };
      writer.submit({ ...good, after: held });
      expect(() => writer.submit(good)).toThrow(/exists already/);
      for (const bad of [
        { ...good, id: 0.5 },
        { ...good, id: 2 ** 53 },
        { ...good, id: 2, flow: Number.NaN },
        { ...good, id: 2, peer: 77 as PeerHandle },
        { ...good, id: 2, peer: -1 as PeerHandle },
        { ...good, id: 2, groups: [{ fragments: 77 as FragmentTable, slotPairs: Int32Array.of(0, 0) }] },
        { ...good, id: 2, groups: [{ fragments, slotPairs: [0, 0] as unknown as Int32Array }] },
      ]) {
        expect(() => writer.submit(bad)).toThrow(ArgumentError);
      }
    });

    it('checks fragments against their slots and against what each side registered', () => {
      const local = poolTable(source, SLOT);
      const remote = poolTable(destination, SLOT);
      const prepare = (l = local, r = remote, f = fragment({ bytes: SLOT })) =>
        writer.prepareFragments(peer, l, r, [f]);
      expect(() => prepare(local, remote, fragment({ bytes: SLOT + 1 }))).toThrow(/leave the slot/);
      expect(() => prepare(local, remote, fragment({ bytes: 8, srcOffset: SLOT - 7 }))).toThrow(/source/);
      expect(() => prepare(local, remote, fragment({ bytes: 8, dstOffset: SLOT - 7 }))).toThrow(/destination/);
      expect(() => prepare(local, remote, fragment({ bytes: 8, count: 2 ** 50, srcStride: 8, dstStride: 8 }))).toThrow(
        ArgumentError,
      );
      expect(() => prepare(local, remote, fragment({ bytes: 8, srcPool: 1 }))).toThrow(/srcPool/);
      expect(() => prepare(local, remote, fragment({ bytes: 0.5 }))).toThrow(ArgumentError);
      // A page table is untrusted: one slot too many, or the memory of somebody else.
      expect(() => prepare(poolTable({ ...source, sizeBytes: POOL_BYTES + SLOT }, SLOT))).toThrow(/registered/);
      expect(() => prepare(local, poolTable({ ...destination, sizeBytes: POOL_BYTES + SLOT }, SLOT))).toThrow(
        /registered/,
      );
      expect(() => prepare(local, poolTable({ base: 4096, sizeBytes: SLOT }, SLOT))).toThrow(/registered/);
      expect(() => writer.prepareFragments(99 as PeerHandle, local, remote, [])).toThrow(ArgumentError);
    });

    it('refuses metadata that is not an agent’s', async () => {
      const good = await target.metadata();
      const flipped = good.slice();
      flipped[8] = (flipped[8] as number) ^ 0xff;
      for (const bad of [new Uint8Array(0), patterned(300, 1), good.subarray(0, good.length - 1), flipped]) {
        const refusal = await writer.addPeer(bad, 'liar').catch((error: unknown) => error);
        expect(refusal).toBeInstanceOf(TransportError);
      }
    });

    it('lets two agents add each other at the same time', async () => {
      const [left, right] = await Promise.all([open('left'), open('right')]);
      try {
        const [leftPool, rightPool] = await Promise.all([
          left.allocatePool({ sizeBytes: POOL_BYTES }),
          right.allocatePool({ sizeBytes: POOL_BYTES }),
        ]);
        const metadata = await Promise.all([left.metadata(), right.metadata()]);
        const [, back] = await Promise.all([left.addPeer(metadata[1], 'right'), right.addPeer(metadata[0], 'left')]);
        const fragments = right.prepareFragments(back, poolTable(rightPool, SLOT), poolTable(leftPool, SLOT), [
          fragment({ bytes: SLOT }),
        ]);
        right.writeBytes(rightPool.base, patterned(SLOT, 8));
        const answers = new CompletionLog(right);
        right.submit({
          id: 1,
          peer: back,
          flow: 0,
          groups: [{ fragments, slotPairs: Int32Array.of(0, 5) }],
          after: null,
        });
        expect((await answers.of(1)).status).toBe('transferred');
        expect(left.readBytes(leftPool.base + 5 * SLOT, SLOT)).toEqual(patterned(SLOT, 8));
      } finally {
        await Promise.all([left.close(5000), right.close(5000)]);
      }
    });

    it('forgets a removed peer and answers what waited for it', async () => {
      const fragments = wholeSlots();
      const groups = [{ fragments, slotPairs: Int32Array.of(0, 0) }];
      writer.submit({ id: 1, peer, flow: 0, groups, after: writer.createEvent() });
      await writer.removePeer(peer);
      const completion = await log.of(1);
      expect(completion).toMatchObject({ status: 'failed', drained: true });
      expect(completion.error).toMatchObject({ code: 'ERR_KVT_PEER_LOST' });
      expect(() => writer.submit({ id: 2, peer, flow: 0, groups, after: null })).toThrow(ArgumentError);
      await writer.removePeer(peer);
    });

    it('explains its path', () => {
      const plan = {
        groups: [],
        stats: { pairs: 0, fragments: 0, bytes: 0, descriptors: 0, coalescedDescriptors: 0, averageDescriptorBytes: 0 },
      };
      expect(writer.explain(peer, plan).reason).not.toBe('');
      expect(() => writer.explain(99 as PeerHandle, plan)).toThrow(ArgumentError);
    });

    it('closes once, answers what waited, and is safe to use afterwards', async () => {
      const fragments = wholeSlots();
      const groups = [{ fragments, slotPairs: Int32Array.of(0, 0) }];
      const event = writer.createEvent();
      writer.submit({ id: 1, peer, flow: 0, groups, after: event });
      await expect(writer.close(-1)).rejects.toBeInstanceOf(ArgumentError);
      await expect(writer.close(Number.NaN)).rejects.toBeInstanceOf(ArgumentError);
      const closing = writer.close(5000);
      expect(await writer.close(0)).toEqual(await closing);
      expect(await closing).toEqual({ drained: true, outstanding: 0 });
      expect(await log.of(1)).toMatchObject({ status: 'cancelled', drained: true });

      event.signal();
      event.fail('too late');
      writer.cancel(1);
      expect(() => writer.submit({ id: 2, peer, flow: 0, groups, after: null })).toThrow(StateError);
      expect(() => writer.createEvent()).toThrow(StateError);
      expect(() => writer.readBytes(source.base, 1)).toThrow(StateError);
      expect(() => writer.writeBytes(source.base, new Uint8Array(1))).toThrow(StateError);
      expect(() => writer.prepareFragments(peer, poolTable(source, SLOT), poolTable(destination, SLOT), [])).toThrow(
        StateError,
      );
      await expect(writer.allocatePool({ sizeBytes: 4096 })).rejects.toBeInstanceOf(StateError);
      await expect(writer.metadata()).rejects.toBeInstanceOf(StateError);
      await expect(writer.addPeer(new Uint8Array(1), 'x')).rejects.toBeInstanceOf(StateError);
    });
  });
}
