import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type BlockRun, HOLE, pairRuns, pairSubBlocks, runEnd } from '../../src/geometry/index.js';
import { ownedBlocks } from '../../src/mapping/index.js';

const run = fc
  .record({
    begin: fc.nat({ max: 12 }),
    stride: fc.constantFrom(undefined, 1, 2, 3, 5),
    slots: fc.array(
      fc.oneof({ weight: 4, arbitrary: fc.nat({ max: 99 }) }, { weight: 1, arbitrary: fc.constant(HOLE) }),
      {
        maxLength: 14,
      },
    ),
  })
  .map(({ begin, stride, slots }): BlockRun => {
    const plain = { begin, slots: Int32Array.from(slots) };
    return stride === undefined ? plain : { ...plain, stride };
  });

/** Ordinal -> slot, as the run is defined. */
function bySmallBlock({ begin, slots, stride = 1 }: BlockRun, parts: number): Map<number, number> {
  const found = new Map<number, number>();
  slots.forEach((slot, index) => {
    for (let part = 0; part < parts; part++)
      if (slot !== HOLE) found.set((begin + index * stride) * parts + part, slot);
  });
  return found;
}

describe('pairing', () => {
  it('smaller blocks meet by ordinal, whatever the strides and sizes', () => {
    fc.assert(
      fc.property(run, run, fc.constantFrom(1, 2, 4), fc.boolean(), (source, destination, ratio, larger) => {
        const [sourceParts, destinationParts] = larger ? [ratio, 1] : [1, ratio];
        const [from, to] = [bySmallBlock(source, sourceParts), bySmallBlock(destination, destinationParts)];
        const expected = Array.from({ length: ratio }, (): number[] => []);
        for (const ordinal of [...from.keys()].sort((a, b) => a - b)) {
          if (to.has(ordinal)) expected[ordinal % ratio]?.push(from.get(ordinal) as number, to.get(ordinal) as number);
        }
        const pairs = pairSubBlocks(source, sourceParts, destination, destinationParts);
        expect(pairs.map((list) => [...list])).toEqual(expected);
        if (ratio === 1) expect([...pairRuns(source, destination)]).toEqual(expected[0]);
      }),
      { numRuns: 3000 },
    );
  });

  it('refuses what is no run', () => {
    const good = { begin: 0, slots: Int32Array.of(1, 2) };
    for (const stride of [0, -1, 0.5, Number.NaN]) {
      expect(() => pairRuns({ ...good, stride }, good)).toThrow(/source.stride/);
      expect(() => pairSubBlocks(good, 2, { ...good, stride }, 1)).toThrow(/destination.stride/);
    }
    expect(() => pairSubBlocks(good, 2, good, 2)).toThrow(/one side must have the smaller blocks/);
    expect(() => pairSubBlocks(good, 0, good, 1)).toThrow(RangeError);
    expect(() => pairSubBlocks({ begin: 0, slots: Int32Array.of(-2) }, 2, good, 1)).toThrow(/source slot of ordinal 0/);
  });

  it('runEnd is one past the last ordinal', () => {
    expect(runEnd({ begin: 3, slots: new Int32Array(0), stride: 4 })).toBe(3);
    expect(runEnd({ begin: 3, slots: new Int32Array(3), stride: 4 })).toBe(12);
    expect(runEnd({ begin: 3, slots: new Int32Array(3) })).toBe(6);
  });

  it('context parallel ranks own every block of a range once', () => {
    fc.assert(
      fc.property(fc.nat({ max: 40 }), fc.nat({ max: 40 }), fc.integer({ min: 1, max: 9 }), (begin, length, cpSize) => {
        const ordinals: number[] = [];
        for (let cpRank = 0; cpRank < cpSize; cpRank++) {
          const owned = ownedBlocks(begin, begin + length, cpRank, cpSize);
          for (let own = owned.begin; own < owned.end; own++) ordinals.push(own * cpSize + cpRank);
        }
        expect(ordinals.sort((a, b) => a - b)).toEqual(Array.from({ length }, (_, index) => begin + index));
      }),
    );
  });
});
