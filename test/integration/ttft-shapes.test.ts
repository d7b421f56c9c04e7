import { describe, expect, it } from 'vitest';
import { capabilities } from '../../src/agent/native.js';
import type { BenchOutput, TtftRow } from '../../src/cli/bench/output-contract.js';
import { runCli } from '../support/cli.js';

async function ttft(...args: readonly string[]): Promise<BenchOutput<TtftRow>> {
  const fast = ['--requests', '1', '--tflops', '5000', '--json', '-'];
  const { code, stdout, stderr } = await runCli(['bench', 'ttft', ...args, ...fast]);
  expect(stderr).toMatch(/every byte planned was sent, arrived and is right/);
  expect(code).toBe(0);
  return JSON.parse(stdout) as BenchOutput<TtftRow>;
}

/** By flat rank. */
interface Bytes {
  readonly context: readonly number[];
  readonly generation: readonly number[];
}

function expectBytes(row: TtftRow | undefined, { context, generation }: Bytes): void {
  const [sample] = row?.samples ?? [];
  expect(sample?.error).toBeNull();
  expect(sample?.contextRanks.map(({ bytesPlanned }) => bytesPlanned)).toEqual(context);
  expect(sample?.contextRanks.map(({ bytesSent }) => bytesSent)).toEqual(context);
  expect(sample?.generationRanks.map(({ bytesVerified }) => bytesVerified)).toEqual(generation);
  expect(sample?.generationRanks.map(({ wrongBytes }) => wrongBytes)).toEqual(generation.map(() => 0));
  const total = generation.reduce((sum, bytes) => sum + bytes, 0);
  expect(row).toMatchObject({ failed: 0, wrongBytes: 0, bytesPlanned: total, bytesSent: total, bytesVerified: total });
}

const of = (count: number, bytes: number): number[] => Array<number>(count).fill(bytes);

// 200 tokens are seven blocks of 32. Bytes a token, from the published shapes.
const BLOCK = 32;
const LLAMA = 131_072;
const GEMMA = 26_624;
const GPT_OSS_LAYER = 2048;
const V3_2 = 85_888;
const NEMOTRON = 16_384;
const NEMOTRON_STATE = 51_806_208;

const CASES: readonly (readonly [string, readonly string[], Bytes])[] = [
  [
    'TP2 -> TP4',
    ['--context-tp', '2', '--generation-tp', '4'],
    { context: of(2, (7 * BLOCK * LLAMA) / 2), generation: of(4, (7 * BLOCK * LLAMA) / 4) },
  ],
  [
    'TP4 -> TP2, NHD, one slot for all layers',
    ['--context-tp', '4', '--generation-tp', '2', '--layout', 'nhd', '--pool-layout', 'per-block'],
    { context: of(4, (7 * BLOCK * LLAMA) / 4), generation: of(2, (7 * BLOCK * LLAMA) / 2) },
  ],
  [
    'PP 20 + 12 -> one, NHD -> HND',
    ['--context-pp', '20,12', '--layout', 'nhd', '--generation-layout', 'hnd'],
    { context: [20, 12].map((layers) => (7 * BLOCK * LLAMA * layers) / 32), generation: [7 * BLOCK * LLAMA] },
  ],
  [
    // Even layers have a window of 128 tokens, which is the last five blocks; a stage of one layer has no layer of the other kind.
    'stages that lack a layer group: PP 1 + 35 -> PP 35 + 1',
    ['--model', 'gpt-oss-120b', '--context-pp', '1,35', '--generation-pp', '35,1'],
    {
      context: [5, 17 * 5 + 18 * 7].map((blocks) => blocks * BLOCK * GPT_OSS_LAYER),
      generation: [18 * 5 + 17 * 7, 7].map((blocks) => blocks * BLOCK * GPT_OSS_LAYER),
    },
  ],
  [
    'CP2 -> one, blocks of 16 -> 64',
    ['--context-cp', '2', '--block-size', '16', '--generation-block-size', '64'],
    { context: [7, 6].map((blocks) => blocks * 16 * LLAMA), generation: [13 * 16 * LLAMA] },
  ],
  [
    'one KV head on four ranks -> two stages of CP2',
    ['--model', 'gemma-3-1b', '--context-tp', '4', '--generation-pp', '13,13', '--generation-cp', '2'],
    {
      context: [7 * BLOCK * GEMMA, 0, 0, 0],
      generation: [4, 3, 4, 3].map((blocks) => (blocks * BLOCK * GEMMA) / 2),
    },
  ],
  [
    'hybrid, TP2 -> TP4',
    ['--model', 'nemotron-h-8b', '--context-tp', '2', '--generation-tp', '4'],
    {
      context: of(2, (7 * BLOCK * NEMOTRON + NEMOTRON_STATE) / 2),
      generation: of(4, (7 * BLOCK * NEMOTRON + NEMOTRON_STATE) / 4),
    },
  ],
  [
    'MLA with index keys, TP2 -> one',
    ['--model', 'deepseek-v3.2', '--context-tp', '2'],
    { context: [7 * BLOCK * V3_2, 0], generation: [7 * BLOCK * V3_2] },
  ],
];

