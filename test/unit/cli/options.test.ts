import { describe, expect, it } from 'vitest';
import * as read from '../../../src/cli/option-types.js';
import { describeOptions, flag, flagName, readOptions, value } from '../../../src/cli/options.js';
import { UsageError } from '../../../src/cli/usage-error.js';

const TABLE = {
  promptTokens: value('LIST', 'prompt lengths', read.list(read.size), '1k'),
  model: value('NAME', 'model', read.choice('model', ['llama-3.1-8b', 'qwen3-32b']), 'qwen3-32b'),
  requests: value('N', 'requests', read.count(1), '3'),
  tflops: value('N', 'speed', read.positiveNumber, '200'),
  json: value('FILE', 'report', read.text),
  quick: flag('small run'),
} as const;

describe('readOptions', () => {
  it('applies defaults and leaves optional values null', () => {
    expect(readOptions(TABLE, [])).toEqual({
      promptTokens: [1024],
      model: 'qwen3-32b',
      requests: 3,
      tflops: 200,
      json: null,
      quick: false,
    });
  });

  it('reads typed values in both spellings', () => {
    const options = readOptions(TABLE, ['--prompt-tokens', '1k,8k,1Mi', '--tflops=12.5', '--json', '-', '--quick']);
    expect(options.promptTokens).toEqual([1024, 8192, 1048576]);
    expect(options.tflops).toBe(12.5);
    expect(options.json).toBe('-');
    expect(options.quick).toBe(true);
  });

  it.each([
    [['--promt-tokens', '1k'], 'unknown option --promt-tokens; did you mean --prompt-tokens? see --help'],
    [['--zzzzzzzzzzzz'], 'unknown option --zzzzzzzzzzzz; see --help'],
    [['-m', 'x'], /^unknown option -m; /],
    [['run'], "'run' is not an option; options start with --, see --help"],
    [['--model'], '--model: the value is missing'],
    [['--model', '--quick'], '--model: the value is missing'],
    [['--quick=1'], '--quick: takes no value'],
    [['--requests', '1', '--requests', '2'], '--requests: given twice; give it once, lists as a,b,c'],
    [
      ['--model', 'lama-3.1-8b'],
      "--model: unknown model 'lama-3.1-8b'; did you mean 'llama-3.1-8b'? choose one of llama-3.1-8b, qwen3-32b",
    ],
    [['--model', ''], /^--model: unknown model ''/],
    [['--prompt-tokens', '0'], "--prompt-tokens: '0' is not a positive whole number; write for example 512, 8k or 1Mi"],
    [['--prompt-tokens', '-4'], /^--prompt-tokens: '-4' is not a positive whole number/],
    [['--prompt-tokens', '1.5'], /^--prompt-tokens: '1.5' is not a positive whole number/],
    [['--prompt-tokens', '8kb'], /^--prompt-tokens: '8kb' is not a positive whole number/],
    [['--prompt-tokens', '9999999999Gi'], /^--prompt-tokens: .* is not a positive whole number/],
    [['--prompt-tokens', '1k,,2k'], "--prompt-tokens: '1k,,2k' has an empty item; write items as a,b,c"],
    [['--prompt-tokens', '1k,1024'], "--prompt-tokens: '1k,1024' names an item twice"],
    [['--requests', '0'], "--requests: '0' is not a whole number of at least 1"],
    [['--requests', '1e3'], /^--requests: '1e3' is not a whole number/],
    [['--tflops', '0'], "--tflops: '0' is not a number greater than 0"],
    [['--tflops', 'NaN'], /^--tflops: 'NaN' is not a number/],
    [['--json', ' '], '--json: the value is empty'],
  ])('refuses %j', (args, message) => {
    const call = (): unknown => readOptions(TABLE, args);
    expect(call).toThrow(UsageError);
    expect(call).toThrow(message);
  });
});

describe('value readers', () => {
  it.each([
    ['1', 1],
    ['8k', 8192],
    ['8K', 8192],
    ['8Ki', 8192],
    ['1.5k', 1536],
    ['2Mi', 2097152],
    ['1G', 1073741824],
  ])('size %s', (text, expected) => {
    expect(read.size('--x', text)).toBe(expected);
  });

  it.each(['1', '1.5', '-0.1', 'half', '', '1e-1'])('share refuses %j', (text) => {
    expect(() => read.share('--prefix-hit', text)).toThrow(UsageError);
  });

  it('share takes 0 and fractions', () => {
    expect(read.list(read.share)('--prefix-hit', '0,0.5,.9')).toEqual([0, 0.5, 0.9]);
  });

  it.each(['0.001', '25', '1e6', '.5'])('numberBetween takes %s', (text) => {
    expect(read.numberBetween(0.001, 1e6)('--link-gbps', text)).toBe(Number(text));
  });

  it.each(['1e-30', '0.0009', '1000001', '-1', 'NaN', '1e400', ''])('numberBetween refuses %j', (text) => {
    expect(() => read.numberBetween(0.001, 1e6)('--link-gbps', text)).toThrow(
      `--link-gbps: '${text}' is not a number from 0.001 to 1000000`,
    );
  });

  it('count names an upper bound', () => {
    expect(() => read.count(1, 64)('--concurrency', '65')).toThrow(
      "--concurrency: '65' is not a whole number between 1 and 64",
    );
  });
});

it('names flags in kebab case and lists each option once', () => {
  expect(flagName('promptTokens')).toBe('--prompt-tokens');
  const lines = describeOptions(TABLE).split('\n');
  expect(lines).toHaveLength(Object.keys(TABLE).length);
  expect(lines[0]).toBe('  --prompt-tokens LIST  prompt lengths (default 1k)');
  expect(lines[4]).toBe('  --json FILE           report');
});
