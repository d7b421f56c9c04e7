import { describe, expect, it } from 'vitest';
import { presetNamed } from '../../../../src/cli/bench/presets/index.js';
import { promptTokens } from '../../../../src/cli/bench/prompt-source.js';
import type { TraceRequest } from '../../../../src/cli/bench/request-trace.js';
import { shapesOf } from '../../../../src/cli/bench/shape/shapes-of.js';
import { scaleTrace } from '../../../../src/cli/bench/trace/scaled-trace.js';
import { checkTraceOptions, TRACE_OPTIONS, type TraceOptions } from '../../../../src/cli/bench/trace/trace-options.js';
import { planGroups } from '../../../../src/cli/bench/trace/trace-plan.js';
import { readOptions } from '../../../../src/cli/options.js';
import { UsageError } from '../../../../src/cli/usage-error.js';

function optionsOf(...args: readonly string[]): TraceOptions {
  const options = readOptions(TRACE_OPTIONS, args);
  checkTraceOptions(options, args);
  return options;
}

const TRACE: readonly TraceRequest[] = [
  { timestampMs: 100, inputTokens: 1400, outputTokens: 33, hashIds: [0, 1, 2] },
  { timestampMs: 100, inputTokens: 1300, outputTokens: 0, hashIds: [0, 1, 9] },
  { timestampMs: 3100, inputTokens: 513, outputTokens: 8, hashIds: [7, 8] },
];

describe('options of bench trace', () => {
  it('reads fractions', () => {
    expect(optionsOf('--length-scale', '1/16').lengthScale).toBe(1 / 16);
    expect(optionsOf('--length-scale', '0.25').lengthScale).toBe(0.25);
    expect(optionsOf('--length-scale', '2').lengthScale).toBe(2);
  });

  it.each([
    [['--length-scale', '1/3'], /^--length-scale: '1\/3' makes 170\.6.* tokens of the 512 of a hash id, .* 1\/16/],
    [['--length-scale', '1/0'], /^--length-scale: '1\/0' makes no number of tokens/],
    [['--length-scale', '0'], /^--length-scale: '0' is not a number greater than 0/],
    [['--length-scale', '1/1024'], /^--length-scale: '1\/1024' makes 0\.5 tokens/],
    [['--length-scale', '1000'], /^--length-scale: .* a whole number from 1 to 65536/],
    [['--speed-up', '0'], /^--speed-up: '0' is not a number greater than 0/],
    [['--speed-up', '-3'], /^--speed-up: '-3' is not a number/],
    [['--requests', '0'], /^--requests: '0' is not a whole number of at least 1/],
    [['--slo-ttft-ms', 'soon'], /^--slo-ttft-ms: 'soon' is not a number/],
    [['--concurrency', '0'], /^--concurrency: '0' is not a whole number between 1 and 4096/],
    [['--token-budget', '1'], '--token-budget: must be at least 2'],
    [['--variants', 'ideal'], /^--variants: unknown variant 'ideal'/],
    [['--generation-reuse', 'maybe'], /^--generation-reuse: unknown setting 'maybe'; choose one of on, off/],
    [['--agent', 'nixl', '--link-gbps', '8'], /^--link-gbps: only the host agent can be paced/],
    [['--block-size', '48'], /^--block-size: 48 is not a power of two/],
    [['--prompt-tokens', '8k'], /^unknown option --prompt-tokens/],
    [['--model', 'nemotron-h-8b', '--variants', 'pipelined-early-prefix'], /^--variants: nemotron-h-8b has recurrent/],
  ])('refuses %j', (args, message) => {
    expect(() => optionsOf(...args)).toThrow(UsageError);
    expect(() => optionsOf(...args)).toThrow(message);
  });
});

