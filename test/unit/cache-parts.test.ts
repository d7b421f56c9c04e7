import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { BlockTable } from '../../src/cache/block-table.js';
import { ContentIndex } from '../../src/cache/content-index.js';
import { FoundBlocks } from '../../src/cache/found-blocks.js';
import { GroupPages } from '../../src/cache/group-pages.js';
import { HostTier } from '../../src/cache/host-tier.js';
import type { PageMove } from '../../src/cache/index.js';
import { MoveQueue } from '../../src/cache/move-queue.js';
import { PartialIndex } from '../../src/cache/partial-index.js';
import { SeededRandom } from '../../src/cache/seeded-random.js';
import type { SlotsAction } from '../../src/cache/slot-list.js';
import { InternalError } from '../../src/errors.js';

/** What an action is given. */
function taken(give: (act: SlotsAction) => void): number[] {
  const all: number[] = [];
  give((slots, begin, end) => all.push(...slots.slice(begin, end)));
  return all;
}

describe('BlockTable', () => {
  it('is what a sparse list of slots would be', () => {
    const action = fc.oneof(
      fc.record({ kind: fc.constantFrom('push', 'append'), by: fc.integer({ min: 1, max: 40 }) }),
      fc.record({ kind: fc.constant('advance' as const), by: fc.nat({ max: 30 }) }),
    );
    fc.assert(
      fc.property(fc.nat({ max: 4 }), fc.array(action, { maxLength: 12 }), fc.nat(), (sinks, actions, where) => {
        const table = new BlockTable(sinks);
        const naive = new Map<number, number>();
        let end = 0;
        for (const { kind, by } of actions) {
          if (kind !== 'advance') {
            // Those that are sinks come by themselves.
            const count = kind === 'append' && end < sinks ? Math.min(by, sinks - end) : by;
            const added = Int32Array.from({ length: count }, (_, offset) => 1000 + end + offset);
            if (kind === 'append') table.append(added);
            else for (const slot of added) table.push(slot);
            for (const slot of added) naive.set(end++, slot);
          } else if (end >= sinks) {
            const begin = table.begin + by;
            table.advanceTo(begin);
            for (const ordinal of [...naive.keys()]) if (ordinal >= sinks && ordinal < begin) naive.delete(ordinal);
            end = Math.max(end, begin);
          }
          expect(table.end).toBe(end);
          for (let ordinal = 0; ordinal <= end; ordinal++)
            expect(table.slotAt(ordinal)).toBe(naive.get(ordinal) ?? null);
          const byOrdinal = [...naive].sort(([x], [y]) => x - y);
          const slotsOf = (isTaken: (ordinal: number) => boolean): number[] =>
            byOrdinal.flatMap(([ordinal, slot]) => (isTaken(ordinal) ? [slot] : []));
          expect(taken((act) => table.withSinks(act))).toEqual(slotsOf((ordinal) => ordinal < sinks));
          expect(taken((act) => table.withRun(act))).toEqual(slotsOf((ordinal) => ordinal >= sinks));
          expect(table.count).toBe(naive.size);
          const [low, high] = [where % 50, (where >> 3) % 90];
          expect(taken((act) => table.withSinks(act, high))).toEqual(
            slotsOf((ordinal) => ordinal < Math.min(sinks, high)),
          );
          expect(taken((act) => table.withRun(act, low, high))).toEqual(
            slotsOf((ordinal) => ordinal >= sinks && ordinal >= low && ordinal < high),
          );
          const to = where % (end + 1);
          const from = (where >> 5) % (to + 1);
          let begin = to;
          while (begin > from && naive.has(begin - 1)) begin--;
          const run = table.cut(from, to);
          expect([run.begin, ...run.slots]).toEqual([
            begin,
            ...Array.from({ length: to - begin }, (_, offset) => naive.get(begin + offset)),
          ]);
        }
      }),
      { numRuns: 100 },
    );
  });
});

