import { describe, expect, it } from 'vitest';
import { presetNamed } from '../../../src/cli/bench/presets/index.js';
import { type Shapes, shapesOf } from '../../../src/cli/bench/shape/shapes-of.js';
import { runGroup } from '../../../src/cli/bench/ttft/group-runner.js';
import { describePools, type PoolSizes, poolSizes } from '../../../src/cli/bench/ttft/pool-size.js';
import {
  checkTtftOptions,
  TTFT_OPTIONS,
  type TtftOptions,
  withQuickDefaults,
} from '../../../src/cli/bench/ttft/ttft-options.js';
import { contextWarmTokens, generationWarmTokens, policyOf } from '../../../src/cli/bench/ttft/variants.js';
import { planClosedLoop, planTrace, type RequestGroup, randomRequest } from '../../../src/cli/bench/ttft/workload.js';
import { readOptions } from '../../../src/cli/options.js';
import { UsageError } from '../../../src/cli/usage-error.js';

function optionsOf(...args: readonly string[]): TtftOptions {
  const options = readOptions(TTFT_OPTIONS, withQuickDefaults(args));
  checkTtftOptions(options, args);
  return options;
}

function shapesFor(options: TtftOptions): Shapes {
  return shapesOf(options, presetNamed(options.model));
}

describe('ttft options', () => {
  it('--quick changes only what was not typed', () => {
    expect(optionsOf('--quick')).toMatchObject({ promptTokens: [2048], chunk: 512, requests: 1 });
    expect(optionsOf('--quick', '--chunk', '1000', '--requests=2')).toMatchObject({
      promptTokens: [2048],
      chunk: 1000,
      requests: 2,
    });
  });

  it.each([
    [['--chunk', '0'], /^--chunk: '0' is not a positive whole number/],
    [['--model', 'llama'], /^--model: unknown model 'llama'; .*llama-3.1-8b, llama-3.3-70b, .*, nemotron-h-8b$/],
    [['--block-size', '48'], '--block-size: 48 is not a power of two up to 1024'],
    [
      ['--prompt-tokens', '8k', '--pool-tokens', '4k'],
      /^--prompt-tokens: 8192 tokens do not fit the pool of 4096 \(--pool-tokens\)/,
    ],
    [['--agent', 'nixl', '--link-gbps', '25'], /^--link-gbps: only the host agent can be paced/],
    [['--agent', 'ucx'], /^--agent: unknown agent 'ucx'/],
    [['--link-gbps', '0'], "--link-gbps: '0' is not a number from 0.001 to 1000000"],
    [['--prefix-hit', '1'], /^--prefix-hit: '1' is not a share/],
    [['--trace', 'x', '--prompt-tokens', '1k'], /^--prompt-tokens: the trace says/],
    [['--trace', 'x', '--prefix-hit', '0.5'], /^--prefix-hit: the trace says/],
    [['--speed', '2'], '--speed: needs --trace'],
    [['--gpus', '0:1'], '--gpus: needs --memory device'],
    [['--engine', 'gemm'], '--engine: gemm writes its pages on a GPU'],
    [['--memory', 'device', '--link-gbps', '3'], '--link-gbps: only copies between host memories'],
    [['--memory', 'device', '--engine', 'gemm', '--model', 'gemma-3-1b'], '--engine: gemm knows the matrices of'],
    [['--memory', 'device', '--engine', 'gemm', '--context-tp', '2'], '--engine: gemm computes one rank'],
    [['--variants', 'pipelined-early-prefix'], /^--variants: pipelined-early-prefix needs a reused prefix/],
    [['--variants', 'fast'], /^--variants: unknown variant 'fast'/],
    [['--listen-port', '70000'], /^--listen-port: '70000' is not a whole number between 1 and 65534/],
  ])('refuses %j', (args, message) => {
    expect(() => optionsOf(...args)).toThrow(UsageError);
    expect(() => optionsOf(...args)).toThrow(message);
  });

  it('accepts an unpaced host agent and an explicit off with NIXL', () => {
    expect(optionsOf('--link-gbps', 'off').linkGbps).toBeNull();
    expect(optionsOf('--agent', 'nixl', '--link-gbps', 'off').linkGbps).toBeNull();
  });
});

