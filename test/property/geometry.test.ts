import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  earlyPrefixSlice,
  HOLE,
  pairRuns,
  prefillSlice,
  projectBlocksToGlobalChunk,
  sourceRange,
  staleBlockEnd,
} from '../../src/geometry/index.js';

/** A prompt, cut into chunks behind a reuse hit. */
const prefill = fc
  .record({
    tokensPerBlock: fc.integer({ min: 1, max: 20 }),
    promptLen: fc.integer({ min: 1, max: 160 }),
    hit: fc.nat({ max: 159 }),
    cuts: fc.uniqueArray(fc.nat({ max: 159 }), { maxLength: 12 }),
    windowSize: fc.option(fc.integer({ min: 1, max: 200 })),
    pipelined: fc.boolean(),
  })
  .map(({ hit, cuts, ...rest }) => {
    const prepopulatedLen = hit % rest.promptLen;
    const ends = cuts.filter((cut) => cut > prepopulatedLen && cut < rest.promptLen).sort((x, y) => x - y);
    const bounds = [prepopulatedLen, ...ends, rest.promptLen];
    const chunks = bounds.slice(1).map((end, index) => [bounds[index] as number, end] as const);
    return { ...rest, prepopulatedLen, chunks };
  });

/** Token by token: a block leaves at the first slice after its last token was written, and never again. */
class TokenOracle {
  readonly #written: boolean[];
  readonly #sent = new Set<number>();
  readonly #tokensPerBlock: number;

  constructor(promptLen: number, tokensPerBlock: number) {
    this.#written = new Array(promptLen).fill(false);
    this.#tokensPerBlock = tokensPerBlock;
  }

  write(begin: number, end: number): void {
    for (let token = begin; token < end; token++) this.#written[token] = true;
  }

  takeReady(): number[] {
    const unfinished = new Set<number>();
    const blocks = new Set<number>();
    this.#written.forEach((done, token) => {
      const block = (token - (token % this.#tokensPerBlock)) / this.#tokensPerBlock;
      blocks.add(block);
      if (!done) unfinished.add(block);
    });
    const ready = [...blocks].filter((block) => !unfinished.has(block) && !this.#sent.has(block));
    for (const block of ready) this.#sent.add(block);
    return ready;
  }
}

function blocksOf(range: { beginBlock: number; endBlock: number } | null): number[] {
  const blocks: number[] = [];
  for (let block = range?.beginBlock ?? 0; block < (range?.endBlock ?? 0); block++) blocks.push(block);
  return blocks;
}

describe('slices', () => {
  it('send every block once, as soon as its tokens are computed, and always a last slice', () => {
    fc.assert(
      fc.property(prefill, ({ tokensPerBlock, promptLen, prepopulatedLen, chunks, pipelined }) => {
        const oracle = new TokenOracle(promptLen, tokensPerBlock);
        oracle.write(0, prepopulatedLen);
        const early = earlyPrefixSlice({
          prepopulatedLen,
          tokensPerBlock,
          isFirstChunk: true,
          cancelled: false,
          pipelined,
        });
        if (pipelined) expect(blocksOf(early)).toEqual(oracle.takeReady());
        else expect(early).toBeNull();

        const all = blocksOf(early);
        chunks.forEach(([chunkStart, chunkEnd], index) => {
          oracle.write(chunkStart, chunkEnd);
          const slice = prefillSlice({
            chunkStart,
            chunkEnd,
            promptLen,
            prepopulatedLen,
            remaining: promptLen - chunkEnd,
            tokensPerBlock,
            prefixSent: early !== null,
          });
          expect(blocksOf(slice)).toEqual(oracle.takeReady());
          const isLast = index === chunks.length - 1;
          if (isLast) expect(slice?.isLast).toBe(true);
          else expect(slice === null || (!slice.isLast && slice.beginBlock < slice.endBlock)).toBe(true);
          all.push(...blocksOf(slice));
        });
        expect(all).toEqual(Array.from({ length: Math.ceil(promptLen / tokensPerBlock) }, (_, block) => block));
      }),
      { numRuns: 2000 },
    );
  });
});

describe('windows', () => {
  it('a block is asked for iff the next token still sees one of its positions', () => {
    fc.assert(
      fc.property(prefill, ({ tokensPerBlock, promptLen, windowSize, chunks, prepopulatedLen }) => {
        // The next token sits at position promptLen and sees windowSize positions, itself included.
        const seen = new Set<number>();
        for (let position = 0; position <= promptLen; position++) {
          if (windowSize === null || promptLen - position < windowSize) {
            seen.add((position - (position % tokensPerBlock)) / tokensPerBlock);
          }
        }
        const asked: number[] = [];
        for (const [chunkStart, chunkEnd] of chunks) {
          const slice = prefillSlice({
            chunkStart,
            chunkEnd,
            promptLen,
            prepopulatedLen,
            remaining: promptLen - chunkEnd,
            tokensPerBlock,
            prefixSent: false,
          });
          const range = slice && sourceRange(slice, { kind: 'attention', windowSize }, promptLen, tokensPerBlock);
          if (range !== null) {
            expect(range.begin).toBeLessThan(range.end);
            asked.push(...blocksOf({ beginBlock: range.begin, endBlock: range.end }));
          }
        }
        const blockCount = Math.ceil(promptLen / tokensPerBlock);
        expect(asked).toEqual([...seen].filter((block) => block < blockCount).sort((x, y) => x - y));
        expect(staleBlockEnd(promptLen, windowSize, tokensPerBlock)).toBe(Math.min(...seen));
      }),
      { numRuns: 2000 },
    );
  });
});

describe('runs', () => {
  const run = fc.record({
    begin: fc.nat({ max: 20 }),
    slots: fc.array(fc.oneof(fc.constant(HOLE), fc.nat({ max: 500 })), { maxLength: 20 }),
  });

  it('pair exactly the ordinals that hold a slot on both sides', () => {
    fc.assert(
      fc.property(run, run, (source, destination) => {
        const expected: number[] = [];
        for (let ordinal = 0; ordinal < 60; ordinal++) {
          const from = source.slots[ordinal - source.begin];
          const to = destination.slots[ordinal - destination.begin];
          if (from !== undefined && to !== undefined && from !== HOLE && to !== HOLE) expected.push(from, to);
        }
        const pairs = pairRuns(
          { begin: source.begin, slots: Int32Array.from(source.slots) },
          { begin: destination.begin, slots: Int32Array.from(destination.slots) },
        );
        expect([...pairs]).toEqual(expected);
      }),
      { numRuns: 1000 },
    );
  });

  it('projecting a suffix list agrees with a map from ordinal to id', () => {
    const bounds = fc.record({
      count: fc.nat({ max: 30 }),
      end: fc.nat({ max: 40 }),
      at: fc.nat({ max: 50 }),
      n: fc.nat(30),
    });
    fc.assert(
      fc.property(bounds, ({ count, end, at, n }) => {
        const ids = Array.from({ length: count }, (_, index) => 1000 + index);
        const byOrdinal = new Map<number, number>();
        ids.forEach((id, index) => {
          byOrdinal.set(Math.max(0, end - count) + index, id);
        });
        const expected: number[] = [];
        for (let ordinal = at; ordinal < at + n && ordinal < end; ordinal++) {
          const id = byOrdinal.get(ordinal);
          if (id !== undefined) expected.push(id);
        }
        expect([...projectBlocksToGlobalChunk(ids, end, at, n)]).toEqual(expected);
      }),
      { numRuns: 1000 },
    );
  });
});