const PROMPT = ['--prompt-tokens', '200', '--chunk', '75', '--variants', 'pipelined'];

describe('bench ttft over shapes, host agent', () => {
  it.each(CASES)('%s', async (_, shape, bytes) => {
    const { results } = await ttft(...PROMPT, '--link-gbps', 'off', ...shape);
    expect(results.map(({ variant, slices }) => [variant, slices])).toEqual([['pipelined', 3]]);
    expect([results[0]?.contextRanks, results[0]?.generationRanks]).toEqual([
      bytes.context.length,
      bytes.generation.length,
    ]);
    expectBytes(results[0], bytes);
  });

  it('windows, reused prefixes and every variant: CP3 -> TP2 x PP2', async () => {
    const shape = [
      '--context-cp',
      '3',
      '--generation-tp',
      '2',
      '--generation-pp',
      '2',
      '--generation-block-size',
      '64',
    ];
    const { results } = await ttft(
      ...['--model', 'gemma-3-1b', '--prompt-tokens', '1000', '--chunk', '300', '--prefix-hit', '0.5'],
      ...['--link-gbps', 'off', ...shape],
    );
    expect(results.map(({ variant }) => variant)).toEqual([
      'monolithic',
      'pipelined',
      'pipelined-early-prefix',
      'ideal',
    ]);
    // The final window of 512 begins in block 15 of 32 tokens: 22 of 26 layers move 17 of 32 blocks, and both TP ranks get the one head.
    const whole = 2 * (4 * 32 + 22 * 17) * BLOCK * 1024;
    for (const row of results) {
      expect(row).toMatchObject({ failed: 0, wrongBytes: 0 });
      expect(row.bytesVerified).toBe(row.bytesPlanned);
      if (row.variant === 'ideal') expect(row.bytesVerified).toBeLessThan(whole / 2);
      else expect(row.bytesVerified).toBe(whole);
      // Stripes of three blocks: 480 of 500 tokens.
      expect(row.samples[0]?.contextCachedTokens).toBe(480);
    }
  });
});

describe('bench ttft through bounce arenas, host agent', () => {
  // The arenas are far smaller than what goes through them, and several writers share one.
  const bounced = CASES.filter(([name]) => /^(TP2 -> TP4|one KV head|hybrid|MLA)/.test(name));
  it.each(bounced)('%s', async (_, shape, bytes) => {
    const { results } = await ttft(...PROMPT, '--link-gbps', 'off', '--bounce-mb', '4', ...shape);
    expect(results[0]).toMatchObject({ path: 'bounce' });
    expectBytes(results[0], bytes);
  });
});

const { nixl } = await capabilities();
const skipped = nixl.available ? '' : ` (SKIPPED: ${nixl.reason})`;

describe.skipIf(!nixl.available)(`bench ttft over shapes, nixl agent${skipped}`, () => {
  it.each([CASES[0], CASES[4]] as typeof CASES)('%s', async (_, shape, bytes) => {
    const { results } = await ttft(...PROMPT, '--agent', 'nixl', ...shape);
    expect(results[0]).toMatchObject({ agent: 'nixl', path: 'rdma' });
    expectBytes(results[0], bytes);
  });

  it('TP2 -> TP4 through bounce arenas', async () => {
    const [_, shape, bytes] = CASES[0] as (typeof CASES)[number];
    const { results } = await ttft(...PROMPT, '--agent', 'nixl', '--bounce-mb', '4', ...shape);
    expect(results[0]).toMatchObject({ agent: 'nixl', path: 'bounce' });
    expectBytes(results[0], bytes);
  });
});
