import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { BounceOptions } from '../../src/agent/bounce.js';
import { capabilities } from '../../src/agent/native.js';
import { createAgent } from '../../src/agent/native-agent.js';
import type { FragmentTable, PeerHandle, Pool, TransferAgent } from '../../src/agent/transfer-agent.js';
import { ArgumentError, CapabilityError } from '../../src/errors.js';
import type { TransferPlan } from '../../src/mapping/transfer-plan.js';
import { CompletionLog } from '../support/completion-log.js';
import { expectedBytes, fragment, patterned, poolTable, shuffled } from '../support/paged-pools.js';
import { agentSuite } from './agent-suite.js';

const { nixl } = await capabilities();
if (!nixl.available) {
  const why = `BOUNCE OVER NIXL IS NOT TESTED: ${nixl.reason}`;
  if ((process.env['KV_TRANSCEIVER_REQUIRE'] ?? '').split(/[\s,]+/).includes('nixl')) throw new Error(why);
  process.stderr.write(`\n${why}\n\n`);
} else if (nixl.path !== null) {
  process.env['KV_TRANSCEIVER_NIXL_LIB'] = nixl.path;
}

const SLOT = 4096;
const SLOTS = 256;
const POOL_BYTES = SLOT * SLOTS;
const TICKET = 0xfedc_ba98_7654_3210n;
const BOUNCE: BounceOptions = {
  sizeBytes: 512 << 10,
  maxChunkSize: 128 << 10,
  requestTimeoutMs: 2000,
  isForced: true,
};
// Heads of a token-major layout and a piece with other places on both sides.
const FRAGMENTS = [
  fragment({ srcOffset: 0, dstOffset: 64, bytes: 200, count: 10, srcStride: 300, dstStride: 220 }),
  fragment({ srcOffset: 3100, dstOffset: 2900, bytes: 777 }),
];

/** An agent with an arena does everything that one without does. */
agentSuite('host', (name) => createAgent({ kind: 'host', name, bounce: { ...BOUNCE, isForced: false } }));