describe('ContentIndex', () => {
  it('is a map, however large, and however names fall on its parts', () => {
    // Many parts; one in two names ends alike, and some are shorter than what is looked at.
    const nameOf = (number: number): string => (number % 2 === 0 ? `${number}:same` : number.toString(36));
    const action = fc.record({ adds: fc.boolean(), number: fc.nat({ max: 300 }), slot: fc.nat({ max: 99_999 }) });
    fc.assert(
      fc.property(fc.constantFrom(1, 100_000), fc.array(action, { maxLength: 200 }), (capacity, actions) => {
        const index = new ContentIndex(capacity);
        const naive = new Map<string, number>();
        for (const { adds, number, slot } of actions) {
          const name = nameOf(number);
          if (adds) {
            expect(index.add(name, slot)).toBe(!naive.has(name));
            if (!naive.has(name)) naive.set(name, slot);
          } else {
            index.remove(name);
            naive.delete(name);
          }
          expect([index.find(name), index.size]).toEqual([naive.get(name) ?? null, naive.size]);
        }
        for (let number = 0; number <= 300; number++)
          expect(index.find(nameOf(number))).toBe(naive.get(nameOf(number)) ?? null);
      }),
      { numRuns: 50 },
    );
  });
});

describe('PartialIndex', () => {
  const tokens = (...values: number[]) => Uint32Array.from(values);
  const anything = () => true;

  it('finds the longest among thousands that begin alike, and the best usable one beside it', () => {
    const index = new PartialIndex();
    for (let value = 0; value < 4000; value++) {
      index.add(`h${value}`, 'root', tokens(1, Math.floor(value / 100), (value * 7919) % 4000, value));
    }
    for (const value of [0, 1234, 3999]) {
      const query = tokens(1, Math.floor(value / 100), (value * 7919) % 4000, 9999);
      expect(index.longest('root', query, anything)).toEqual({ hash: `h${value}`, tokenCount: 3 });
      const other = index.longest('root', query, (hash) => hash !== `h${value}`);
      expect(other?.tokenCount).toBe(2);
    }
    expect(index.longest('elsewhere', tokens(1, 2), anything)).toBeNull();
    expect(index.longest('root', tokens(2), anything)).toBeNull();
    expect(index.longest('root', tokens(), anything)).toBeNull();
  });

  it('forgets a block when the last group that held it has dropped it', () => {
    const index = new PartialIndex();
    index.add('a', '', tokens(1, 2));
    index.add('a', '', tokens(1, 2));
    index.add('b', '', tokens(1, 3));
    index.remove('a');
    expect(index.longest('', tokens(1, 2), anything)).toEqual({ hash: 'a', tokenCount: 2 });
    index.remove('a');
    expect(index.longest('', tokens(1, 2), anything)).toEqual({ hash: 'b', tokenCount: 1 });
    index.remove('a');
    index.remove('b');
    expect(index.longest('', tokens(1, 2), anything)).toBeNull();
  });
});

describe('HostTier', () => {
  it('gives up the longest unused content, never what is held', () => {
    const host = new HostTier(2);
    expect(host.store('a')).toEqual({ slot: 0, dropped: null });
    expect(host.store('b')).toEqual({ slot: 1, dropped: null });
    host.hold(0);
    expect(host.store('c')).toEqual({ slot: 1, dropped: 'b' });
    expect(host.available).toBe(1);
    host.hold(1);
    expect(host.available).toBe(0);
    expect(host.store('d')).toBeNull();
    host.unhold(0);
    expect(host.store('d')).toEqual({ slot: 0, dropped: 'a' });
    expect([host.find('a'), host.find('c'), host.find('d'), host.size]).toEqual([null, 1, 0, 2]);
    expect([host.holds(0, 'd'), host.holds(0, 'a'), host.holds(1, 'c')]).toEqual([true, false, true]);
    host.unhold(1);
    host.touch(0);
    expect(host.store('e')).toEqual({ slot: 1, dropped: 'c' });
    host.forget(0);
    expect(() => host.hold(0)).toThrow(InternalError);
  });

  it('takes a slot back whose content was wrong', () => {
    const host = new HostTier(1);
    host.store('a');
    expect(host.forget(0)).toBe('a');
    expect(host.forget(0)).toBeNull();
    expect(host.size).toBe(0);
    expect(host.store('b')).toEqual({ slot: 0, dropped: null });
  });
});

