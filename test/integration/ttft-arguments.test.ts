import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { runCli } from '../support/cli.js';

/** One line, no stack trace, exit code 2. */
async function expectUsageError(args: readonly string[], message: RegExp): Promise<void> {
  const { code, stdout, stderr } = await runCli(args);
  expect(stderr.trimEnd().split('\n')).toHaveLength(1);
  expect(stderr).toMatch(message);
  expect(stderr).not.toMatch(/^\s+at /m);
  expect(stdout).toBe('');
  expect(code).toBe(2);
}

describe('bad arguments', () => {
  let folder = '';
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'ttft-arguments-'));
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  it.each([
    [['bench', 'ttfft'], /^kv-transceiver: unknown command 'bench ttfft'; did you mean 'bench ttft'\?/],
    [
      ['bench', 'ttft', '--model', 'lama-3.1-8b'],
      /--model: unknown model 'lama-3.1-8b'; did you mean 'llama-3.1-8b'\? choose one of/,
    ],
    [['bench', 'ttft', '--prompt-tokens', '0'], /--prompt-tokens: '0' is not a positive whole number/],
    [['bench', 'ttft', '--prompt-tokens', '-8k'], /--prompt-tokens/],
    [['bench', 'ttft', '--prompt-tokens', 'many'], /--prompt-tokens: 'many' is not a positive whole number/],
    [['bench', 'ttft', '--chunk', '0'], /--chunk: '0' is not a positive whole number/],
    [
      ['bench', 'ttft', '--prompt-tokens', '8k', '--pool-tokens', '4k'],
      /--prompt-tokens: 8192 tokens do not fit the pool of 4096/,
    ],
    [['bench', 'ttft', '--prompt-tokens', '1Gi'], /not enough memory: 2 pools of .*; shorten --prompt-tokens/],
    [
      ['bench', 'ttft', '--context-tp', '3'],
      /--context-tp: 3 ranks cannot share the 8 KV heads of llama-3.1-8b evenly; choose one of 1, 2, 4/,
    ],
    [['bench', 'ttft', '--generation-pp', '16,17'], /--generation-pp: 16 \+ 17 layers are 33, llama-3.1-8b has 32/],
    [
      ['bench', 'ttft', '--context-cp', '2', '--generation-cp', '2'],
      /--context-cp, --generation-cp: 2 and 2: .*set the context parallel size of one side to 1/,
    ],
    [['bench', 'ttft', '--generation-block-size', '48'], /--generation-block-size: 48 is not a power of two/],
    [
      ['bench', 'ttft', '--listen-port', '65534', '--context-tp', '2'],
      /--listen-port: 3 ranks need the ports 65534 to 65536; choose at most 65533/,
    ],
    [['bench', 'ttft', '--model', 'nemotron-h-8b', '--prefix-hit', '0.5'], /--prefix-hit: nemotron-h-8b has recurrent/],
    [['bench', 'ttft', '--model', 'nemotron-h-8b', '--variants', 'ideal'], /--variants: .*leave ideal out/],
    [['bench', 'ttft', '--trace', 'no-such-file.jsonl'], /--trace: no-such-file\.jsonl does not exist/],
    [['bench', 'ttft', '--json', 'no-such-folder/report.json'], /--json: the folder .*no-such-folder does not exist/],
    [['bench', 'transfer', '--page-bytes', '3'], /--page-bytes: 3 is not an even size/],
    [['bench', 'dispatch', '--moves', '33'], /--moves: 33 does not divide by the 32 layers/],
    [['doctor', '--jason'], /unknown option --jason; did you mean --json\?/],
  ])('%j', async (args, message) => {
    await expectUsageError(args, message);
  });

  it('names file and line of a broken trace', async () => {
    const file = join(folder, 'trace.jsonl');
    writeFileSync(file, '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n{"timestamp": 0}\n');
    await expectUsageError(['bench', 'ttft', '--trace', file], /trace\.jsonl:2: input_length is not a whole number/);
  });

  it('names the port that is in use, in one line', async () => {
    const server = createServer();
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const { port } = server.address() as { port: number };
    try {
      const args = ['bench', 'ttft', '--quick', '--model', 'gemma-3-1b', '--listen-port', String(port)];
      const { code, stderr } = await runCli(args);
      expect(stderr.trimEnd()).toBe(
        `kv-transceiver: --listen-port: port ${port} is in use; choose another or leave the option out`,
      );
      expect(code).toBe(2);
    } finally {
      server.close();
    }
  });

  it('prints help for every command', async () => {
    for (const command of [['bench', 'ttft'], ['bench', 'transfer'], ['bench', 'dispatch'], ['doctor']]) {
      const { code, stdout, stderr } = await runCli([...command, '--help']);
      expect([code, stderr]).toEqual([0, '']);
      expect(stdout).toMatch(new RegExp(`^usage: kv-transceiver ${command.join(' ')} \\[options\\]\n\n  --`));
    }
  });
});