describe('a scaled trace', () => {
  it('keeps arrivals, hash ids and at least one token of each', () => {
    expect(scaleTrace(TRACE, 10, 1 / 16)).toEqual({
      blockTokens: 32,
      requests: [
        // 2 whole ids and 376 tokens / 16 = 23.5.
        { arrivalMs: 0, promptTokens: 64 + 24, maxTokens: 2, hashIds: [0, 1, 2] },
        { arrivalMs: 0, promptTokens: 64 + 17, maxTokens: 1, hashIds: [0, 1, 9] },
        { arrivalMs: 300, promptTokens: 32 + 1, maxTokens: 1, hashIds: [7, 8] },
      ],
    });
    expect(scaleTrace(TRACE, 1, 1).requests.map((one) => [one.promptTokens, one.maxTokens])).toEqual([
      [1400, 33],
      [1300, 1],
      [513, 8],
    ]);
  });

  it('refuses arrivals over more than a day', () => {
    const late = [...TRACE, { ...(TRACE[0] as TraceRequest), timestampMs: 1e15 }];
    expect(() => scaleTrace(late, 1, 1)).toThrow(
      /^--speed-up: the last of 4 requests would arrive after 277777778 hours/,
    );
    expect(scaleTrace(late, 1e9, 1).requests).toHaveLength(4);
  });
});

const groupsOf = (options: TraceOptions, trace = scaleTrace(TRACE, 10, 1 / 16)) =>
  planGroups(options, shapesOf(options, presetNamed(options.model)), trace);

describe('the groups of a replay', () => {
  it('have the same arrivals and lengths, and prompts of their own', () => {
    const groups = groupsOf(optionsOf('--rounds', '1'));
    expect(groups.map(({ label }) => label)).toEqual(['monolithic', 'pipelined', 'pipelined-early-prefix']);
    for (const { requests } of groups) {
      expect(requests.map(({ arrivalMs, maxTokens, prompt }) => [arrivalMs, maxTokens, prompt.tokenCount])).toEqual([
        [0, 2, 88],
        [0, 1, 81],
        [300, 1, 33],
      ]);
    }
    const first = groups.map(({ requests }) => promptTokens((requests[0] as (typeof requests)[number]).prompt));
    expect(first[0]).not.toEqual(first[1]);
    expect(first[1]).not.toEqual(first[2]);
  });

  it('share as many tokens as their hash ids say, the same in every run, whichever variants run', () => {
    const promptsOf = (...args: readonly string[]): readonly Uint32Array[] =>
      (groupsOf(optionsOf('--rounds', '1', ...args)).at(-1)?.requests ?? []).map(({ prompt }) => promptTokens(prompt));
    const [a, b, c] = promptsOf('--variants', 'pipelined') as [Uint32Array, Uint32Array, Uint32Array];
    expect(a.subarray(0, 64)).toEqual(b.subarray(0, 64));
    expect(a.subarray(64, 81)).not.toEqual(b.subarray(64, 81));
    expect(a.subarray(0, 32)).not.toEqual(c.subarray(0, 32));
    expect(promptsOf('--variants', 'monolithic,pipelined')).toEqual([a, b, c]);
    expect(promptsOf('--variants', 'pipelined', '--seed', '2')[0]).not.toEqual(a);
  });

  it('leave the early prefix out where nothing is reused', () => {
    const groups = groupsOf(optionsOf('--rounds', '1', '--model', 'nemotron-h-8b'));
    expect(groups.map(({ label }) => label)).toEqual(['monolithic', 'pipelined']);
  });
});

