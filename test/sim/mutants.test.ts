import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { MUTANTS } from './mutants/index.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

describe('mutants', () => {
  it('there are at least 30, each with a name of its own', () => {
    expect(MUTANTS.length).toBeGreaterThanOrEqual(30);
    expect(new Set(MUTANTS.map(({ name }) => name)).size).toBe(MUTANTS.length);
  });

  it.each(MUTANTS)('$name: its passage stands in $file exactly once, and it changes something', (mutant) => {
    const source = readFileSync(`${ROOT}${mutant.file}`, 'utf8');
    expect(source.split(mutant.find).length - 1).toBe(1);
    expect(mutant.replace).not.toBe(mutant.find);
  });
});
