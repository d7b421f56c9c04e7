import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type RequestCase, type RequestResult, runRequest } from './request-world.js';

const warm = fc.option(fc.record({ promptLen: fc.integer({ min: 1, max: 100 }), shared: fc.nat({ max: 100 }) }));
const server = fc.record({ reserving: fc.boolean(), warm });
const sizes = fc.constantFrom<readonly [number, number]>(
  [4, 4],
  [4, 4],
  [3, 3],
  [8, 4],
  [4, 8],
  [2, 8],
  [1, 4],
  [16, 16],
);
const ranks = fc.constantFrom<readonly [number, number]>(
  [1, 1],
  [1, 1],
  [2, 1],
  [1, 2],
  [4, 1],
  [1, 4],
  [3, 1],
  [1, 3],
);

const request: fc.Arbitrary<RequestCase> = fc
  .record({
    windowSize: fc.integer({ min: 1, max: 110 }),
    sinkTokens: fc.oneof(fc.constant(0), fc.integer({ min: 1, max: 12 }), fc.integer({ min: 1, max: 120 })),
    hybrid: fc.constantFrom(false, false, false, true),
    promptLen: fc.integer({ min: 1, max: 100 }),
    cuts: fc.uniqueArray(fc.integer({ min: 1, max: 99 }), { maxLength: 8 }),
    pipelined: fc.constantFrom(true, true, true, false),
    earlyPrefix: fc.boolean(),
    sizes,
    ranks,
    context: server,
    generation: server,
    knowsSender: fc.boolean(),
    more: fc.integer({ min: 1, max: 20 }),
  })
  .map(({ sizes: [from, to], ranks: [cpFrom, cpTo], context, generation, knowsSender, more, ...rest }) => {
    const { promptLen } = rest;
    // A context parallel rank without a block has no request to hold its state for.
    const hybrid = rest.hybrid && Math.ceil(promptLen / from) >= cpFrom && Math.ceil(promptLen / to) >= cpTo;
    return {
      ...rest,
      hybrid,
      cuts: rest.cuts.sort((x, y) => x - y),
      context: { ...context, tokensPerBlock: from, cpSize: cpFrom },
      generation: { ...generation, tokensPerBlock: to, cpSize: cpTo },
      senderTokensPerBlock: knowsSender ? from : 1,
      secondTurn: Math.max(120, promptLen + more),
    };
  });

describe('a prompt through real cache managers', () => {
  it('arrives whole: sinks, windows, hits on both sides, early prefix, context parallel, unequal blocks', {
    timeout: 120_000,
  }, () => {
    const seen = { bytes: 0, contextHit: 0, generationHit: 0, secondHit: 0, gaps: 0 };
    fc.assert(
      fc.property(request, fc.nat(), (world, seed) => {
        const result: RequestResult = runRequest(world, seed);
        for (const name of Object.keys(seen) as (keyof RequestResult)[]) if (result[name] > 0) seen[name]++;
      }),
      { numRuns: 300 },
    );
    for (const [name, count] of Object.entries(seen)) expect(count, name).toBeGreaterThan(10);
  });
});
