import { describe, expect, it } from 'vitest';
import { SharedBoundedMap } from '../../../src/session/shared-bounded-map.js';

describe('SharedBoundedMap', () => {
  it('one owner alone may have all of it, and forgets its own oldest', () => {
    const map = new SharedBoundedMap<number, string>(80);
    map.set(-1, 'kept', 'quiet');
    for (let key = 0; key < 1000; key += 1) map.set(key, `v${key}`, 'loud');
    expect(map.size).toBe(80);
    expect([map.get(-1), map.get(920), map.get(921), map.get(999)]).toEqual(['kept', undefined, 'v921', 'v999']);
  });

  it('when it is full, the oldest of the one that holds most goes, whoever comes', () => {
    const map = new SharedBoundedMap<string, number>(80);
    for (let i = 0; i < 60; i += 1) map.set(`loud ${i}`, i, 'loud');
    for (let i = 0; i < 20; i += 1) map.set(`mid ${i}`, i, 'mid');
    for (let i = 0; i < 30; i += 1) map.set(`new ${i}`, i, 'new');
    expect(map.size).toBe(80);
    const held = (name: string, count: number) =>
      Array.from({ length: count }, (_, i) => map.get(`${name} ${i}`)).filter((value) => value !== undefined).length;
    expect([held('loud', 60), held('mid', 20), held('new', 30)]).toEqual([30, 20, 30]);
    expect([map.get('loud 29'), map.get('loud 30')]).toEqual([undefined, 30]);
  });

  it('an entry that is set again is the newest, and its first owner’s', () => {
    const map = new SharedBoundedMap<number, string>(3);
    map.set(1, 'one', 'a');
    map.set(2, 'two', 'a');
    map.set(1, 'one again', 'b');
    map.set(3, 'three', 'b');
    map.set(4, 'four', 'b');
    expect([1, 2, 3, 4].map((key) => map.get(key))).toEqual(['one again', undefined, 'three', 'four']);
    expect(map.delete(1)).toBe(true);
    expect(map.delete(1)).toBe(false);
    expect(map.size).toBe(2);
  });
});