describe('MoveQueue', () => {
  const move = (slot: number): PageMove => ({ kind: 'offload', group: 0, slot, hostSlot: 0 });

  it('hands over one batch a call, in order, and nothing when nothing was collected', async () => {
    const handed: (readonly PageMove[])[] = [];
    const mover = {
      move: (moves: readonly PageMove[]) => {
        handed.push(moves);
        return null;
      },
    };
    const queue = new MoveQueue(mover, () => {});
    queue.flush();
    expect([queue.add(move(1)), queue.add(move(2))]).toEqual([1, 1]);
    expect(queue.isOver(1)).toBe(false);
    queue.flush();
    expect(queue.add(move(3))).toBe(2);
    queue.flush();
    expect(handed).toEqual([[move(1), move(2)], [move(3)]]);
    expect(queue.isOver(2)).toBe(true);
    await queue.settled();
  });

  it('a batch that is done at once still comes after one that was not known to be', async () => {
    let settle = (): void => {};
    const answers = [
      {
        event: null,
        done: new Promise<void>((resolve) => {
          settle = resolve;
        }),
      },
      null,
    ];
    const queue = new MoveQueue({ move: () => answers.shift() ?? null }, () => {});
    for (const slot of [1, 2]) {
      queue.add(move(slot));
      queue.flush();
    }
    expect([queue.isOver(1), queue.isOver(2)]).toEqual([false, false]);
    settle();
    await queue.settled();
    expect([queue.isOver(1), queue.isOver(2)]).toEqual([true, true]);
  });
});

