import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { PARTS, PartedMap, partOf } from '../../src/parted-map.js';

const numbers = fc.oneof(fc.nat({ max: 20 }), fc.maxSafeNat(), fc.integer());
const bigints = fc.oneof(fc.bigInt({ min: 0n, max: 20n }), fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }));
const step = <Key>(key: fc.Arbitrary<Key>) => fc.record({ key, what: fc.constantFrom('set', 'set', 'delete') });

function expectSame<Key extends number | bigint>(parted: PartedMap<Key, number>, map: Map<Key, number>): void {
  expect(parted.size).toBe(map.size);
  expect(new Map(parted)).toEqual(map);
  expect([...parted].length).toBe(map.size);
  expect([...parted.values()].sort((a, b) => a - b)).toEqual([...map.values()].sort((a, b) => a - b));
}

describe('PartedMap', () => {
  it.each([
    ['numbers', numbers],
    ['bigints', bigints],
  ] as const)('holds what a map holds, by %s', (_name, key) => {
    fc.assert(
      fc.property(fc.array(step<number | bigint>(key), { maxLength: 200 }), (steps) => {
        const [parted, map] = [new PartedMap<number | bigint, number>(), new Map<number | bigint, number>()];
        for (const [value, { key, what }] of steps.entries()) {
          expect(parted.get(key)).toBe(map.get(key));
          expect(parted.has(key)).toBe(map.has(key));
          if (what === 'delete') expect(parted.delete(key)).toBe(map.delete(key));
          else {
            parted.set(key, value);
            map.set(key, value);
          }
        }
        expectSame(parted, map);
      }),
    );
  });

  it('meets nothing twice, and nothing that went meanwhile', () => {
    const parted = new PartedMap<number, number>();
    for (let key = 0; key < 500; key++) parted.set(key, key);
    const met: number[] = [];
    for (const value of parted.values()) {
      expect(parted.has(value)).toBe(true);
      met.push(value);
      parted.delete((value + 1) % 500);
    }
    expect(new Set(met).size).toBe(met.length);
    expect(met.length).toBeLessThan(500);
    expect(parted.size).toBeGreaterThan(0);
  });

  it.each([
    ['ids that count up', (index: number) => index],
    ['ids of a time and a number', (index: number) => (BigInt(index) << 22n) + 2n ** 60n],
    ['ids of one millisecond', (index: number) => BigInt(index) + 2n ** 60n],
    ['tickets', (index: number) => BigInt.asUintN(64, BigInt(index) * 0x9e3779b97f4a7c15n)],
  ])('has parts of like size with %s, which are not full together', (_name, keyOf) => {
    const sizes = new Array<number>(PARTS).fill(0);
    /** Part by part: how many entries there were in all when it had its 128th. */
    const fullAt: number[] = [];
    for (let index = 0; index < 10_000; index++) {
      const part = partOf(keyOf(index));
      sizes[part] = (sizes[part] as number) + 1;
      if (sizes[part] === 128) fullAt.push(index);
    }
    const mean = 10_000 / PARTS;
    expect(Math.max(...sizes)).toBeLessThan(1.5 * mean);
    expect(Math.min(...sizes)).toBeGreaterThan(0.5 * mean);
    fullAt.sort((a, b) => a - b);
    // No 100 entries that come together fill a quarter of the parts.
    for (const [index, at] of fullAt.entries())
      expect((fullAt[index + PARTS / 4] ?? Infinity) - at).toBeGreaterThan(100);
  });
});
