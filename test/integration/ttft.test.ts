import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import type { BenchOutput, TtftRow } from '../../src/cli/bench/output-contract.js';
import { runCli } from '../support/cli.js';

const TRACE = fileURLToPath(new URL('../data/traces/conversation-300.jsonl', import.meta.url));
const GEMMA_BYTES_PER_TOKEN = 26_624;
const GEMMA_WINDOW_LAYERS = 22;
const BYTES_PER_TOKEN_AND_LAYER = 1024;

async function ttft(...args: readonly string[]): Promise<BenchOutput<TtftRow>> {
  const { code, stdout, stderr } = await runCli(['bench', 'ttft', ...args, '--json', '-']);
  expect(stderr).toMatch(/every byte planned was sent, arrived and is right/);
  expect(code).toBe(0);
  return JSON.parse(stdout) as BenchOutput<TtftRow>;
}

/** What `gemma-3-1b` moves for a prompt of which the receiver lacks everything. */
function gemmaBytes(promptTokens: number, blockSize: number): number {
  const blocks = Math.ceil(promptTokens / blockSize);
  const stale = Math.max(0, Math.floor((promptTokens + 1 - 512) / blockSize));
  const perBlock = blockSize * BYTES_PER_TOKEN_AND_LAYER;
  return blocks * blockSize * GEMMA_BYTES_PER_TOKEN - stale * GEMMA_WINDOW_LAYERS * perBlock;
}

describe('bench ttft over the host agent', () => {
  it.each([
    [512, 32],
    [1000, 64],
    [300, 32],
  ])('windows, chunk %i, block %i: every byte is the right one', async (chunk, blockSize) => {
    const output = await ttft(
      ...[
        '--model',
        'gemma-3-1b',
        '--prompt-tokens',
        '2000',
        '--chunk',
        String(chunk),
        '--block-size',
        String(blockSize),
      ],
      ...['--requests', '2', '--prefix-hit', '0,0.5', '--link-gbps', '10', '--tflops', '100'],
    );
    expect(output).toMatchObject({ schema: 1, bench: 'ttft', interrupted: false });
    expect(output.results.map((row) => `${row.prefixHit} ${row.variant}`)).toEqual([
      '0 monolithic',
      '0 pipelined',
      '0 ideal',
      '0.5 monolithic',
      '0.5 pipelined',
      '0.5 pipelined-early-prefix',
      '0.5 ideal',
    ]);
    const expected = gemmaBytes(2000, blockSize);
    for (const row of output.results) {
      expect(row).toMatchObject({ requests: 2, failed: 0, wrongBytes: 0, agent: 'host', path: 'host' });
      expect(row.bytesSent).toBe(row.bytesPlanned);
      expect(row.bytesVerified).toBe(row.bytesPlanned);
      if (row.variant === 'ideal') expect(row.bytesPlanned).toBeLessThan(2 * expected);
      else expect(row.bytesPlanned).toBe(2 * expected);
      const cached = Math.floor((2000 * row.prefixHit) / blockSize) * blockSize;
      for (const sample of row.samples) expect(sample.contextCachedTokens).toBe(cached);
    }
    expect(output.checks.filter((check) => check.judged && !check.met)).toEqual([]);
  });

  it('latent pages and one slot for all layers', async () => {
    const output = await ttft(
      ...[
        '--model',
        'deepseek-v3-mla',
        '--prompt-tokens',
        '1000',
        '--chunk',
        '300',
        '--requests',
        '1',
        '--pool-layout',
        'per-block',
      ],
      ...['--tflops', '2000', '--link-gbps', 'off'],
    );
    const bytes = 1024 * 70_272;
    expect(output.results.map((row) => [row.variant, row.bytesVerified])).toEqual([
      ['monolithic', bytes],
      ['pipelined', bytes],
      // The last chunk is [900, 1000): blocks 28 to 31.
      ['ideal', 4 * 32 * 70_272],
    ]);
    expect(output.results.map((row) => row.slices)).toEqual([1, 4, 4]);
  });

  it('several requests at a time', async () => {
    const output = await ttft(
      ...[
        '--model',
        'gemma-3-1b',
        '--prompt-tokens',
        '1000',
        '--chunk',
        '256',
        '--requests',
        '6',
        '--concurrency',
        '3',
      ],
      ...['--link-gbps', '10'],
    );
    for (const row of output.results) {
      expect(row).toMatchObject({ requests: 6, failed: 0, wrongBytes: 0, concurrency: 3 });
      expect(new Set(row.samples.map((sample) => sample.seed)).size).toBe(6);
    }
  });

  it('replays a trace and finds its shared prefixes', async () => {
    const output = await ttft(
      '--model',
      'gemma-3-1b',
      '--trace',
      TRACE,
      '--requests',
      '4',
      '--chunk',
      '2k',
      '--link-gbps',
      '25',
      '--speed',
      '100',
    );
    expect(output.results.map((row) => row.variant)).toEqual(['monolithic', 'pipelined', 'pipelined-early-prefix']);
    for (const row of output.results) {
      expect(row).toMatchObject({ promptTokens: null, requests: 4, failed: 0, wrongBytes: 0 });
      expect(row.samples.map((sample) => sample.promptTokens).sort()).toEqual([2290, 6758, 7236, 7322].sort());
      // All four start with the same 512 tokens; whoever is prefilled after the first one finds them.
      const cached = row.samples.map((sample) => sample.contextCachedTokens).sort((a, b) => a - b);
      expect(cached).toEqual([0, 512, 512, 512]);
    }
  });
});
