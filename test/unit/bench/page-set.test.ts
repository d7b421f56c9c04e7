import { expect, it } from 'vitest';
import { pageTableOf, pageTokens, scatteredSlots, sortedPairs } from '../../../src/cli/bench/transfer/page-set.js';
import { validatePageTable } from '../../../src/mapping/validate-page-table.js';

it('scatters pages over a pool of twice their number, differently on each side', () => {
  const source = scatteredSlots(1000, 1n);
  const destination = scatteredSlots(1000, 2n);
  for (const slots of [source, destination]) {
    expect(new Set(slots).size).toBe(1000);
    for (const slot of slots) expect(slot >= 0 && slot < 2000).toBe(true);
  }
  expect([...source]).not.toEqual([...destination]);
});

it('keeps each pair together when it sorts by source slot', () => {
  expect([...sortedPairs(Int32Array.of(5, 1, 3), Int32Array.of(50, 10, 30))]).toEqual([1, 10, 3, 30, 5, 50]);
});

it('describes pages as a valid table', () => {
  const table = pageTableOf(4096, 4096, 8);
  expect(validatePageTable(table, 'own')).toEqual(table);
});

it('gives each page a token of its own', () => {
  expect([...pageTokens(3, 7)]).toEqual([7, 8, 9]);
});
