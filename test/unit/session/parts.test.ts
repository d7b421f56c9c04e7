import { describe, expect, it } from 'vitest';
import { ArgumentError, ProtocolError, ResourceError, StateError } from '../../../src/errors.js';
import { AUX_MAX_TOKENS, AUX_SLOT_BYTES, AuxBuffer } from '../../../src/session/aux-buffer.js';
import { BoundedMap } from '../../../src/session/bounded-map.js';
import { clipText } from '../../../src/session/clip-text.js';
import { Repeater } from '../../../src/session/repeater.js';
import { RequestClocks } from '../../../src/session/request-clocks.js';
import { TransferLedger } from '../../../src/session/transfer-ledger.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { SimFabric } from '../../sim-lite/sim-agent.js';
import { TableCache } from '../../sim-lite/table-cache.js';

describe('TransferLedger', () => {
  it('pins once and unpins once, whatever is asked twice', () => {
    const cache = new TableCache([], 4);
    const ledger = new TransferLedger(cache);
    ledger.acquire(1);
    ledger.acquire(1);
    ledger.acquire(2);
    expect(ledger.heldCount).toBe(2);
    ledger.complete(1);
    expect(() => ledger.complete(1)).toThrow(StateError);
    ledger.settle(1);
    expect(() => ledger.settle(1)).toThrow(StateError);
    expect(() => ledger.complete(3)).toThrow(/not there/);
    expect(ledger.holds(1)).toBe(false);
    expect(ledger.holds(2)).toBe(true);
    ledger.settle(2);
    expect(cache.history).toEqual(['pin 1', 'pin 2', 'unpin 1', 'unpin 2']);
  });
});

describe('Repeater', () => {
  it('repeats after 250, 500, 1000, 2000, 2000 ms until it is stopped', () => {
    const clock = new FakeClock(0);
    const repeater = new Repeater(clock);
    const sent: number[] = [];
    repeater.start('a', () => void sent.push(clock.now()));
    clock.advance(8000);
    expect(sent).toEqual([0, 250, 750, 1750, 3750, 5750, 7750]);
    expect(repeater.stop('a')).toBe(true);
    expect(repeater.stop('a')).toBe(false);
    clock.advance(8000);
    expect(sent).toHaveLength(7);
    expect(clock.pendingTimerCount).toBe(0);
  });

  it('may be stopped by what it sends', () => {
    const clock = new FakeClock(0);
    const repeater = new Repeater(clock);
    let count = 0;
    repeater.start('a', () => {
      count += 1;
      if (count === 2) repeater.stop('a');
    });
    clock.advance(10_000);
    expect(count).toBe(2);
    expect(repeater.runningCount).toBe(0);
    expect(clock.pendingTimerCount).toBe(0);
  });
});

describe('a Repeater of many', () => {
  it('has one timer, and each is sent at its own times', () => {
    const clock = new FakeClock(0);
    const repeater = new Repeater<bigint>(clock);
    const sent = new Map<bigint, number[]>();
    for (let i = 0n; i < 50n; i += 1n) {
      sent.set(i, []);
      repeater.start(i, () => void sent.get(i)?.push(clock.now() - Number(i) * 10));
      expect(clock.pendingTimerCount).toBe(1);
      clock.advance(10);
    }
    clock.advance(8000);
    for (let i = 0n; i < 50n; i += 1n)
      expect(sent.get(i)?.slice(0, 7), String(i)).toEqual([0, 250, 750, 1750, 3750, 5750, 7750]);
    expect(clock.pendingTimerCount).toBe(1);
    // A young one does not wait for the next of the old ones.
    const started = clock.now();
    const times: number[] = [];
    repeater.start(100n, () => void times.push(clock.now() - started));
    for (let i = 0n; i < 50n; i += 1n) repeater.stop(i);
    clock.advance(800);
    expect(times).toEqual([0, 250, 750]);
    repeater.stop(100n);
    expect([repeater.runningCount, clock.pendingTimerCount]).toEqual([0, 0]);
  });

  it('one that cannot be sent, and one that stops others, keep nobody waiting', () => {
    const clock = new FakeClock(0);
    const repeater = new Repeater(clock);
    const sent: string[] = [];
    let broken = false;
    repeater.start('a', () => {
      if (broken) throw new Error('not now');
      sent.push('a');
    });
    repeater.start('b', () => {
      sent.push('b');
      if (sent.length > 3) repeater.stop('c');
    });
    repeater.start('c', () => void sent.push('c'));
    broken = true;
    expect(() => clock.advance(250)).toThrow('not now');
    broken = false;
    clock.advance(0);
    expect(sent).toEqual(['a', 'b', 'c', 'b']);
    clock.advance(500);
    expect(sent).toEqual(['a', 'b', 'c', 'b', 'a', 'b']);
  });
});

