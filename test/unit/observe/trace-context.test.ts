import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { WallTime } from '../../../src/observe/wall-time.js';
import { formatTraceparent, parseTraceparent } from '../../../src/wire/trace-context.js';

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';
const SPAN = '00f067aa0ba902b7';

describe('traceparent', () => {
  it.each([
    [`00-${TRACE}-${SPAN}-01`, true],
    [`00-${TRACE}-${SPAN}-00`, false],
    // Flags that are not defined yet are ignored, and so is what a later version appends.
    [`00-${TRACE}-${SPAN}-fe`, false],
    [`cc-${TRACE}-${SPAN}-03-what-the-future-brings`, true],
  ])('%s', (text, isSampled) => {
    expect(parseTraceparent(text)).toEqual({ traceId: TRACE, spanId: SPAN, isSampled });
  });

  it.each([
    '',
    '00',
    `00-${TRACE}-${SPAN}`,
    `00-${TRACE}-${SPAN}-1`,
    `00-${TRACE}-${SPAN}-01-more`,
    `00-${TRACE}-${SPAN}-01-`,
    `00-${TRACE}-${SPAN}-01\n`,
    ` 00-${TRACE}-${SPAN}-01`,
    `ff-${TRACE}-${SPAN}-01`,
    `0-${TRACE}-${SPAN}-01`,
    `00-${TRACE.toUpperCase()}-${SPAN}-01`,
    `00-${'0'.repeat(32)}-${SPAN}-01`,
    `00-${TRACE}-${'0'.repeat(16)}-01`,
    `00-${TRACE.slice(1)}-${SPAN}-01`,
    `00-${TRACE}-${SPAN}g-01`,
    `00_${TRACE}_${SPAN}_01`,
    `cc-${TRACE}-${SPAN}-01-${'x'.repeat(500)}`,
  ])('%j is dropped', (text) => {
    expect(parseTraceparent(text)).toBeNull();
  });

  it('what is written reads back, and nothing that does not', () => {
    const hex = (length: number) =>
      fc.stringMatching(new RegExp(`^[0-9a-f]{${length}}$`)).filter((text) => !/^0+$/.test(text));
    fc.assert(
      fc.property(hex(32), hex(16), fc.boolean(), (traceId, spanId, isSampled) => {
        const text = formatTraceparent({ traceId, spanId, isSampled });
        expect(text).toHaveLength(55);
        expect(parseTraceparent(text)).toEqual({ traceId, spanId, isSampled });
      }),
    );
    fc.assert(
      fc.property(fc.string({ maxLength: 80 }), (text) => {
        const parsed = parseTraceparent(text);
        if (parsed !== null) expect(text.includes(parsed.traceId)).toBe(true);
      }),
    );
  });
});

describe('dates of spans', () => {
  it('keep one offset to the clock, and follow the wall clock when it is stepped', () => {
    let unixMs = 1_700_000_000_000;
    const wall = new WallTime(() => unixMs);
    wall.sync(1000);
    expect(wall.of(1000.25)).toEqual([1_700_000_000, 250_000]);
    // A few ms of jitter would put children outside their parents.
    unixMs += 15;
    wall.sync(1010);
    expect(wall.of(1010)).toEqual([1_700_000_000, 10_000_000]);
    unixMs += 3_600_000;
    wall.sync(1010);
    expect(wall.of(1010)).toEqual([1_700_003_600, 15_000_000]);
    expect(wall.of(1984.9999999)[1]).toBeLessThan(1e9);
  });
});