describe('GroupPages', () => {
  function pages(slotCount: number, hostSlotCount: number) {
    const dropped: string[] = [];
    const moves: PageMove[] = [];
    const mover = {
      move: (batch: readonly PageMove[]) => {
        moves.push(...batch);
        return null;
      },
    };
    const queue = new MoveQueue(mover, () => {});
    const group = {
      kind: 'attention',
      windowSize: null,
      tokensPerBlock: 4,
      layers: [0],
      slotCount,
      hostSlotCount,
    } as const;
    const made = new GroupPages(group, 0, new SeededRandom(1), queue, (hash) => dropped.push(hash));
    const keep = (hash: string): number => {
      const slot = made.slots.allocate();
      made.publish(slot, hash);
      made.slots.release(slot);
      return slot;
    };
    return { made, dropped, moves, keep, queue };
  }

  it('says once when content has left device and host, and not before', () => {
    const { made, dropped, keep } = pages(1, 2);
    for (const hash of ['a', 'b', 'c']) keep(hash);
    expect(dropped).toEqual([]);
    expect(['a', 'b', 'c', 'd'].map((hash) => made.place(hash))).toEqual([
      'offloaded',
      'offloaded',
      'device',
      'absent',
    ]);
    keep('d');
    expect(dropped).toEqual(['a']);
  });

  it('content that was computed again while the host had it is known, and stays when the host gives it up', () => {
    const { made, dropped, keep } = pages(2, 1);
    keep('a');
    keep('b');
    const slot = made.slots.allocate();
    expect(made.place('a')).toBe('offloaded');
    expect(made.publish(slot, 'a')).toBe(false);
    keep('c');
    expect([made.place('a'), made.place('b'), dropped]).toEqual(['device', 'offloaded', []]);
    made.slots.release(slot);
  });

  it('without host pages every eviction drops', () => {
    const { dropped, keep, moves, queue } = pages(1, 0);
    for (const hash of ['a', 'b', 'c']) keep(hash);
    queue.flush();
    expect(dropped).toEqual(['a', 'b']);
    expect(moves).toEqual([]);
  });

  it('finds nothing on the host any more where other content took its place since it was looked for', () => {
    const { made, keep } = pages(1, 1);
    keep('a');
    keep('b');
    const found = new FoundBlocks(made);
    const hashes = ['a'];
    expect(found.lookAhead(hashes, 1, 1)).toBe(1);
    expect(found.hasOffloaded).toBe(true);
    keep('c');
    expect([made.place('a'), made.place('b')]).toEqual(['absent', 'offloaded']);
    expect(found.lookUp(hashes, 1)).toBe(0);
    expect(found.hasOffloaded).toBe(false);
  });

  it('finds nothing in a slot that a block was moved to and has left since', () => {
    const { made, keep } = pages(2, 2);
    const found = new FoundBlocks(made);
    // What is in this slot has left it once: the number that is kept for the first block of a prompt.
    for (const hash of ['w', 'x', 'y']) keep(hash);
    const reused = made.slots.find('y') as number;
    expect([made.slots.generationOf(reused), found.lookUp(['y'], 1)]).toEqual([1, 1]);
    const other = 1 - reused;
    const hashes = ['w'];
    expect([made.place('w'), found.lookAhead(hashes, 1, 1)]).toEqual(['offloaded', 1]);
    made.slots.share(reused);
    const { host } = made;
    const hostSlot = host?.find('w') as number;
    host?.hold(hostSlot);
    const slot = made.fetch(host as HostTier, hostSlot, 'w');
    expect(slot).toBe(other);
    found.moved(hashes, 0, slot);
    expect(found.hasOffloaded).toBe(false);
    made.slots.release(slot);
    const generation = made.slots.generationOf(slot);
    keep('z');
    expect([made.slots.find('z'), made.slots.generationOf(slot)]).toEqual([slot, generation + 1]);
    expect([found.lookUp(hashes, 1), found.hasOffloaded]).toEqual([1, true]);
  });

  it('has another version of its content whenever some came or went, and only then', () => {
    const { made, keep } = pages(1, 1);
    const versions = [made.contentVersion];
    const isNew = (): boolean => {
      versions.push(made.contentVersion);
      return versions.at(-1) !== versions.at(-2);
    };
    const slot = keep('a');
    expect(isNew()).toBe(true);
    made.slots.share(slot);
    made.slots.pin(slot);
    made.slots.release(slot);
    made.slots.unpinAll(Int32Array.of(slot));
    expect([isNew(), made.slots.find('a')]).toEqual([false, slot]);
    // It goes to the host, and comes to nothing there.
    made.slots.release(made.slots.allocate());
    expect([isNew(), made.place('a')]).toEqual([true, 'offloaded']);
    const hostSlot = made.host?.find('a') as number;
    made.host?.hold(hostSlot);
    made.host?.unhold(hostSlot);
    expect(isNew()).toBe(false);
    made.forget(hostSlot);
    expect([isNew(), made.place('a')]).toEqual([true, 'absent']);
    keep('b');
    expect(isNew()).toBe(true);
    made.withdraw(slot);
    expect([isNew(), made.place('b')]).toEqual([true, 'absent']);
  });

  it('counts owners and pins apart, and who gives back what it does not hold is told', () => {
    const { made, keep } = pages(2, 0);
    const { slots } = made;
    const both = Int32Array.of(keep('a'), keep('b'));
    slots.shareAll(both);
    slots.shareAll(both);
    slots.pinAll(both);
    expect(slots.stats()).toEqual({ slotCount: 2, free: 0, reusable: 0, pinned: 2 });
    slots.releaseAll(both);
    slots.releaseAll(both);
    expect(() => slots.releaseAll(both)).toThrow(InternalError);
    expect([slots.available, both.some((slot) => slots.isIdle(slot))]).toEqual([0, false]);
    slots.unpinAll(both);
    expect(() => slots.unpinAll(both)).toThrow(InternalError);
    // The last one was given up first.
    expect([slots.allocate(), slots.allocate()]).toEqual([both[1], both[0]]);
    expect([slots.find('a'), slots.find('b'), slots.available]).toEqual([null, null, 0]);
  });

  it('drops what is withdrawn or forgotten only where it is nowhere else', () => {
    const { made, dropped, keep } = pages(2, 2);
    const slot = keep('a');
    keep('b');
    keep('c');
    keep('d');
    expect(made.place('a')).toBe('offloaded');
    made.forget(made.host?.find('a') as number);
    expect(dropped).toEqual(['a']);
    const again = made.slots.allocate();
    made.publish(again, 'b');
    made.slots.release(again);
    made.withdraw(again);
    expect([made.place('b'), dropped]).toEqual(['offloaded', ['a']]);
    made.withdraw(slot);
    expect(made.slots.stats()).toMatchObject({ slotCount: 2, pinned: 0 });
  });
});