describe('RequestClocks', () => {
  const limits = { transferQueueTimeoutMs: 100, noProgressTimeoutMs: 30, kvTransferTimeoutMs: 60 };

  it('queue: from creation until the peer arrived', () => {
    const clock = new FakeClock(0);
    const clocks = new RequestClocks(clock, limits);
    clock.advance(99);
    expect(clocks.expired()).toBeNull();
    clock.advance(1);
    expect(clocks.expired()).toEqual({ clock: 'queue', limitMs: 100 });
    clocks.peerArrived();
    clock.advance(1000);
    expect(clocks.expired()).toBeNull();
  });

  it('progress: only while busy, restarted by each sign of it', () => {
    const clock = new FakeClock(0);
    const clocks = new RequestClocks(clock, { ...limits, kvTransferTimeoutMs: 10_000 });
    clocks.peerArrived();
    clocks.setBusy(true);
    clock.advance(29);
    clocks.progress();
    clock.advance(29);
    expect(clocks.expired()).toBeNull();
    clock.advance(1);
    expect(clocks.expired()).toEqual({ clock: 'progress', limitMs: 30 });
    clocks.setBusy(false);
    expect(clocks.expired()).toBeNull();
    clocks.expectProgress();
    clock.advance(30);
    expect(clocks.expired()).toEqual({ clock: 'progress', limitMs: 30 });
  });

  it('progress: a peer that said that it waits, and then nothing, is given up one silence after its word', () => {
    const clock = new FakeClock(0);
    const clocks = new RequestClocks(clock, { ...limits, transferQueueTimeoutMs: 200, kvTransferTimeoutMs: 500 });
    clocks.peerArrived();
    clocks.expectProgress();
    clock.advance(20);
    clocks.signOfLife();
    clock.advance(15);
    expect(clocks.expired()).toBeNull();
    clock.advance(16);
    expect(clocks.expired()).toEqual({ clock: 'progress', limitMs: 30 });
  });

  it('progress: a sign of life counts while not busy, and only until the queue limit after the last progress', () => {
    const clock = new FakeClock(0);
    const clocks = new RequestClocks(clock, limits);
    clocks.peerArrived();
    clocks.expectProgress();
    for (let passed = 0; passed < 80; passed += 20) {
      clock.advance(20);
      clocks.signOfLife();
      expect(clocks.expired()).toBeNull();
    }
    clock.advance(19);
    clocks.signOfLife();
    expect(clocks.expired()).toBeNull();
    clock.advance(1);
    expect(clocks.expired()).toEqual({ clock: 'queue', limitMs: 100 });
    // A slice starts the count again; then silence is judged by the shorter limit.
    clocks.progress();
    expect(clocks.expired()).toBeNull();
    clock.advance(30);
    expect(clocks.expired()).toEqual({ clock: 'progress', limitMs: 30 });
    // Work that is due does not wait, whatever the peer says.
    clocks.progress();
    clocks.setBusy(true);
    clock.advance(20);
    clocks.signOfLife();
    clock.advance(10);
    expect(clocks.expired()).toEqual({ clock: 'progress', limitMs: 30 });
  });

  it('transfer: busy times add up, pauses between slices do not count', () => {
    const clock = new FakeClock(0);
    const clocks = new RequestClocks(clock, { ...limits, noProgressTimeoutMs: 10_000 });
    clocks.peerArrived();
    for (let slice = 0; slice < 2; slice += 1) {
      clocks.setBusy(true);
      clock.advance(29);
      clocks.setBusy(false);
      clock.advance(500);
    }
    clocks.setBusy(true);
    clock.advance(1);
    expect(clocks.expired()).toBeNull();
    clock.advance(1);
    expect(clocks.expired()).toEqual({ clock: 'transfer', limitMs: 60 });
  });
});

