import { afterEach, describe, expect, it } from 'vitest';
import { capabilities } from '../../../src/agent/native.js';
import { createAgent } from '../../../src/agent/native-agent.js';
import { plainCopyNs } from '../../../src/agent/plain-copy.js';
import type { TransferAgent } from '../../../src/agent/transfer-agent.js';
import { ArgumentError } from '../../../src/errors.js';
import type { TransferPlan } from '../../../src/mapping/transfer-plan.js';
import { CompletionLog } from '../../support/completion-log.js';
import { fragment, patterned, poolTable } from '../../support/paged-pools.js';
import { TurnLog, workMs } from '../../support/turn-log.js';

const open: TransferAgent[] = [];
async function openHost(options: { readonly linkGbps?: number } = {}): Promise<TransferAgent> {
  const agent = await createAgent({ kind: 'host', name: 'unit', ...options });
  open.push(agent);
  return agent;
}
afterEach(async () => {
  await Promise.all(open.splice(0).map((agent) => agent.close(5000)));
});

describe('createAgent', () => {
  it.each([0, -1, Number.NaN, Number.POSITIVE_INFINITY, 1e9])('refuses linkGbps %s', async (linkGbps) => {
    await expect(createAgent({ kind: 'host', name: 'x', linkGbps })).rejects.toThrow(/linkGbps/);
    await expect(createAgent({ kind: 'host', name: 'x', linkGbps })).rejects.toBeInstanceOf(ArgumentError);
  });

  it('refuses a kind it does not know, a nameless agent, and a modelled link for nixl', async () => {
    await expect(createAgent({ kind: 'tcp' as 'host', name: 'x' })).rejects.toThrow(/host or nixl/);
    await expect(createAgent({ kind: 'host', name: '' })).rejects.toBeInstanceOf(ArgumentError);
    await expect(createAgent({ kind: 'nixl', name: 'x', linkGbps: 25 })).rejects.toThrow(/linkGbps/);
  });

  it('gives each agent a name of its own', async () => {
    const [a, b] = [await openHost(), await openHost()];
    expect(a.name).toMatch(/^unit-[0-9a-f]{16}$/);
    expect(b.name).not.toBe(a.name);
  });
});

describe('how a slice is copied', () => {
  const SLOT = 4096;

  it.each([
    ['pages that are lined up', {}, 'several pieces of one size in turns', null],
    ['pieces of an odd size', { bytes: 4000 }, 'one piece after the other', /multiples of 64 bytes/],
    [
      'destinations that are not lined up',
      { dstOffset: 8, bytes: 2048 },
      'one piece after the other',
      /multiples of 64/,
    ],
  ])('is explained with its remedy: %s', async (_, fields, reason, remedy) => {
    const [writer, target] = [await openHost(), await openHost()];
    const sizeBytes = 16 * SLOT;
    const [from, to] = [await writer.allocatePool({ sizeBytes }), await target.allocatePool({ sizeBytes })];
    const peer = await writer.addPeer(await target.metadata(), 'target');
    const fragments = [fragment({ bytes: SLOT, ...fields })];
    writer.prepareFragments(peer, poolTable(from, SLOT), poolTable(to, SLOT), fragments);
    const explain = (slotPairs: Int32Array) =>
      writer.explain(peer, { groups: [{ fragments, slotPairs }] } as unknown as TransferPlan);
    const { path, copy, advice } = explain(Int32Array.of(0, 3, 1, 5));
    expect(path).toBe('host');
    expect(copy?.means).toBe('thread');
    // Other processors copy one piece after the other, whatever the pages.
    if (process.arch === 'x64') {
      expect(copy?.reason).toContain(reason);
      if (remedy === null) expect(copy?.remedy).toBeNull();
      else expect(copy?.remedy).toMatch(remedy);
    } else expect(copy?.remedy).toBeNull();
    expect(advice).toEqual([]);
    expect(explain(new Int32Array(0))).not.toHaveProperty('copy');
  });
});

describe('a modelled link', () => {
  it('delays completions by what the bytes take, whichever flow they belong to', async () => {
    const [writer, target] = [await openHost({ linkGbps: 1 }), await openHost()];
    const sizeBytes = 4 << 20;
    const [from, to] = [await writer.allocatePool({ sizeBytes }), await target.allocatePool({ sizeBytes })];
    const peer = await writer.addPeer(await target.metadata(), 'target');
    const slot = 1 << 20;
    const fragments = writer.prepareFragments(peer, poolTable(from, slot), poolTable(to, slot), [
      fragment({ bytes: slot }),
    ]);
    const log = new CompletionLog(writer);
    for (const id of [1, 2]) {
      writer.submit({
        id,
        peer,
        flow: id,
        groups: [{ fragments, slotPairs: Int32Array.of(id, id) }],
        after: null,
      });
    }
    const [first, second] = [await log.of(1), await log.of(2)];
    // 2 MiB at 1 Gbit/s; the lower bound is the model's, no upper bound holds on a busy machine.
    const lastMs = Math.max(first.finishedAtMs, second.finishedAtMs);
    expect(lastMs - (first.postedAtMs as number)).toBeGreaterThanOrEqual((2 * slot * 8) / 1e6);
  });
});