describe('the rounds of a replay', () => {
  const many = scaleTrace(
    Array.from({ length: 10 }, (_, index) => ({
      timestampMs: 1000 * index,
      inputTokens: 3 * 512,
      outputTokens: 16,
      // Two users in turn: what one had two requests ago, and something new.
      hashIds: [index % 2, 100 + (index % 2), 1000 + index],
    })),
    10,
    1 / 16,
  );
  const planned = (...args: readonly string[]) => groupsOf(optionsOf(...args), many);
  /** Tokens of each prompt that is put back, and of those, tokens with content. */
  const standingOf = (
    groups: ReturnType<typeof planned>,
    round: number,
    side: 'context' | 'generation' = 'context',
  ): readonly (readonly number[])[] =>
    groups
      .filter(({ requests }) => requests[0]?.round === round && requests[0].variant === 'pipelined')
      .flatMap(({ standing }) => standing?.[side] ?? [])
      .map(({ prompt, tokens, filledTokens }) => [
        prompt.kind === 'trace' ? (prompt.hashIds.at(-1) ?? -1) : -1,
        tokens,
        filledTokens,
      ]);

  it('let the variants take turns, another one first each time, and leave nothing out', () => {
    const groups = planned('--rounds', '3');
    expect(groups.map(({ label }) => label)).toEqual([
      'monolithic, round 1 of 3',
      'pipelined, round 1 of 3',
      'pipelined-early-prefix, round 1 of 3',
      'pipelined, round 2 of 3',
      'pipelined-early-prefix, round 2 of 3',
      'monolithic, round 2 of 3',
      'pipelined-early-prefix, round 3 of 3',
      'monolithic, round 3 of 3',
      'pipelined, round 3 of 3',
    ]);
    for (const variant of ['monolithic', 'pipelined', 'pipelined-early-prefix']) {
      const own = groups.filter(({ requests }) => requests[0]?.variant === variant);
      expect(own.map(({ requests }) => requests.map(({ request }) => request))).toEqual([
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8, 9],
      ]);
      // Distances stay; each round begins with its first arrival.
      expect(own.map(({ requests }) => requests.map(({ arrivalMs }) => arrivalMs))).toEqual([
        [0, 100, 200],
        [0, 100, 200],
        [0, 100, 200, 300],
      ]);
    }
  });

  it('are as many as asked for, at most one for each request, and by default few', () => {
    const countOf = (...args: readonly string[]): number => planned('--variants', 'pipelined', ...args).length;
    expect([countOf('--rounds', '1'), countOf('--rounds', '99'), countOf()]).toEqual([1, 10, 3]);
    const long = { ...many, requests: Array.from({ length: 300 }, (_, i) => ({ ...many.requests[0], arrivalMs: i })) };
    expect(groupsOf(optionsOf('--variants', 'pipelined'), long as typeof many)).toHaveLength(6);
  });

  it('begin with all that the caches would hold of the rounds before, oldest first, and the first with nothing', () => {
    const groups = planned('--rounds', '3');
    expect(standingOf(groups, 0)).toEqual([]);
    // Two ids of 32 tokens each are asked for again; the third takes room and nothing else.
    expect(standingOf(groups, 1)).toEqual([
      [1000, 96, 64],
      [1001, 96, 64],
      [1002, 96, 64],
    ]);
    expect(standingOf(groups, 1, 'generation')).toEqual([]);
    const both = planned('--rounds', '3', '--generation-reuse', 'on');
    expect(standingOf(both, 1, 'generation')).toEqual(standingOf(groups, 1));
    expect(standingOf(planned('--rounds', '3', '--model', 'nemotron-h-8b'), 1)).toEqual([]);
    for (const { requests } of groups)
      for (const { contextWarmTokens, generationWarmTokens } of requests)
        expect([contextWarmTokens, generationWarmTokens]).toEqual([0, 0]);
  });

  it('begin with what fits a pool, the last used of it, in whole blocks', () => {
    // One prompt of 96 tokens and a part of the one before.
    expect(standingOf(planned('--rounds', '3', '--pool-tokens', '128'), 1)).toEqual([
      [1001, 96, 64],
      [1002, 96, 64],
    ]);
    expect(standingOf(planned('--rounds', '3', '--pool-tokens', '64'), 1)).toEqual([]);
    // Pages for 96 tokens, in whole blocks.
    expect(standingOf(planned('--rounds', '3', '--pool-tokens', '127'), 1)).toEqual([[1002, 96, 64]]);
    // With another token to generate none of them fits, and each was refused.
    const longer = { ...many, requests: many.requests.map((one) => ({ ...one, maxTokens: 2 })) };
    expect(standingOf(groupsOf(optionsOf('--rounds', '3', '--pool-tokens', '127'), longer), 1)).toEqual([]);
    expect(standingOf(planned('--rounds', '3', '--block-size', '64'), 1)[0]).toEqual([1000, 64, 64]);
    expect(standingOf(planned('--rounds', '3', '--block-size', '128'), 1)[0]).toEqual([1000, 0, 0]);
  });

  it('leave out a prompt of which all was used again later', () => {
    const again = { ...many, requests: many.requests.map((one) => ({ ...one, hashIds: [0, 100, 1000] })) };
    expect(standingOf(groupsOf(optionsOf('--rounds', '3'), again), 2)).toEqual([[1000, 96, 96]]);
  });
});