describe('AuxBuffer', () => {
  async function buffer(slots: number): Promise<AuxBuffer> {
    const agent = new SimFabric(new FakeClock()).createAgent('a');
    const pool = await agent.allocatePool({ sizeBytes: slots * AUX_SLOT_BYTES });
    return new AuxBuffer(agent, pool.base, slots);
  }

  it('gives back what was packed, and nothing of an earlier owner', async () => {
    const aux = await buffer(1);
    const slot = aux.allocate();
    const content = {
      firstTokens: [1, 0xffff_ffff],
      firstLogProbs: [-0.5, Number.NEGATIVE_INFINITY],
      draftTokens: [3_000_000_000],
      promptLen: 77,
      cachedTokens: 32,
    };
    aux.pack(slot, content);
    expect(aux.unpack(slot)).toEqual(content);
    aux.free(slot);
    expect(() => aux.unpack(slot)).toThrow(StateError);
    expect(aux.allocate()).toBe(slot);
    expect(() => aux.unpack(slot)).toThrow(ProtocolError);
  });

  it('first in, first out; exhaustion and double free are typed', async () => {
    const aux = await buffer(2);
    expect([aux.allocate(), aux.allocate()]).toEqual([0, 1]);
    expect(() => aux.allocate()).toThrow(ResourceError);
    aux.free(1);
    aux.free(0);
    expect(() => aux.free(0)).toThrow(StateError);
    expect([aux.allocate(), aux.allocate()]).toEqual([1, 0]);
  });

  it('refuses more tokens than a slot holds', async () => {
    const aux = await buffer(1);
    const slot = aux.allocate();
    const tokens = Array.from({ length: AUX_MAX_TOKENS }, (_, i) => i);
    const full = { firstTokens: tokens, firstLogProbs: [], draftTokens: [], promptLen: 1, cachedTokens: 0 };
    aux.pack(slot, full);
    expect(aux.unpack(slot).firstTokens).toEqual(tokens);
    expect(() => aux.pack(slot, { ...full, draftTokens: [1] })).toThrow(ResourceError);
    expect(() => aux.pack(slot, { ...full, firstLogProbs: [-1] })).toThrow(ResourceError);
  });

  const small = { firstTokens: [1], firstLogProbs: [-1], draftTokens: [2], promptLen: 3, cachedTokens: 0 };
  it.each([
    ['firstTokens', [Number.NaN]],
    ['firstTokens', [-1]],
    ['firstTokens', [2 ** 32 + 5]],
    ['firstTokens', [3.7]],
    ['firstTokens', [null]],
    ['firstTokens', ['7']],
    ['draftTokens', [7, 2 ** 32]],
    ['draftTokens', [5n]],
    ['firstLogProbs', [Number.NaN]],
    ['firstLogProbs', ['-1']],
    ['promptLen', 2 ** 32],
    ['cachedTokens', -1],
  ])('refuses what would arrive as another number: %s %s', async (field, value) => {
    const aux = await buffer(1);
    const slot = aux.allocate();
    expect(() => aux.pack(slot, { ...small, [field]: value })).toThrow(ArgumentError);
    expect(() => aux.unpack(slot)).toThrow(ProtocolError);
    aux.pack(slot, small);
    expect(aux.unpack(slot)).toEqual(small);
  });
});

describe('BoundedMap', () => {
  it('forgets the oldest, and an entry set again is the youngest', () => {
    const map = new BoundedMap<number, string>(2);
    map.set(1, 'a');
    map.set(2, 'b');
    map.set(1, 'c');
    map.set(3, 'd');
    expect([map.get(1), map.get(2), map.get(3), map.size]).toEqual(['c', undefined, 'd', 2]);
  });
});

describe('clipText', () => {
  it('keeps what fits and cuts the rest at a character', () => {
    expect(clipText('short')).toBe('short');
    const clipped = clipText('ü'.repeat(3000));
    expect(new TextEncoder().encode(clipped).length).toBeLessThanOrEqual(2048);
    expect(clipped).toMatch(/^ü+…$/);
  });
});