describe('completions that came together', () => {
  it('are handed on in portions, in their order, and none after the agent closed', async () => {
    const [writer, target] = [await openHost(), await openHost()];
    const sizeBytes = 1 << 16;
    const [from, to] = [await writer.allocatePool({ sizeBytes }), await target.allocatePool({ sizeBytes })];
    const peer = await writer.addPeer(await target.metadata(), 'target');
    const fragments = writer.prepareFragments(peer, poolTable(from, 64), poolTable(to, 64), [fragment({ bytes: 64 })]);
    const submit = (id: number): void =>
      writer.submit({ id, peer, flow: 1, groups: [{ fragments, slotPairs: Int32Array.of(id, id) }], after: null });
    const log = new TurnLog<number>();
    let onLast = (): void => {};
    const last = new Promise<void>((resolve) => {
      onLast = resolve;
    });
    writer.onCompletions((batch) => {
      for (const notice of batch) {
        log.done(notice.submission);
        workMs(0.1);
        if (notice.submission === 300) onLast();
      }
    });
    for (let id = 1; id <= 300; id++) submit(id);
    // All of them end while this thread is busy.
    workMs(100);
    await last;
    expect(log.doneIn.map(({ what }) => what)).toEqual(Array.from({ length: 300 }, (_, index) => index + 1));
    // Those between two looks at the clock, and what a portion of a millisecond holds.
    expect(log.mostInATurn).toBeLessThanOrEqual(64);
    for (let id = 301; id <= 600; id++) submit(id);
    await writer.close(5000);
    log.stop();
    expect(log.doneIn.map(({ what }) => what)).toEqual(Array.from({ length: 600 }, (_, index) => index + 1));
  });
});

describe('plainCopyNs', () => {
  it('copies the pages of the pairs and says how long it took', async () => {
    const agent = await openHost();
    const [from, to] = [await agent.allocatePool({ sizeBytes: 8192 }), await agent.allocatePool({ sizeBytes: 8192 })];
    const bytes = patterned(8192, 3);
    agent.writeBytes(from.base, bytes);
    const copy = { srcBase: from.base, dstBase: to.base, pageBytes: 100, slotStride: 1024 };
    expect(await plainCopyNs({ ...copy, slotPairs: Int32Array.of(7, 0, 1, 7) })).toBeGreaterThan(0);
    const expected = new Uint8Array(8192);
    expected.set(bytes.subarray(7 * 1024, 7 * 1024 + 100), 0);
    expected.set(bytes.subarray(1024, 1124), 7 * 1024);
    expect(agent.readBytes(to.base, 8192)).toEqual(expected);
    for (const bad of [
      { slotPairs: Int32Array.of(8, 0) },
      { slotPairs: Int32Array.of(0, 8) },
      { slotPairs: Int32Array.of(-1, 0) },
      { slotPairs: Int32Array.of(0) },
      { srcBase: 4096, slotPairs: Int32Array.of(0, 0) },
      { pageBytes: 0, slotPairs: Int32Array.of(0, 0) },
      { pageBytes: 2048, slotPairs: Int32Array.of(0, 0) },
      { slotStride: 2 ** 52, pageBytes: 8, slotPairs: Int32Array.of(2 ** 31 - 1, 0) },
    ]) {
      await expect(plainCopyNs({ ...copy, ...bad })).rejects.toBeInstanceOf(ArgumentError);
    }
  });
});

describe('capabilities', () => {
  it('says what is here and gives a reason for what is not', async () => {
    const found = await capabilities();
    expect(found.addon).toMatchObject({ abiVersion: 9, napiVersion: 8 });
    expect(found.host).toEqual({ available: true, reason: null });
    for (const part of [found.cuda, found.nixl]) {
      expect(part.available).toBe(part.reason === null);
      if (!part.available) expect(part.reason).toMatch(/install|update|check|run|set/i);
    }
  });
});

describe('events', () => {
  it('fail what waits for them when nobody is left to signal them', async () => {
    if (globalThis.gc === undefined) {
      const { setFlagsFromString } = await import('node:v8');
      const { runInNewContext } = await import('node:vm');
      setFlagsFromString('--expose-gc');
      globalThis.gc = runInNewContext('gc') as NodeJS.GCFunction;
    }
    const [writer, target] = [await openHost(), await openHost()];
    const sizeBytes = 4096;
    const [from, to] = [await writer.allocatePool({ sizeBytes }), await target.allocatePool({ sizeBytes })];
    const peer = await writer.addPeer(await target.metadata(), 'target');
    const fragments = writer.prepareFragments(peer, poolTable(from, 64), poolTable(to, 64), [fragment({ bytes: 64 })]);
    const log = new CompletionLog(writer);
    const groups = [{ fragments, slotPairs: Int32Array.of(0, 0) }];
    writer.submit({ id: 1, peer, flow: 1, groups, after: writer.createEvent() });
    const completion = log.of(1);
    // Finalisers run in a later turn than the collection.
    for (let turn = 0; turn < 100 && log.notices.length === 0; turn++) {
      globalThis.gc?.();
      await new Promise((resolve) => setImmediate(resolve));
    }
    expect(await completion).toMatchObject({ status: 'failed' });
    expect((await completion).error?.message).toContain('without being signalled');
  });
});
