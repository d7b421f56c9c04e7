import { describe, expect, it } from 'vitest';
import { checkCase, JUDGED_CASES, Met } from './tiny/check-case.js';

const CASES = Number(process.env['KV_TRANSCEIVER_TINY_CASES'] ?? JUDGED_CASES);
const FIRST_SEED = Number(process.env['KV_TRANSCEIVER_TINY_SEED'] ?? 1);

describe('tiny engine: tokens after a transfer', () => {
  it(`are those of one server, in ${CASES} random cases`, { timeout: 60_000 + CASES * 2_000 }, async () => {
    const met = new Met();
    for (let seed = FIRST_SEED; seed < FIRST_SEED + CASES; seed++) await checkCase(seed, met);
    expect(met.counts['tokens']).toBeGreaterThan(0);
    if (CASES >= JUDGED_CASES) expect(met.missed).toEqual([]);
  });
});