describe('cached prefixes', () => {
  it.each([
    [8192, 0.5, 32, 4096],
    [1000, 0.5, 64, 448],
    [64, 0.99, 32, 32],
    [32, 0.9, 32, 0],
    [8192, 0, 32, 0],
  ])('%i tokens, hit %f, block %i: context holds %i', (prompt, hit, block, expected) => {
    expect(contextWarmTokens(prompt, hit, block)).toBe(expected);
  });

  it.each([
    // The last chunk is [6144, 8192).
    ['ideal', 8192, 0, 2048, 32, 6144],
    // Chunks of 1000: the last one is [8000, 8192), and block 250 goes with it.
    ['ideal', 8192, 0, 1000, 64, 8000],
    ['ideal', 7100, 0, 1000, 64, 6976],
    // From 4096 on: [4096, 5096) ... [7096, 8096) [8096, 8192).
    ['ideal', 8192, 4096, 1000, 32, 8096],
    ['ideal', 512, 0, 2048, 32, 0],
    // One chunk is left to compute, and only its slice goes.
    ['ideal', 4096, 2048, 2048, 32, 2048],
    ['pipelined', 8192, 0, 2048, 32, 0],
  ] as const)(
    '%s, %i tokens, %i cached, chunk %i, block %i: generation holds %i',
    (variant, prompt, cached, chunk, block, expected) => {
      expect(generationWarmTokens(variant, prompt, cached, chunk, block)).toBe(expected);
    },
  );

  it('only the monolithic variant waits for the whole prompt', () => {
    expect(policyOf('monolithic')).toEqual({ pipelined: false, earlyPrefix: false });
    expect(policyOf('pipelined')).toEqual({ pipelined: true, earlyPrefix: false });
    expect(policyOf('pipelined-early-prefix')).toEqual({ pipelined: true, earlyPrefix: true });
    expect(policyOf('ideal')).toEqual({ pipelined: true, earlyPrefix: false });
  });
});

function closedLoop(options: TtftOptions, concurrency: number): readonly RequestGroup[] {
  return planClosedLoop(options, shapesFor(options), concurrency);
}

describe('closed loop', () => {
  it('lets variants take turns and gives every request its own prompt', () => {
    const groups = closedLoop(optionsOf('--prompt-tokens', '1k,2k', '--requests', '2', '--prefix-hit', '0,0.5'), 1);
    expect(groups.map((group) => group.requests[0]?.variant).slice(0, 7)).toEqual([
      'monolithic',
      'pipelined',
      'ideal',
      'monolithic',
      'pipelined',
      'pipelined-early-prefix',
      'ideal',
    ]);
    expect(groups).toHaveLength(2 * 2 * (3 + 4));
    const seeds = groups.flatMap((group) => group.requests.map((request) => request.seed));
    expect(new Set(seeds).size).toBe(seeds.length);
    expect(groups[0]?.requests[0]?.request).toBe(0);
    expect(groups.at(-1)?.requests[0]?.request).toBe(1);
  });

  it('puts as many requests into a group as may be in flight', () => {
    const groups = closedLoop(optionsOf('--prompt-tokens', '1k', '--requests', '5', '--variants', 'pipelined'), 2);
    expect(groups.map((group) => group.requests.length)).toEqual([2, 2, 1]);
  });
});

describe('trace', () => {
  const trace = [
    { timestampMs: 100, inputTokens: 600, outputTokens: 1, hashIds: [0, 1] },
    { timestampMs: 300, inputTokens: 512, outputTokens: 1, hashIds: [0] },
  ];

  it('replays the same arrivals for each variant, with prompts of its own', () => {
    const groups = planTrace(optionsOf('--trace', 'x', '--speed', '2'), trace);
    expect(groups.map((group) => group.requests[0]?.variant)).toEqual([
      'monolithic',
      'pipelined',
      'pipelined-early-prefix',
    ]);
    for (const { requests } of groups)
      expect(requests.map(({ request, arrivalMs }) => [request, arrivalMs])).toEqual([
        [0, 0],
        [1, 100],
      ]);
    expect(new Set(groups.map((group) => group.requests[0]?.seed)).size).toBe(3);
  });
});