describe.each(['host', 'nixl'] as const)('bounce over %s', (kind) => {
  const isSkipped = kind === 'nixl' && !nixl.available;
  let writer: TransferAgent;
  let target: TransferAgent;
  let source: Pool;
  let destination: Pool;
  let toTarget: PeerHandle;
  let toWriter: PeerHandle;
  let log: CompletionLog;

  async function open(bounce: BounceOptions | undefined, targetBounce = bounce): Promise<void> {
    writer = await createAgent({ kind, name: 'writer', ...(bounce === undefined ? {} : { bounce }) });
    target = await createAgent({
      kind,
      name: 'target',
      ...(targetBounce === undefined ? {} : { bounce: targetBounce }),
    });
    source = await writer.allocatePool({ sizeBytes: POOL_BYTES });
    destination = await target.allocatePool({ sizeBytes: POOL_BYTES });
    toTarget = await writer.addPeer(await target.metadata(), 'target');
    toWriter = await target.addPeer(await writer.metadata(), 'writer');
    log = new CompletionLog(writer);
  }

  beforeEach((context) => {
    if (isSkipped) context.skip();
  });

  afterEach(async () => {
    if (isSkipped) return;
    await Promise.all([writer.close(5000), target.close(5000)]);
  });

  function outbound(): FragmentTable {
    return writer.prepareFragments(toTarget, poolTable(source, SLOT), poolTable(destination, SLOT), FRAGMENTS);
  }
  function inbound(): FragmentTable {
    return target.prepareInbound?.(
      toWriter,
      poolTable(source, SLOT),
      poolTable(destination, SLOT),
      FRAGMENTS,
    ) as FragmentTable;
  }
  function pairs(count: number): Int32Array {
    const from = shuffled(SLOTS, 7);
    const to = shuffled(SLOTS, 9);
    return Int32Array.from({ length: 2 * count }, (_, i) => (i % 2 === 0 ? from : to)[i >> 1] as number);
  }
  const destinationsOf = (slotPairs: Int32Array) => slotPairs.filter((_, i) => i % 2 === 1);

  it('puts every byte where the receiver wants it, and no other', async () => {
    await open(BOUNCE);
    const sourceBytes = patterned(POOL_BYTES, 2);
    const before = patterned(POOL_BYTES, 3);
    writer.writeBytes(source.base, sourceBytes);
    target.writeBytes(destination.base, before);
    const slotPairs = pairs(200);
    await target.expectInbound?.(toWriter, TICKET, [
      { key: 5, fragments: inbound(), slots: destinationsOf(slotPairs) },
    ]);
    const table = outbound();
    for (let i = 0; i < 4; i++) {
      const groups = [{ fragments: table, slotPairs: slotPairs.slice(100 * i, 100 * (i + 1)), key: 5 }];
      writer.submit({ id: i + 1, peer: toTarget, flow: i, groups, after: null, ticket: TICKET });
    }
    for (let i = 0; i < 4; i++) {
      expect(await log.of(i + 1)).toMatchObject({
        status: 'transferred',
        bytes: 50 * (200 * 10 + 777),
        drained: true,
        error: null,
      });
    }
    const expected = expectedBytes(sourceBytes, before, SLOT, SLOT, FRAGMENTS, slotPairs);
    expect(firstDifference(target.readBytes(destination.base, POOL_BYTES), expected)).toBe(-1);
    await target.endInbound?.(toWriter, TICKET);
    await target.endInbound?.(toWriter, TICKET);
  });

  it('touches no page after the receive was ended, and says why the slice failed', async () => {
    await open(BOUNCE);
    writer.writeBytes(source.base, patterned(POOL_BYTES, 2));
    const slotPairs = pairs(SLOTS);
    await target.expectInbound?.(toWriter, TICKET, [
      { key: 0, fragments: inbound(), slots: destinationsOf(slotPairs) },
    ]);
    await target.endInbound?.(toWriter, TICKET);
    const canary = patterned(POOL_BYTES, 99);
    target.writeBytes(destination.base, canary);
    writer.submit({
      id: 1,
      peer: toTarget,
      flow: 0,
      groups: [{ fragments: outbound(), slotPairs }],
      after: null,
      ticket: TICKET,
    });
    const failed = await log.of(1);
    expect(failed).toMatchObject({ status: 'failed', drained: true, bytes: 0 });
    expect(failed.error?.message).toMatch(/receiver refused a bounced slice: it expects nothing/);
    expect(firstDifference(target.readBytes(destination.base, POOL_BYTES), canary)).toBe(-1);
  });

  it('explains what it does', async () => {
    await open({ ...BOUNCE, isForced: false, minDescriptorCount: 100, maxAverageDescriptorSize: 1000 });
    const plan = (coalescedDescriptors: number, bytes: number) =>
      ({ groups: [], stats: { coalescedDescriptors, bytes } }) as unknown as TransferPlan;
    const plain = kind === 'host' ? 'host' : 'rdma';
    expect(writer.explain(toTarget, plan(100, 100_000))).toMatchObject({ path: 'bounce' });
    expect(writer.explain(toTarget, plan(99, 9900)).path).toBe(plain);
    expect(writer.explain(toTarget, plan(100, 100_001))).toMatchObject({
      path: plain,
      alternatives: [
        {
          path: 'bounce',
          isAvailable: true,
          reason: expect.stringContaining('100 descriptors of 1000 bytes') as string,
        },
      ],
    });
  });

  it('says by what a slice is copied on either way, and tells no one of an arena who has one', async () => {
    await open({ ...BOUNCE, isForced: false, minDescriptorCount: 1000 });
    outbound();
    const explained = (count: number) => {
      const groups = [{ group: 0, peerGroup: 0, part: 0, fragments: FRAGMENTS, slotPairs: pairs(count) }];
      return writer.explain(toTarget, {
        groups,
        stats: { coalescedDescriptors: 11 * count, bytes: 2777 * count },
      } as unknown as TransferPlan);
    };
    // Eleven pieces a slot.
    const bounced = explained(200);
    expect(bounced).toMatchObject({ path: 'bounce', copy: { means: 'thread', remedy: null } });
    expect(bounced.copy?.reason).toMatch(/copy between pages and arenas; frames go over a local socket$/);
    const plain = explained(20);
    expect(plain.path).toBe(kind === 'host' ? 'host' : 'rdma');
    if (kind === 'nixl') {
      const reason = 'about 220 descriptors of 252 bytes on average, one per contiguous run';
      expect(plain.copy).toEqual({ means: 'descriptors', reason, remedy: null });
    } else {
      expect(plain.copy).toMatchObject({
        means: 'thread',
        reason: expect.stringContaining('one piece after') as string,
      });
    }
    expect(plain.advice).toEqual([]);
  });

  it('goes the plain way where the two sides do not agree, and says so', async () => {
    await open(BOUNCE, { ...BOUNCE, maxChunkSize: 64 << 10 });
    writer.writeBytes(source.base, patterned(POOL_BYTES, 2));
    const groups = [{ fragments: outbound(), slotPairs: Int32Array.of(1, 2) }];
    writer.submit({ id: 1, peer: toTarget, flow: 0, groups, after: null, ticket: TICKET });
    expect(await log.of(1)).toMatchObject({ status: 'transferred' });
    const explained = writer.explain(toTarget, { groups: [], stats: { coalescedDescriptors: 1, bytes: 1 } } as never);
    expect(explained.path).not.toBe('bounce');
    const reason = expect.stringContaining('maxChunkSize is 65536') as string;
    expect(explained.alternatives).toMatchObject([{ path: 'bounce', isAvailable: false, reason }]);
    expect(explained.advice).toEqual([reason]);
  });

  it('works with a peer that has no arena', async () => {
    await open(BOUNCE, undefined);
    await target.close(5000);
    target = await createAgent({ kind, name: 'plain' });
    destination = await target.allocatePool({ sizeBytes: POOL_BYTES });
    toTarget = await writer.addPeer(await target.metadata(), 'plain');
    toWriter = await target.addPeer(await writer.metadata(), 'writer');
    writer.submit({
      id: 9,
      peer: toTarget,
      flow: 0,
      groups: [{ fragments: outbound(), slotPairs: Int32Array.of(1, 2) }],
      after: null,
      ticket: TICKET,
    });
    expect(await log.of(9)).toMatchObject({ status: 'transferred' });
    const explained = writer.explain(toTarget, { groups: [], stats: { coalescedDescriptors: 1, bytes: 1 } } as never);
    expect(explained.alternatives).toMatchObject([
      { path: 'bounce', isAvailable: false, reason: expect.stringContaining('no bounce arena') as string },
    ]);
  });

  it('is the only path of an agent that is told so, which refuses peers without an arena', async () => {
    await open(BOUNCE);
    await expect(createAgent({ kind, name: 'x', path: 'bounce' })).rejects.toThrow(CapabilityError);
    await expect(createAgent({ kind, name: 'x', path: 'p2p', bounce: BOUNCE })).rejects.toThrow(ArgumentError);
    const only = await createAgent({ kind, name: 'only', path: 'bounce', bounce: { ...BOUNCE, isForced: false } });
    const plain = await createAgent({ kind, name: 'plain' });
    try {
      const peer = await only.addPeer(await target.metadata(), 'target');
      const small = { groups: [], stats: { coalescedDescriptors: 1, bytes: 1 } } as never;
      expect(only.explain(peer, small)).toMatchObject({ path: 'bounce', reason: 'bounce is forced' });
      await expect(only.addPeer(await plain.metadata(), 'plain')).rejects.toThrow(/no bounce arena/);
    } finally {
      await Promise.all([only.close(2000), plain.close(2000)]);
    }
  });

  it('refuses options and arguments that cannot work', async () => {
    await open(BOUNCE);
    await expect(createAgent({ kind, name: 'x', bounce: { ...BOUNCE, sizeBytes: 255 << 10 } })).rejects.toThrow(
      /kvCacheBounceSizeMb/,
    );
    await expect(createAgent({ kind, name: 'x', bounce: { ...BOUNCE, gatherBlocks: 0 } })).rejects.toThrow(
      ArgumentError,
    );
    const fragments = inbound();
    for (const slots of [Int32Array.of(SLOTS), Int32Array.of(-1)]) {
      await expect(target.expectInbound?.(toWriter, TICKET, [{ key: 0, fragments, slots }])).rejects.toThrow(
        ArgumentError,
      );
    }
    await expect(target.expectInbound?.(toWriter, 0n, [])).rejects.toThrow(ArgumentError);
    await expect(target.expectInbound?.(toWriter, 1n << 64n, [])).rejects.toThrow(ArgumentError);
    await target.expectInbound?.(toWriter, 1n, []);
    await expect(target.expectInbound?.(toWriter, 1n, [])).rejects.toThrow(/expected already/);
  });
});

/** toEqual takes seconds for a mebibyte. */
function firstDifference(got: Uint8Array, expected: Uint8Array): number {
  return got.length === expected.length ? got.findIndex((byte, i) => byte !== expected[i]) : got.length;
}
