import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { PAD_TOKEN, paddedToBlock, promptTokens } from '../../../src/cli/bench/prompt-source.js';
import { readTrace, TRACE_BLOCK_TOKENS } from '../../../src/cli/bench/request-trace.js';
import { UsageError } from '../../../src/cli/usage-error.js';

const REPOSITORY_TRACE = fileURLToPath(new URL('../../data/traces/conversation-300.jsonl', import.meta.url));

describe('readTrace', () => {
  let folder = '';
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'trace-test-'));
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  const fileWith = (content: string): string => {
    const file = join(folder, 'trace.jsonl');
    writeFileSync(file, content);
    return file;
  };
  const GOOD = '{"timestamp": 7, "input_length": 513, "output_length": 2, "hash_ids": [4, 5]}';

  it('reads the trace of this repository', () => {
    const trace = readTrace(REPOSITORY_TRACE, 1000);
    expect(trace).toHaveLength(300);
    expect(trace[0]).toEqual({
      timestampMs: 0,
      inputTokens: 6758,
      outputTokens: 500,
      hashIds: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13],
    });
    for (const request of trace)
      expect(request.hashIds).toHaveLength(Math.ceil(request.inputTokens / TRACE_BLOCK_TOKENS));
  });

  it('stops at the limit, so that a later broken line does not matter', () => {
    expect(readTrace(fileWith(`${GOOD}\nbroken`), 1)).toHaveLength(1);
  });

  it('sorts by arrival and skips empty lines', () => {
    const earlier = GOOD.replace('"timestamp": 7', '"timestamp": 3');
    expect(readTrace(fileWith(`${GOOD}\n\n${earlier}\n`), 9).map((request) => request.timestampMs)).toEqual([3, 7]);
  });

  it('keeps the order of the file for requests of one moment', () => {
    const lines = [1, 2, 3].map((output) => GOOD.replace('"output_length": 2', `"output_length": ${output}`));
    expect(readTrace(fileWith(lines.join('\r\n')), 9).map((request) => request.outputTokens)).toEqual([1, 2, 3]);
  });

  it('reads a long file only as far as it is asked for, across its buffers', () => {
    const hash_ids = Array.from({ length: 4000 }, (_, id) => id);
    const long = JSON.stringify({ timestamp: 1, input_length: 4000 * 512, output_length: 1, hash_ids });
    // Some 4 MiB: lines lie across the buffer's end.
    const file = fileWith(`${Array.from({ length: 200 }, () => long).join('\n')}\nbroken`);
    expect(readTrace(file, 200).map(({ hashIds }) => hashIds.length)).toEqual(new Array(200).fill(4000));
    expect(() => readTrace(file, 201)).toThrow(`--trace: ${file}:201: not JSON`);
  });

  it('refuses a line that does not end', () => {
    const file = fileWith(`${GOOD}\n${'7'.repeat(2 ** 24 + 2 ** 20 + 1)}`);
    expect(() => readTrace(file, 2)).toThrow(`--trace: ${file}:2: line 2 is longer than 16777216 bytes; give the path`);
    expect(readTrace(file, 1)).toHaveLength(1);
  });

  it.each([
    ['{', 'not JSON'],
    ['[1]', 'not a JSON object'],
    ['null', 'not a JSON object'],
    [GOOD.replace('7', '-1'), 'timestamp is not a number'],
    [GOOD.replace('7', '1e999'), 'timestamp is not a number'],
    [GOOD.replace('7', 'null'), 'timestamp is not a number'],
    [GOOD.replace('513', '1e15'), '2 hash_ids for 1000000000000000 tokens'],
    [GOOD.replace('[4, 5]', '[4, 1e300]'), 'hash_ids is not a list of whole numbers'],
    [GOOD.replace('513', '0'), 'input_length is not a whole number of at least 1'],
    [GOOD.replace('513', '513.5'), 'input_length is not a whole number'],
    [GOOD.replace('2,', '"2",'), 'output_length is not a whole number'],
    [GOOD.replace('[4, 5]', '[4, -5]'), 'hash_ids is not a list of whole numbers'],
    [GOOD.replace('[4, 5]', '[4]'), '1 hash_ids for 513 tokens, expected 2 of 512 each'],
    ['{}', 'timestamp is not a number'],
  ])('refuses %s with file and line', (line, reason) => {
    const file = fileWith(`${GOOD}\n${line}\n`);
    const call = (): unknown => readTrace(file, 10);
    expect(call).toThrow(UsageError);
    expect(call).toThrow(`--trace: ${file}:2: ${reason}`);
  });

  it('says that a file is missing or empty', () => {
    expect(() => readTrace(join(folder, 'none.jsonl'), 1)).toThrow(
      /^--trace: .*none\.jsonl does not exist; give the path/,
    );
    expect(() => readTrace(folder, 1)).toThrow(/^--trace: .* cannot be read/);
    expect(() => readTrace(fileWith('\n'), 1)).toThrow(/holds no request$/);
  });
});

describe('promptTokens', () => {
  it('scales the tokens of a hash id', () => {
    const make = (hashIds: readonly number[]): Uint32Array =>
      promptTokens({ kind: 'trace', salt: 1n, hashIds, tokenCount: 40, blockTokens: 16 });
    const [a, b] = [make([3, 4, 5]), make([3, 9, 5])];
    expect(b.subarray(0, 16)).toEqual(a.subarray(0, 16));
    expect(b.subarray(16, 32)).not.toEqual(a.subarray(16, 32));
    expect(b.subarray(32)).toEqual(a.subarray(32));
  });

  it('gives equal tokens for equal hash ids at equal places, and other tokens else', () => {
    const make = (salt: bigint, hashIds: readonly number[], tokenCount: number): Uint32Array =>
      promptTokens({ kind: 'trace', salt, hashIds, tokenCount });
    const a = make(1n, [0, 1, 2], 1400);
    const b = make(1n, [0, 1, 9], 1300);
    expect(b.subarray(0, 1024)).toEqual(a.subarray(0, 1024));
    expect(b.subarray(1024, 1300)).not.toEqual(a.subarray(1024, 1300));
    expect(make(2n, [0], 512)).not.toEqual(a.subarray(0, 512));
  });

  it('is the same for the same seed', () => {
    const random = (seed: bigint): Uint32Array => promptTokens({ kind: 'random', seed, tokenCount: 100 });
    expect(random(5n)).toEqual(random(5n));
    expect(random(5n)).not.toEqual(random(6n));
    expect(new Set(random(5n)).size).toBeGreaterThan(95);
    expect(random(5n)).not.toContain(PAD_TOKEN);
  });

  it('pads to the block with a token that no prompt holds', () => {
    expect(paddedToBlock(Uint32Array.of(1, 2, 3), 4)).toEqual(Uint32Array.of(1, 2, 3, PAD_TOKEN));
    expect(paddedToBlock(Uint32Array.of(1, 2, 3, 4), 4)).toEqual(Uint32Array.of(1, 2, 3, 4));
  });
});