describe('pool size', () => {
  function sizesOf(options: TtftOptions, concurrency = 2): PoolSizes {
    const shapes = shapesFor(options);
    return poolSizes(options, concurrency, presetNamed(options.model), shapes, closedLoop(options, 2));
  }
  const gemma = ['--model', 'gemma-3-1b'];

  it('holds the longest requests that run together', () => {
    const { context, generation } = sizesOf(optionsOf(...gemma, '--prompt-tokens', '1000,2k', '--requests', '2'));
    expect(context).toEqual({ slots: { blocks: 2 * (64 + 2), states: 3 }, bytes: 2 * (64 + 2) * 32 * 26_624 });
    expect(generation).toEqual(context);
  });

  it('counts all ranks: heads that several hold count as often, context parallel ranks hold a share of the blocks', () => {
    const shape = ['--context-tp', '4', '--generation-cp', '2', '--generation-block-size', '64'];
    const options = optionsOf(...gemma, ...shape, '--prompt-tokens', '2k', '--requests', '1');
    const sizes = sizesOf(options, 1);
    // One KV head, four times.
    expect(sizes.context).toEqual({ slots: { blocks: 64 + 2, states: 2 }, bytes: 4 * 66 * 32 * 26_624 });
    expect(sizes.generation).toEqual({ slots: { blocks: 16 + 2, states: 2 }, bytes: 2 * 18 * 64 * 26_624 });
    expect(describePools(sizes, shapesFor(options))).toBe(
      'pools of 214.5 MiB on the context server (4 ranks) and 58.5 MiB on the generation server (2 ranks)',
    );
  });

  it('has room for a 70 B model over six ranks in 2 GiB', () => {
    const shape = ['--model', 'llama-3.3-70b', '--context-tp', '2', '--generation-tp', '4'];
    const { context, generation } = sizesOf(optionsOf(...shape, '--prompt-tokens', '1k', '--requests', '1'), 1);
    expect(context.bytes).toBe((32 + 2) * 32 * 327_680);
    expect(generation.bytes).toBe(context.bytes);
  });

  it('refuses a prompt whose last pages do not fit', () => {
    const options = optionsOf(...gemma, '--prompt-tokens', '2k', '--pool-tokens', '2k');
    expect(() => sizesOf(options, 1)).toThrow(
      '--prompt-tokens: a prompt of 2048 tokens needs pages for 2112, the pool has 2048; raise --pool-tokens or shorten the prompt',
    );
  });

  it('refuses pools larger than the machine', () => {
    const options = optionsOf(...gemma, '--prompt-tokens', '1Gi');
    expect(() => sizesOf(options, 1)).toThrow(/^not enough memory: 2 pools of .* TiB/);
    const split = optionsOf(...gemma, '--prompt-tokens', '1Gi', '--context-tp', '2');
    expect(() => sizesOf(split, 1)).toThrow(/^not enough memory: pools of .* TiB on the context server \(2 ranks\)/);
  });
});

describe('runGroup', () => {
  it('prepares first, keeps the concurrency, and counts a waiting request from its arrival', async () => {
    let nowMs = 1000;
    let inFlight = 0;
    let mostInFlight = 0;
    const log: string[] = [];
    const requests = [0, 0, 1].map((arrivalMs, request) => ({
      ...randomRequest({ seed: 1 }, 'pipelined', 1, 0, request),
      arrivalMs,
    }));
    const groups: readonly RequestGroup[] = [{ label: 'pipelined', requests }];
    const arrivals: (number | null)[] = [];
    await runGroup(
      {
        prepare: async (planned) => {
          log.push(`prepare ${planned.request}`);
          return { key: planned.request, planned };
        },
        measure: async ({ key }, arrivedMs = null) => {
          log.push(`measure ${key}`);
          arrivals.push(arrivedMs);
          mostInFlight = Math.max(mostInFlight, ++inFlight);
          await Promise.resolve();
          nowMs += 10;
          inFlight--;
          return { request: key } as never;
        },
      },
      groups[0] as RequestGroup,
      2,
      () => nowMs,
      (planned) => log.push(`sample ${planned.request}`),
    );
    expect(log.slice(0, 5)).toEqual(['prepare 0', 'prepare 1', 'prepare 2', 'measure 0', 'measure 1']);
    expect(log.filter((entry) => entry.startsWith('sample')).sort()).toEqual(['sample 0', 'sample 1', 'sample 2']);
    expect(mostInFlight).toBe(2);
    expect(arrivals).toEqual([1000, 1000, 1001]);
  });
});
