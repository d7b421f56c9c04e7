import { describe, expect, it } from 'vitest';
import { connectionsWithin, readDescriptorLimit } from '../../../src/wire/descriptor-budget.js';
import { MAX_CONNECTIONS } from '../../../src/wire/limits.js';

const limits = (soft: string) => () =>
  [
    'Limit                     Soft Limit           Hard Limit           Units',
    `Max open files            ${soft}                1048576              files`,
    '',
  ].join('\n');

describe('the limit of open files', () => {
  it('is the soft one', () => {
    expect(readDescriptorLimit(limits('1024'))).toBe(1024);
    expect(readDescriptorLimit()).toBeGreaterThan(64);
  });

  it('is none where it is unlimited, not there or not readable', () => {
    const none = () => {
      throw new Error('ENOENT');
    };
    for (const read of [limits('unlimited'), () => 'Max processes 1 1', none])
      expect(readDescriptorLimit(read)).toBe(Number.POSITIVE_INFINITY);
  });

  it('leaves the rest of the process its part, and at least one connection', () => {
    expect([64, 256, 1024, 4096, 65_536, Number.POSITIVE_INFINITY].map((limit) => connectionsWithin(limit))).toEqual([
      2, 10, 42, 298, 5120, 5120,
    ]);
    expect(connectionsWithin(0)).toBe(1);
    expect([1, 2, 8].map((messengers) => connectionsWithin(4096, messengers))).toEqual([298, 149, 37]);
    expect(MAX_CONNECTIONS).toBe(5120);
  });
});
