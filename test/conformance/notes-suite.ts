import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { FragmentTable, PeerHandle, ReadyEvent, TransferAgent } from '../../src/agent/transfer-agent.js';
import { ArgumentError } from '../../src/errors.js';
import type { PageTable } from '../../src/mapping/page-table.js';
import { CompletionLog } from '../support/completion-log.js';
import { HANG_LIMIT_MS, withDeadline } from '../support/deadline.js';
import { fragment, patterned, poolTable } from '../support/paged-pools.js';

const SLOT = 1024;
const POOL_BYTES = 64 * SLOT;
const text = (note: Uint8Array): string => new TextDecoder().decode(note);
const bytes = (of: string): Uint8Array => new TextEncoder().encode(of);

/**
 * What every agent that carries notes must do. Agents of one machine: elsewhere a note is not sent, and its outcome says so.
 * @param lane `bounded`: what nobody listens to fills the lane, and then no more is sent. Default: true
 */
export function notesSuite(
  kind: TransferAgent['kind'],
  open: (name: string) => Promise<TransferAgent>,
  lane: { readonly bounded: boolean } = { bounded: true },
): void {
  describe(`notes of a ${kind} agent`, () => {
    let writer: TransferAgent;
    let target: TransferAgent;
    let peer: PeerHandle;
    let tables: [PageTable, PageTable];
    let fragments: FragmentTable;
    let log: CompletionLog;
    let heard: { readonly from: string; readonly note: string; readonly page: Uint8Array }[];
    let onHeard: () => void;
    let page: number;

    beforeEach(async () => {
      [writer, target] = await Promise.all([open('writer'), open('target')]);
      const [source, destination] = await Promise.all([
        writer.allocatePool({ sizeBytes: POOL_BYTES }),
        target.allocatePool({ sizeBytes: POOL_BYTES }),
      ]);
      peer = await writer.addPeer(await target.metadata(), 'target');
      expect(await target.watchPeer?.(await writer.metadata(), 'writer')).toBe(true);
      tables = [poolTable(source, SLOT), poolTable(destination, SLOT)];
      fragments = writer.prepareFragments(peer, ...tables, [fragment({ bytes: SLOT })]);
      writer.writeBytes(source.base, patterned(POOL_BYTES, 5));
      page = destination.base;
      heard = [];
      onHeard = () => {};
      target.onNote?.((from, note) => {
        heard.push({ from, note: text(note), page: target.readBytes(page, SLOT) });
        onHeard();
      });
      log = new CompletionLog(writer);
    });

    afterEach(async () => {
      await Promise.all([writer.close(5000), target.close(5000)]);
    });

    function send(id: number, note?: { readonly says: string; readonly also?: number[] }, after?: ReadyEvent): void {
      writer.submit({
        id,
        peer,
        flow: id,
        groups: [{ fragments, slotPairs: Int32Array.of(id % 64, (id - 1) % 64) }],
        after: after ?? null,
        ...(note === undefined ? {} : { note: { bytes: bytes(note.says), also: note.also ?? [] } }),
      });
    }

    const outcomes = (): string[] =>
      log.notices.map((notice) => {
        const word = notice.kind === 'note' ? (notice.isSent ? 'sent' : 'unsent') : notice.kind;
        return `${notice.submission} ${word}`;
      });

    async function hears(count: number): Promise<void> {
      const there = new Promise<void>((resolve) => {
        onHeard = () => heard.length >= count && resolve();
        onHeard();
      });
      await withDeadline(there, HANG_LIMIT_MS, () => `${heard.length} of ${count}; ${JSON.stringify(outcomes())}`);
    }

    it('carries them', () => {
      expect(writer.carriesNotes).toBe(true);
      expect(writer.noteStats?.()).toEqual({ sent: 0, unsent: 0, received: 0, dropped: 0, refused: 0 });
    });

    it('a note comes from the peer, whole, once, after the bytes that it speaks of', async () => {
      send(1, { says: 'arrived' });
      await log.of(1);
      await hears(1);
      expect(heard).toEqual([
        { from: 'writer', note: 'arrived', page: patterned(POOL_BYTES, 5).subarray(SLOT, 2 * SLOT) },
      ]);
      expect(outcomes()).toEqual(['1 sent', '1 completion']);
      expect(writer.noteStats?.()).toMatchObject({ sent: 1, unsent: 0 });
      expect(target.noteStats?.()).toMatchObject({ received: 1, dropped: 0, refused: 0 });
    });

    it('is announced, whole and once, while what it waits for is not there yet', async () => {
      const soon: { readonly from: string; readonly note: string; readonly heard: number }[] = [];
      let onSoon = (): void => {};
      target.onNoteSoon?.((from, note) => {
        soon.push({ from, note: text(note), heard: heard.length });
        onSoon();
      });
      const event = writer.createEvent();
      const announced = new Promise<void>((resolve) => {
        onSoon = resolve;
      });
      send(1, { says: 'arrived' }, event);
      await withDeadline(announced, HANG_LIMIT_MS, () => JSON.stringify(outcomes()));
      expect(soon).toEqual([{ from: 'writer', note: 'arrived', heard: 0 }]);
      event.signal();
      await hears(1);
      expect(heard.map(({ note }) => note)).toEqual(['arrived']);
      expect(soon).toHaveLength(1);
      expect(target.noteStats?.()).toMatchObject({ received: 1, dropped: 0, refused: 0 });
    });

    it('waits for the other submissions that it names, in whatever order they end', async () => {
      const event = writer.createEvent();
      send(1, undefined, event);
      send(2, { says: 'both', also: [1] });
      await log.of(2);
      send(3, { says: 'alone' });
      await hears(1);
      expect(heard.map(({ note }) => note)).toEqual(['alone']);
      event.signal();
      await hears(2);
      expect(heard.map(({ note }) => note)).toEqual(['alone', 'both']);
      await log.of(1);
      expect(outcomes()).toEqual(['2 completion', '3 sent', '3 completion', '2 sent', '1 completion']);
    });

    it('is not sent when a submission of it fails', async () => {
      const event = writer.createEvent();
      send(1, { says: 'never' }, event);
      send(2, { says: 'never either', also: [1] });
      event.fail('the forward failed');
      await log.of(1);
      await log.of(2);
      send(3, { says: 'after' });
      await hears(1);
      expect(heard.map(({ note }) => note)).toEqual(['after']);
      await log.of(3);
      expect(outcomes()).toEqual(expect.arrayContaining(['1 unsent', '2 unsent', '3 sent']));
      expect(writer.noteStats?.()).toMatchObject({ sent: 1, unsent: 2 });
    });

    it('is not sent after a cancel of any submission of it, and says so at once', async () => {
      const [first, second] = [writer.createEvent(), writer.createEvent()];
      send(1, undefined, first);
      send(2, { says: 'never', also: [1] }, second);
      writer.cancel(1);
      await log.of(1);
      expect(outcomes()).toEqual(['2 unsent', '1 completion']);
      second.signal();
      expect(await log.of(2)).toMatchObject({ status: 'transferred' });
      first.signal();
      send(3, { says: 'after' });
      await hears(1);
      expect(heard.map(({ note }) => note)).toEqual(['after']);
    });

    it('is not sent when it names a submission that has ended, or never was', async () => {
      send(1);
      await log.of(1);
      send(2, { says: 'late', also: [1] });
      await log.of(2);
      send(3, { says: 'unknown', also: [77] });
      await log.of(3);
      expect(outcomes()).toEqual(['1 completion', '2 unsent', '2 completion', '3 unsent', '3 completion']);
    });

    it('is not sent to a peer that is removed, nor heard from a process that is watched no more', async () => {
      const event = writer.createEvent();
      send(1, { says: 'never' }, event);
      await writer.removePeer(peer);
      expect(await log.of(1)).toMatchObject({ status: 'failed' });
      event.signal();
      expect(outcomes()).toEqual(['1 unsent', '1 completion']);
      peer = await writer.addPeer(await target.metadata(), 'target');
      fragments = writer.prepareFragments(peer, ...tables, [fragment({ bytes: SLOT })]);
      target.unwatchPeer?.('writer');
      send(2, { says: 'to nobody' });
      await log.of(2);
      // What was said meanwhile may be there when somebody listens again, as a late frame might be.
      await target.watchPeer?.(await writer.metadata(), 'again');
      send(3, { says: 'to somebody' });
      await hears(1);
      if (heard[0]?.note === 'to nobody') await hears(2);
      expect(heard.at(-1)).toMatchObject({ from: 'again', note: 'to somebody' });
      expect(heard.every(({ from }) => from === 'again')).toBe(true);
    });

    it('is heard of an agent that was added and watched twice, also when one of the two is gone', async () => {
      const oldPeer = peer;
      peer = await writer.addPeer(await target.metadata(), 'target');
      fragments = writer.prepareFragments(peer, ...tables, [fragment({ bytes: SLOT })]);
      await target.watchPeer?.(await writer.metadata(), 'newer');
      send(1, { says: 'twice' });
      await hears(1);
      target.unwatchPeer?.('writer');
      await writer.removePeer(oldPeer);
      send(2, { says: 'once' });
      await hears(2);
      await target.watchPeer?.(await writer.metadata(), 'newest');
      target.unwatchPeer?.('newer');
      send(3, { says: 'once more' });
      await hears(3);
      expect(heard.map(({ from, note }) => [from, note])).toEqual([
        ['newer', 'twice'],
        ['newer', 'once'],
        ['newest', 'once more'],
      ]);
    });

    if (lane.bounded)
      it('to an agent that does not listen is sent until there is no room, and never waits', async () => {
        target.unwatchPeer?.('writer');
        let id = 0;
        while ((writer.noteStats?.().unsent ?? 1) === 0 && id < 20_000) {
          send(++id, { says: 'x'.repeat(2000) });
          await log.of(id);
        }
        expect(writer.noteStats?.()).toMatchObject({ unsent: 1, sent: id - 1 });
        expect(log.completions().every(({ status }) => status === 'transferred')).toBe(true);
      });

    it('a note of no byte, or of too many, is refused, and so is its submission', async () => {
      for (const size of [0, 2049]) {
        expect(() =>
          writer.submit({
            id: 1,
            peer,
            flow: 1,
            groups: [{ fragments, slotPairs: Int32Array.of(1, 0) }],
            after: null,
            note: { bytes: new Uint8Array(size), also: [] },
          }),
        ).toThrow(ArgumentError);
      }
      const longest = 'x'.repeat(2048);
      send(1, { says: longest });
      await hears(1);
      expect(heard.map(({ note }) => note)).toEqual([longest]);
    });

    it('many at once come one after another, or are counted', async () => {
      for (let id = 1; id <= 60; id++) send(id, { says: `note ${id}` });
      for (let id = 1; id <= 60; id++) await log.of(id);
      const { sent = 0, unsent = 0 } = writer.noteStats?.() ?? {};
      expect(sent + unsent).toBe(60);
      await hears(sent);
      expect(new Set(heard.map(({ note }) => note)).size).toBe(sent);
    });

    it('to an agent that is gone it is not sent, and nothing waits for it', async () => {
      await target.close(5000);
      send(1, { says: 'nobody' });
      await log.of(1);
      expect(outcomes()).toContain('1 unsent');
    });
  });
}
