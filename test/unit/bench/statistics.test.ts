import { describe, expect, it } from 'vitest';
import { checkPoolsFit } from '../../../src/cli/bench/memory-guard.js';
import { Progress, type ProgressSink } from '../../../src/cli/bench/progress.js';
import { mixSeed, SeededRandom, shuffle } from '../../../src/cli/bench/seeded-random.js';
import { percentilesOf, quantile } from '../../../src/cli/bench/statistics.js';
import { formatBytes, formatMs, renderTable } from '../../../src/cli/bench/text-table.js';
import { UsageError } from '../../../src/cli/usage-error.js';

describe('percentiles', () => {
  it('interpolates between neighbours', () => {
    expect(percentilesOf([4, 1, 3, 2])).toEqual({ min: 1, p50: 2.5, p90: 3.7, p99: 3.9699999999999998, max: 4 });
    expect(percentilesOf([7])).toEqual({ min: 7, p50: 7, p90: 7, p99: 7, max: 7 });
    expect(quantile([1, 2, 3], 0.5)).toBe(2);
  });

  it('has nothing to say about nothing', () => {
    expect(percentilesOf([])).toBeNull();
    expect(() => quantile([], 0.5)).toThrow(RangeError);
  });
});

describe('seeded random', () => {
  it('repeats itself, also for seed 0', () => {
    const first = new SeededRandom(0n);
    const second = new SeededRandom(0n);
    const values = Array.from({ length: 8 }, () => first.nextUint32());
    expect(Array.from({ length: 8 }, () => second.nextUint32())).toEqual(values);
    expect(new Set(values).size).toBe(8);
  });

  it('separates related seeds and takes their order into account', () => {
    const seeds = [mixSeed(1, 2), mixSeed(2, 1), mixSeed(1, 2, 0), mixSeed(1, 3)];
    expect(new Set(seeds).size).toBe(4);
    for (const seed of seeds) expect(seed < 1n << 64n).toBe(true);
  });

  it('shuffles without losing an item', () => {
    const shuffled = shuffle(
      Int32Array.from({ length: 100 }, (_, index) => index),
      new SeededRandom(3n),
    );
    expect([...shuffled].sort((a, b) => a - b)).toEqual(Array.from({ length: 100 }, (_, index) => index));
    expect([...shuffled]).not.toEqual(Array.from({ length: 100 }, (_, index) => index));
  });
});

it('refuses pools that do not fit, with the option to change', () => {
  expect(() => checkPoolsFit(2 ** 30, 2, 'shorten --prompt-tokens', 3 * 2 ** 30)).not.toThrow();
  const call = (): void => checkPoolsFit(2 ** 30, 2, 'shorten --prompt-tokens', 2 * 2 ** 30);
  expect(call).toThrow(UsageError);
  expect(call).toThrow(
    'not enough memory: 2 pools of 1.00 GiB and 512.0 MiB of reserve, 2.00 GiB free; shorten --prompt-tokens',
  );
});

describe('text', () => {
  it('aligns columns', () => {
    expect(
      renderTable(
        ['a', 'ms'],
        [
          ['long', '1'],
          ['x', '234'],
        ],
      ),
    ).toBe('a      ms\n----  ---\nlong    1\nx     234');
  });

  it('prints sizes and times with the digits that matter', () => {
    expect([512, 2048, 1536 * 1024, 20 * 2 ** 30].map(formatBytes)).toEqual([
      '512 B',
      '2.00 KiB',
      '1.50 MiB',
      '20.0 GiB',
    ]);
    expect([1.234, 12.34, 123.4, null].map(formatMs)).toEqual(['1.23', '12.3', '123', '-']);
  });
});

describe('progress', () => {
  const sinkOf = (isTTY: boolean): ProgressSink & { text: string } => ({
    isTTY,
    columns: 60,
    text: '',
    write(text: string) {
      this.text += text;
    },
  });

  it('keeps to one line on a terminal and leaves it clean', () => {
    const sink = sinkOf(true);
    const progress = new Progress(2, sink);
    progress.show('first');
    progress.advance('first');
    progress.end();
    progress.end();
    expect(sink.text).not.toContain('\n');
    expect(sink.text.split('\r\u001b[2K')).toEqual([
      '',
      `[${' '.repeat(24)}] 0/2  first`,
      `[${'='.repeat(12)}${' '.repeat(12)}] 1/2  first`,
      '',
    ]);
  });

  it('prints a line per tenth elsewhere', () => {
    const sink = sinkOf(false);
    const progress = new Progress(100, sink);
    for (let done = 0; done < 100; done++) progress.advance('x');
    expect(sink.text.split('\n').length - 1).toBe(11);
    expect(sink.text.endsWith('100/100  x\n')).toBe(true);
  });
});
